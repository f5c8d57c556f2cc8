"""Turn credit, the default: the episode's return, with penalties at the turn that incurred them."""

from collections.abc import Sequence
from math import hypot

from hanabi_grpo.training.estimators.arithmetic import (
    EPSILON,
    deviation,
    flatten,
    mean_of_others,
    sum_parts,
)
from hanabi_grpo.training.estimators.base import (
    NOTHING_KNOWN,
    Estimator,
    EstimatorContext,
    Pool,
    TurnValues,
)
from hanabi_grpo.types import Episode


class TurnCredit(Estimator):
    """(S_i − mean S + p_it − mean p) / σ for turn t of episode i; unscaled without σ.

    S_i is the player's return in episode i without the reward parts of single turns (`TURN_PARTS`),
    and p_it is the sum of those parts for turn t. Both means are over the other episodes of the
    group; an episode without others gets 0. A penalty counts only for the reply that incurred it
    and the tool calls before that reply in the same turn. The same holds for a debate's
    `later_rounds`, which already include what follows a reply.

    Unscaled, the expected gradient is ∇E[S] + E[Σ_t ∇E[p_t | h_t]], where h_t is what the player
    knows before its turn t: the gradient of the episode's return, plus that of each reply's own
    penalty, with histories weighted by their frequency. The baselines come from other episodes, so
    they do not change it. The gradient of E[S + Σ_t p_t] has the additional term E[Σ_t ∇log π(a_t |
    h_t) Σ_{u>t} p_u]: a reply gets no credit for the penalties of the player's later replies, which
    it may provoke, or prevent by ending the episode. If those do not depend on the reply, for
    example without any bad replies, the term is 0. `rloo` includes this term, and its noise.

    σ = sqrt(var S + var p) + ε, over episodes and over turns, divides both, so the weights of
    points and penalties (HANABI_REWARD_SCORE and the others) keep their ratio. As in GRPO, tasks
    whose returns vary little therefore weigh more.

    Source: this project; S alone is RLOO's estimator.
    """

    name = "turn"
    credit = "return of the whole episode, but only the turn's own penalties"
    compared_with = "the mean of the group's other episodes"
    source = "this project"
    pool = Pool.GROUP
    divides_by_deviation = True
    once_a_game = False

    def credits(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Return S_i + p_it, see `Estimator.credits`."""
        values: TurnValues = []
        scores = _scores(episodes, player)
        for game_scores, penalties in zip(scores, _penalties(episodes, player), strict=True):
            values.append([game_scores[0] + penalty for penalty in penalties])
        return values

    def advantages(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Compare scores and penalties with those of the other episodes, see `TurnCredit`."""
        penalties = _penalties(episodes, player)
        scores = _scores(episodes, player)
        scale = 1.0
        if self.scaled:
            scale = hypot(deviation(flatten(scores)), deviation(flatten(penalties))) + EPSILON
        advantages: TurnValues = []
        for game, own_penalties in enumerate(penalties):
            mean_score = mean_of_others(scores, game)
            mean_penalty = mean_of_others(penalties, game)
            if mean_score is None or mean_penalty is None:
                advantages.append([0.0] * len(own_penalties))
                continue
            game_values = []
            for penalty in own_penalties:
                above_others = scores[game][0] - mean_score + penalty - mean_penalty
                game_values.append(above_others / scale)
            advantages.append(game_values)
        return advantages


def _penalties(episodes: Sequence[Episode], player: int) -> TurnValues:
    """Return p_it for each of the player's turns.

    A tool call is charged what its turn costs from the call on: the penalty of the reply that ends
    the turn and, with HANABI_KL_IN=reward, the KL cost of the call itself and of later calls.
    """
    penalties: TurnValues = []
    for episode in episodes:
        last_first: list[float] = []
        for turn in reversed(episode.trajectory(player)):
            penalty = sum_parts(turn, player, of_turn=True)
            if turn.is_call and last_first:
                penalty += last_first[-1]
            last_first.append(penalty)
        penalties.append(last_first[::-1])
    return penalties


def _scores(episodes: Sequence[Episode], player: int) -> TurnValues:
    """Return [S_i] for each episode in which the player had a turn, and [] for the others."""
    scores: TurnValues = []
    for episode in episodes:
        if not episode.trajectory(player):
            scores.append([])
            continue
        parts = [sum_parts(turn, player, of_turn=False) for turn in episode.turns]
        scores.append([sum(parts)])
    return scores
