"""Training runs side by side: arms of several seeds each, their learning curves, held-out scores and differences.

- `words`: arms and reference lines as typed, and the folders that they name.
- `runs`: what a run folder holds: scores by step, time, preset, evaluations, settings.
- `seeds`: means over training seeds, their t intervals and differences.
- `curves`: one line with a band per arm.
- `held_out`: evaluations of all seeds of an arm, with errors over seeds and over deals.
- `conditions`: in which settings runs and arms differ.
- `tables`: everything as tables, notes and JSON.
"""
