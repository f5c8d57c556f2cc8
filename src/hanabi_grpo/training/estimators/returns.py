"""Returns of an episode, and returns-to-go of a turn, discounted over the player's own turns.

    G_k = r_k + γ G_{k+1},   R = r_0 + G_1

r_k is the player's reward from its k-th turn until before its next turn, no matter who moved; r_0
is its reward before its first turn. γ is HANABI_GAMMA, applied once per turn of the player, since
the player does not choose the turns of others or their number. A tool call has the G_k of the turn
that it belongs to. With γ = 1, these are plain sums.
"""

from collections.abc import Callable, Sequence

from hanabi_grpo.training.estimators.arithmetic import TurnValues
from hanabi_grpo.types import Episode, Turn


def returns_to_go(
    episodes: Sequence[Episode],
    player: int,
    gamma: float = 1.0,
    *,
    reward_of: Callable[[Turn, int], float] = Turn.reward,
) -> TurnValues:
    """Return G_k of each of a player's turns: its discounted reward from that turn on.

    Args:
        episodes: The episodes.
        player: Number of the seat.
        gamma: HANABI_GAMMA.
        reward_of: (turn, player) -> the reward that counts; by default all of it.
    """
    returns: TurnValues = []
    for episode in episodes:
        total = 0.0
        last_first = []
        for turn in reversed(episode.turns):
            total += reward_of(turn, player)
            if turn.player == player:
                last_first.append(total)
                if not turn.follows_call:
                    # A tool call and the reply after it are one turn, discounted once.
                    total *= gamma
        returns.append(last_first[::-1])
    return returns


def discounted_return(episode: Episode, player: int, gamma: float = 1.0) -> float:
    """Return R of a player: r_0 plus the return-to-go of its first turn.

    Args:
        episode: The episode.
        player: Number of the seat; without any turn, its return is the plain sum.
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
