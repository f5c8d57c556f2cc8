"""Pictures: the learning curve of a run, and the heat map of a matrix of scores.

matplotlib is imported when something is drawn, not before; `color_scale` does without it.
"""

from hanabi_grpo.report.charts.color_scale import ColorScale
from hanabi_grpo.report.charts.heat_map import draw_heat_map
from hanabi_grpo.report.charts.learning_curve import learning_curve, read_metrics

__all__ = ["ColorScale", "draw_heat_map", "learning_curve", "read_metrics"]
