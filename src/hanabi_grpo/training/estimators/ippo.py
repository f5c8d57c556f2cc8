"""IPPO: the return-to-go of a turn compared with the value from the player's own critic."""

from collections.abc import Mapping, Sequence
from functools import partial

from hanabi_grpo.training.estimators.arithmetic import (
    lambda_advantages,
    sum_parts,
    token_advantages,
)
from hanabi_grpo.training.estimators.base import (
    NOTHING_KNOWN,
    Estimator,
    EstimatorContext,
    Learned,
    Pool,
    TurnValues,
)
from hanabi_grpo.training.estimators.returns import returns_to_go
from hanabi_grpo.types import Episode


class Ippo(Estimator):
    """A_it − mean A for turn t of episode i, A by GAE; scaled, divided by (std A + ε).

    With HANABI_GAE_UNIT=token, t runs over the tokens of the player's replies (`token_advantages`).
    Otherwise A_it comes from `lambda_advantages` along the player's chain of turns. HANABI_GAMMA
    discounts along that chain, which in a team game consists of all turns. There the player's own
    penalties are not part of the chain: their return-to-go, without a baseline, is added. Mean and
    standard deviation are over all turns of this player in the step.

    An imperfect critic (`training.learned.critic`) introduces bias if λ < 1. Along a team's chain,
    even a perfect critic does, as explained there.

    Source: independent PPO (arXiv 2011.09533) with generalized advantage estimation (arXiv
    1506.02438); turns instead of tokens as in MARSHAL (arXiv 2510.15414).
    """

    name = "ippo"
    credit = "λ-return from the turn on"
    compared_with = "the value from the player's critic, then the mean over the step's turns"
    source = "independent PPO, arXiv 2011.09533; GAE, arXiv 1506.02438"
    pool = Pool.STEP
    divides_by_deviation = True
    needs = Learned.CRITIC
    once_a_game = False
    discounts = True

    def credits(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Return A_it, see `Estimator.credits`."""
        values: TurnValues = []
        for episode in episodes:
            tokens = context.values.token_chain(episode, player)
            if tokens is not None:
                values.append(self._token_credits(episode, player, tokens))
                continue
            values.append(self._turn_credits(episode, player, context))
        return values

    def _turn_credits(
        self, episode: Episode, player: int, context: EstimatorContext
    ) -> list[float]:
        """Return the advantage of each turn of the player, in order."""
        gamma = self.options.gamma
        of_team = context.values.is_team_chain(episode)
        by_turn = lambda_advantages(
            episode,
            player,
            context.values.chain(episode, player),
            self.options.gae_lambda,
            gamma,
            of_team=of_team,
        )
        own_turns = [number for number, turn in enumerate(episode.turns) if turn.player == player]
        credits = [by_turn.get(number, 0.0) for number in own_turns]
        if not of_team:
            return credits
        [own_parts] = returns_to_go(
            [episode], player, gamma, reward_of=partial(sum_parts, of_turn=True)
        )
        return [credit + own for credit, own in zip(credits, own_parts, strict=True)]

    def _token_credits(
        self, episode: Episode, player: int, tokens: Mapping[int, Sequence[float]]
    ) -> list[float]:
        """Return the advantage of each token of the player's replies, in order."""
        by_turn = token_advantages(
            episode, player, tokens, self.options.gae_lambda, self.options.gamma
        )
        credits: list[float] = []
        for number, turn in enumerate(episode.turns):
            if turn.player == player:
                credits.extend(by_turn.get(number, [0.0] * len(turn.reply_ids)))
        return credits
