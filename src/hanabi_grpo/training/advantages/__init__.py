"""Advantage estimators: how much better a turn was than its alternatives, for one player at a time.

`HANABI_ADVANTAGE` names one; each is a pure function in a file of its own, with formula and source:

| name | file | credit | compared with |
|---|---|---|---|
| `grpo` | `group_relative` | the whole game's return | its group: mean, standard deviation |
| `turn` | `turn_credit` | the team's game, and the turn's own penalties | its group: mean, standard deviation |
| `rloo` | `leave_one_out` | the whole game's return | the other games of its group: mean |
| `return_to_go` | `returns_to_go` | what came from the turn on | all turns of the step: mean |
| `reinforce_pp` | `batch_normalised` | the whole game's return | all turns of the step: mean, standard deviation |
| `baseline` | `moving_baseline` | the whole game's return | earlier steps: moving mean |

Under HANABI_GROUP=deal a group's games are of the same deal, so its baseline is about play and not about luck. A
player that had no turn in a game is absent from that game's baseline instead of entering it as zero. `step` applies an
estimator to a step, `loss_unit` says what has equal weight in the loss.

GAE with a value head is left out. It needs a critic for each player, with an optimizer, a learning rate and a state in
checkpoints of its own, and its error is a bias where λ < 1; a Hanabi game has few turns and a group has many games of
the same deal, so a mean over games is at hand. GAE with γ = λ = 1 and a mean as its value is `return_to_go`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from hanabi_grpo.training.advantages.batch_normalised import reinforce_pp
from hanabi_grpo.training.advantages.estimator import Estimator
from hanabi_grpo.training.advantages.group_relative import grpo
from hanabi_grpo.training.advantages.leave_one_out import rloo
from hanabi_grpo.training.advantages.moving_baseline import moving_baseline
from hanabi_grpo.training.advantages.returns_to_go import return_to_go
from hanabi_grpo.training.advantages.turn_credit import turn

__all__ = ["ESTIMATORS", "Estimator", "choose_estimator", "grpo", "reinforce_pp", "return_to_go", "rloo", "turn"]

ESTIMATORS: dict[str, Estimator] = {
    one.name: one for one in (grpo, turn, return_to_go, rloo, reinforce_pp, moving_baseline({}))
}
"""By name; `baseline` without any earlier step."""


def choose_estimator(
    name: str, scale: Literal["std", "none"] | None = None, baselines: Mapping[str, float] | None = None
) -> Estimator:
    """Return the estimator of a run.

    Args:
        name: One of ESTIMATORS.
        scale: Whether to divide by the standard deviation; None: as the estimator's source does.
        baselines: Of `moving_baseline.moved`, for the estimator `baseline`.
    """
    estimator = moving_baseline(baselines or {}) if name == "baseline" else ESTIMATORS[name]
    return estimator if scale is None else replace(estimator, scaled=scale == "std")
