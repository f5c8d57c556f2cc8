"""Returns: what a player receives in a game, or from a turn on, discounted over its own turns.

    G_k = r_k + γ G_{k+1},   R = r_0 + G_1

r_k is what the player receives from its k-th turn on and before its next one, whoever moved; r_0
what it received before its first. γ is HANABI_GAMMA, counted over the player's own turns, since
turns of others, and how many there are, are none of its choices. A call of a tool has the G_k of
the turn that it is a part of. At γ = 1 these are plain sums.
"""

from collections.abc import Sequence

from hanabi_grpo.training.estimators.arithmetic import TurnValues
from hanabi_grpo.types import Episode


def returns_to_go(episodes: Sequence[Episode], player: int, gamma: float = 1.0) -> TurnValues:
    """Return G_k of each own turn of a player: what it receives from that turn on.

    Args:
        episodes: The games.
        player: Number of the seat.
        gamma: HANABI_GAMMA.
    """
    returns: TurnValues = []
    for episode in episodes:
        total = 0.0
        last_first = []
        for turn in reversed(episode.turns):
            total += turn.reward(player)
            if turn.player == player:
                last_first.append(total)
                if not turn.follows_call:
                    # What came before this turn is not later than itself.
                    total *= gamma
        returns.append(last_first[::-1])
    return returns


def discounted_return(episode: Episode, player: int, gamma: float = 1.0) -> float:
    """Return R of a player: r_0 and the return from its first turn on.

    Args:
        episode: The game.
        player: Number of the seat; without a turn it has the plain sum.
        gamma: HANABI_GAMMA.
    """
    if gamma == 1:
        return episode.reward(player)
    [from_turns] = returns_to_go([episode], player, gamma)
    before = 0.0
    for turn in episode.turns:
        if turn.player == player:
            return before + from_turns[0]
        before += turn.reward(player)
    return before
