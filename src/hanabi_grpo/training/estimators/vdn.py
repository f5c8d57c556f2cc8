"""VDN: the player's learned share of the team's return, a sum of shares. Experimental."""

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
    """(q_i − mean q) / (std q + ε) for every turn of episode i; unscaled q_i − mean q.

    q_i is the player's learned share of the team's return in episode i, plus the penalties of the
    player's replies.

    By default it is divided by the standard deviation: a share is smaller than the return, and more
    so with more players, so that HANABI_ENTROPY_BONUS would outweigh it.

    The heads that learn the shares (`training.learned.credit`) introduce bias as long as they are
    imperfect.

    Source: this project; the shares are those of VDN (arXiv 1706.05296).
    """

    name = "vdn"
    credit = "the player's learned share of the team's return (a sum of shares)"
    compared_with = "the group's mean"
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
        """Return q_i for every turn of episode i, see `Estimator.credits`."""

        def keep(shares: Sequence[float]) -> Sequence[float]:
            return shares

        return compare_games(episodes, player, keep, context.values.share)
