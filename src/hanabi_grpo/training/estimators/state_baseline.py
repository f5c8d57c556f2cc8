"""State baseline: what came from a turn on, beside the other games with the same history."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hanabi_grpo.training.estimators.arithmetic import (
    divisor,
    flatten,
    mean_of_others,
)
from hanabi_grpo.training.estimators.base import (
    NOTHING_KNOWN,
    Estimator,
    EstimatorContext,
    Pool,
    TurnValues,
)
from hanabi_grpo.training.estimators.returns import returns_to_go
from hanabi_grpo.types import Episode

_ROOT = 0
"""Number of the empty history, before a conversation's first message."""
_SAME_STATE = 0
_SAME_NUMBER = 1
_ANY_TURN = 2


class _Peers(NamedTuple):
    """Turns that a turn may be compared with: of the same state, of the same number, or all."""

    kind: int
    number: int


class StateBaseline(Estimator):
    """G_it − mean G for turn t of game i, the mean over turns of the same state.

    Scaled, it is divided by (std G + ε), the deviation over all turns of the group.

    G_it is what the player receives from its turn t on. A state is what the
    player has seen and said before the turn, token by token: the conversation of the whole game so
    far, or of HANABI_MEMORY. The mean is over the turns of *other* games of the group that met the
    state; where none did, over those with the same number among their game's turns, then over all.
    So the gradient is unbiased while nothing is divided. The game's own turns stay out: with
    HANABI_MEMORY=turn it may meet a state twice, and what came after the one depends on the other.

    Source: GiGPO (arXiv 2505.10978), which adds this to the game's advantage, discounts, and has
    the game in the mean.
    """

    name = "state_baseline"
    credit = "what came from the turn on"
    compared_with = "its group: the mean of the other games that met the same history"
    source = "GiGPO's step term, arXiv 2505.10978"
    pool = Pool.GROUP
    divides_by_deviation = False
    once_a_game = False
    discounts = True
    credits_within_group = True

    def credits(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Return what each turn is above its baseline, undivided, see `Estimator.credits`."""
        return self._above_baseline(episodes, player, is_divided=False)

    def advantages(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Compare each return-to-go with the nearest turns of other games, see the class."""
        return self._above_baseline(episodes, player, is_divided=self.scaled)

    def _above_baseline(
        self, episodes: Sequence[Episode], player: int, *, is_divided: bool
    ) -> TurnValues:
        returns = returns_to_go(episodes, player, self.options.gamma)
        peers = _peers_of_turns(episodes, player)

        # What each kind of peers received, game by game, so that a game can leave itself out.
        returns_of: dict[_Peers, TurnValues] = defaultdict(lambda: [[] for _ in episodes])
        for game, game_returns in enumerate(returns):
            for value, kinds in zip(game_returns, peers[game], strict=True):
                for kind in kinds:
                    returns_of[kind][game].append(value)

        scale = divisor(flatten(returns), is_divided)
        advantages: TurnValues = []
        for game, game_returns in enumerate(returns):
            game_values = []
            for value, kinds in zip(game_returns, peers[game], strict=True):
                baseline = _nearest_mean(returns_of, kinds, game)
                if baseline is None:
                    baseline = value
                game_values.append((value - baseline) / scale)
            advantages.append(game_values)
        return advantages


def _nearest_mean(
    returns_of: Mapping[_Peers, TurnValues], kinds: Sequence[_Peers], game: int
) -> float | None:
    """Return the mean of the nearest peers of a turn in other games; None where it has none.

    Args:
        returns_of: What each kind of peers received, game by game.
        kinds: Of the turn, the nearest first.
        game: Number of the turn's own game, which is left out.
    """
    for kind in kinds:
        mean = mean_of_others(returns_of[kind], game)
        if mean is not None:
            return mean
    return None


def _peers_of_turns(episodes: Sequence[Episode], player: int) -> list[list[list[_Peers]]]:
    """Return per game and own turn the peers to compare it with, the nearest first."""
    history_numbers: dict[tuple[int, object], int] = {}
    peers = []
    for episode in episodes:
        states = number_states(episode, player, history_numbers)
        game_peers = []
        for number, state in enumerate(states):
            turn_peers = [
                _Peers(_SAME_STATE, state),
                _Peers(_SAME_NUMBER, number),
                _Peers(_ANY_TURN, 0),
            ]
            game_peers.append(turn_peers)
        peers.append(game_peers)
    return peers


def number_states(
    episode: Episode, player: int, history_numbers: dict[tuple[int, object], int]
) -> list[int]:
    """Return a number for the state of each own turn, equal where all that was said is equal.

    Args:
        episode: One game.
        player: Number of the seat.
        history_numbers: Grows. (number of the history before, tokens of the next message, or for a
            script its text) -> number of the history with it. It is the tree of all
            conversations, so that none is kept or compared as a whole.
    """
    states = []
    history = _ROOT
    for turn in episode.trajectory(player):
        if turn.fresh:
            history = _ROOT
        asked = (history, turn.prompt_ids or turn.prompt)
        history = history_numbers.setdefault(asked, len(history_numbers) + 1)
        states.append(history)
        answered = (history, turn.reply_ids or turn.reply)
        history = history_numbers.setdefault(answered, len(history_numbers) + 1)
    return states
