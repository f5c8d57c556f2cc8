"""Return-to-go of a turn, compared with all turns of the step."""

from collections.abc import Sequence

from hanabi_grpo.training.estimators.base import (
    NOTHING_KNOWN,
    Estimator,
    EstimatorContext,
    Pool,
    TurnValues,
)
from hanabi_grpo.training.estimators.returns import returns_to_go
from hanabi_grpo.types import Episode


class ReturnToGo(Estimator):
    """G_it − mean G for turn t of episode i; scaled (G_it − mean G) / (std G + ε).

    G_it is the sum of the player's rewards from its turn t on, including that turn, no matter who
    moved. Mean and standard deviation are over all turns of this player in the step. This is GAE
    with λ = 1 and that mean instead of a value function.

    Source: MARSHAL (arXiv 2510.15414), turn-level estimator, normalized over the batch for each
    agent; not divided.
    """

    name = "return_to_go"
    credit = "return-to-go of the turn"
    compared_with = "the mean over the step's turns"
    source = "MARSHAL, arXiv 2510.15414"
    pool = Pool.STEP
    divides_by_deviation = False
    once_a_game = False
    discounts = True

    def credits(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Return G_it, see `Estimator.credits`."""
        return returns_to_go(episodes, player, self.options.gamma)
