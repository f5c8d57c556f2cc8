"""The team's game for every turn, and each turn's own penalties for that turn alone."""

from collections.abc import Sequence

from hanabi_grpo.training.advantages.estimator import Estimator, Values, centred, playing, spread_over_turns
from hanabi_grpo.types import Episode

PENALTY_WEIGHT = 2.0


def turn_credit(episodes: Sequence[Episode], player: int, scaled: bool) -> Values:
    """Return (S_i − mean S) / (std S + ε) + 2·r_it for turn t of game i; unscaled S_i − mean S + 2·r_it.

    S_i is the team's return of game i and r_it what only this player received for turn t. A penalty reaches the reply
    that earned it and no other; the factor makes an illegal reply (−0.5) weigh as much as a game one standard deviation
    below the mean. Scaled, a weight on all of S is divided out again, so HANABI_REWARD_SCORE is refused then; unscaled
    it scales the first term. Source: this project; the first term is that of GRPO (see `group_relative`).
    """
    games = playing(episodes, player)
    scores = [sum(one.team_reward for one in episodes[index].turns) for index in games]
    team = spread_over_turns(episodes, player, games, centred(scores, scaled))
    return [
        [value + PENALTY_WEIGHT * one.own_reward for value, one in zip(values, episode.trajectory(player), strict=True)]
        for values, episode in zip(team, episodes, strict=True)
    ]


turn = Estimator(name="turn", formula=turn_credit, pool="group", scaled=True)
