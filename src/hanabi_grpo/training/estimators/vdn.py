"""VDN: the player's learned share of the team's return, where shares add up. Experimental."""

from collections.abc import Sequence

from hanabi_grpo.training.estimators.arithmetic import compare_games
from hanabi_grpo.training.estimators.base import (
    NOTHING_KNOWN,
    Estimator,
    EstimatorContext,
    Learned,
    Pool,
    TurnValues,
)
from hanabi_grpo.types import Episode


class Vdn(Estimator):
    """(q_i − mean q) / (std q + ε) for every turn of game i; unscaled q_i − mean q.

    q_i is the player's learned share of what game i paid the team, and the penalties of its
    replies.

    It is divided by default: a share is smaller than the return, the more so the more players there
    are, and HANABI_ENTROPY_BONUS would outweigh it.

    The heads that learn the shares (`training.learned.credit`) are always a bias while they are
    wrong.

    Source: this project; the shares are those of VDN (arXiv 1706.05296).
    """

    name = "vdn"
    credit = "the player's learned share of the team's return (a sum of shares)"
    compared_with = "its group: the mean"
    source = "shares of VDN, arXiv 1706.05296"
    pool = Pool.GROUP
    divides_by_deviation = True
    needs = Learned.CREDIT_SUM
    is_experimental = True

    def credits(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Return q_i for every turn of game i, see `Estimator.credits`."""

        def keep(shares: Sequence[float]) -> Sequence[float]:
            return shares

        return compare_games(episodes, player, keep, context.values.share)
