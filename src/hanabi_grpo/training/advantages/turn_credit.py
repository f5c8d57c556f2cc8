"""The game for every turn, and each turn's own penalties for that turn alone."""

from collections.abc import Sequence

from hanabi_grpo.training.advantages.estimator import Estimator, Values, centred, playing, spread_over_turns
from hanabi_grpo.types import REPLY_PARTS, Episode, Turn

PENALTY_WEIGHT = 2.0


def turn_credit(episodes: Sequence[Episode], player: int, scaled: bool) -> Values:
    """Return (S_i − mean S) / (std S + ε) + 2·r_it for turn t of game i; unscaled S_i − mean S + 2·r_it.

    S_i is the player's return of game i without the parts for replies (`REPLY_PARTS`), and r_it the sum of those for
    turn t. A penalty reaches the reply
    that earned it and no other; the factor makes an illegal reply (−0.5) weigh as much as a game one standard deviation
    below the mean. Scaled, a weight on all of S is divided out again, so HANABI_REWARD_SCORE is refused then; unscaled
    it scales the first term. Source: this project; the first term is that of GRPO (see `group_relative`).
    """
    games = playing(episodes, player)
    scores = [sum(_split(one, player)[0] for one in episodes[index].turns) for index in games]
    team = spread_over_turns(episodes, player, games, centred(scores, scaled))
    return [
        [
            value + PENALTY_WEIGHT * _split(one, player)[1]
            for value, one in zip(values, episode.trajectory(player), strict=True)
        ]
        for values, episode in zip(team, episodes, strict=True)
    ]


def _split(one: Turn, player: int) -> tuple[float, float]:
    """Return what a turn pays a player for the game, and for its reply."""
    parts = one.rewards[player].items()
    return (
        sum(value for part, value in parts if part not in REPLY_PARTS),
        sum(value for part, value in parts if part in REPLY_PARTS),
    )


turn = Estimator(name="turn", formula=turn_credit, pool="group", scaled=True)
