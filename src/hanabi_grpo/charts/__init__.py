"""Pictures: the learning curve of a run, and the heat map of a matrix of scores.

matplotlib is imported when something is drawn, not before; `color_scale` does without it.
"""

from hanabi_grpo.charts.color_scale import ColorScale
from hanabi_grpo.charts.heat_map import draw_heat_map
from hanabi_grpo.charts.learning_curve import learning_curve, read_metrics, trailing_mean

__all__ = ["ColorScale", "draw_heat_map", "learning_curve", "read_metrics", "trailing_mean"]
