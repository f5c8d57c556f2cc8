"""RLOO: the episode's return compared with the mean of the group's other episodes."""

from collections.abc import Sequence

from hanabi_grpo.training.estimators.arithmetic import compare_games, divisor
from hanabi_grpo.training.estimators.base import (
    NOTHING_KNOWN,
    Estimator,
    EstimatorContext,
    Pool,
    TurnValues,
)
from hanabi_grpo.types import Episode


class Rloo(Estimator):
    """R_i − 1/(K − 1) Σ_{j≠i} R_j for every turn of episode i of K; scaled, over (std R + ε).

    This is K/(K − 1) times R_i − mean R, and unbiased as long as nothing is divided. An episode
    without others gets 0.

    Source: Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; for language
    models Ahmadian et al. (arXiv 2402.14740), the RLOO estimator.
    """

    name = "rloo"
    credit = "return of the whole episode"
    compared_with = "the mean of the group's other episodes"
    source = "RLOO, arXiv 2402.14740"
    pool = Pool.GROUP
    divides_by_deviation = False
    discounts = True

    def advantages(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Compare each return with the mean of the others, see `Estimator.advantages`."""

        def compare(returns: Sequence[float]) -> list[float]:
            num_others = len(returns) - 1
            if num_others == 0:
                return [0.0]
            scale = divisor(returns, self.scaled)
            values = []
            for game, own_return in enumerate(returns):
                # Not the total minus the own return: that would cancel digits of large returns.
                others = sum(returns[:game]) + sum(returns[game + 1 :])
                values.append((own_return - others / num_others) / scale)
            return values

        return compare_games(episodes, player, compare, self.game_return)
