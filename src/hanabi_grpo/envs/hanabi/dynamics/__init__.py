"""How a team's play changes while it learns, and when that goes wrong.

Map:
    figures     how a team plays in one step: scores, hints, moves, replies
    information mutual information above chance
    table       the alarms: figure, threshold, meaning, what to do
    watch       AlarmWatch: raises an alarm once, says when it is over
    history     the rows of a run's metrics.jsonl
"""

from hanabi_grpo.envs.hanabi.dynamics.figures import dynamics_figures
from hanabi_grpo.envs.hanabi.dynamics.history import number, read_history
from hanabi_grpo.envs.hanabi.dynamics.table import ALARMS, Alarm
from hanabi_grpo.envs.hanabi.dynamics.watch import AlarmChange, AlarmWatch, Reading

__all__ = ["ALARMS", "Alarm", "AlarmChange", "AlarmWatch", "Reading", "dynamics_figures", "number", "read_history"]
