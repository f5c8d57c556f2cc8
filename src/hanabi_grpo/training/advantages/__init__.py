"""Advantages: how much better a turn was than its alternatives, for one player at a time.

`HANABI_ADVANTAGE` names an estimator of `estimators`; formula and source stand there:

| name | credit | compared with |
|---|---|---|
| `grpo` | the whole game's return | its group: mean, standard deviation |
| `turn` | the team's game, and the turn's own penalties | its group: mean, standard deviation |
| `rloo` | the whole game's return | the other games of its group: mean |
| `return_to_go` | what came from the turn on | all turns of the step: mean |
| `reinforce_pp` | the whole game's return | all turns of the step: mean, standard deviation |
| `baseline` | the whole game's return | earlier steps: moving mean |

Under HANABI_GROUP=deal a group's games are of the same deal, so its baseline is about play and not about luck. `step`
applies an estimator to a step and says what has equal weight in the loss; `recorded` does it for recorded games.

GAE with a value head is left out. It needs a critic for each player, with an optimizer and a state in checkpoints of
its own, and its error is a bias where λ < 1; games have few turns and a group has many games of the same deal, so a
mean over games is at hand. GAE with γ = λ = 1 and a mean as its value is `return_to_go`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from hanabi_grpo.training.advantages.estimators import (
    Estimator,
    grpo,
    moving_baseline,
    reinforce_pp,
    return_to_go,
    rloo,
    turn,
)

__all__ = ["ESTIMATORS", "Estimator", "choose_estimator"]

ESTIMATORS = {one.name: one for one in (grpo, turn, return_to_go, rloo, reinforce_pp, moving_baseline({}))}
"""By name; `baseline` without any earlier step."""


def choose_estimator(
    name: str, scale: Literal["std", "none"] | None = None, baselines: Mapping[str, float] | None = None
) -> Estimator:
    """Return the estimator of a run.

    Args:
        name: One of ESTIMATORS.
        scale: Whether to divide by the standard deviation; None: as the estimator's source does.
        baselines: Of `estimators.moved`, for the estimator `baseline`.
    """
    estimator = moving_baseline(baselines or {}) if name == "baseline" else ESTIMATORS[name]
    return estimator if scale is None else replace(estimator, scaled=scale == "std")
