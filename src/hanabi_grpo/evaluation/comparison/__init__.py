"""Training runs side by side: arms of several seeds each, their learning curves, held-out scores and differences.

- `words`: arms and reference lines as typed, and the folders that they name.
- `runs`: what a run folder holds: scores by step, time, board, evaluations, settings.
- `seeds`: means over training seeds, their t intervals and differences.
- `curves`: one line with a band per arm.
- `held_out`: evaluations of all seeds of an arm, with errors over seeds and over deals.
- `conditions`: in which settings runs and arms differ.
- `tables`: everything as tables, notes and JSON.
"""

from hanabi_grpo.evaluation.comparison.curves import Axis, Curve, arm_curves
from hanabi_grpo.evaluation.comparison.runs import Arm, Run, load_arms
from hanabi_grpo.evaluation.comparison.tables import Comparison, compare_arms, comparison_sheets, comparison_to_json
from hanabi_grpo.evaluation.comparison.words import parse_arm, parse_reference

__all__ = [
    "Arm",
    "Axis",
    "Comparison",
    "Curve",
    "Run",
    "arm_curves",
    "compare_arms",
    "comparison_sheets",
    "comparison_to_json",
    "load_arms",
    "parse_arm",
    "parse_reference",
]
