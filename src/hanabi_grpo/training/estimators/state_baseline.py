"""State baseline: the return-to-go compared with other episodes with the same history."""

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
    """Turns that a turn may be compared with: same state, same number, or all."""

    kind: int
    number: int


class StateBaseline(Estimator):
    """G_it − mean G for turn t of episode i, the mean over turns in the same state.

    Scaled, it is divided by (std G + ε), the standard deviation over all turns of the group.

    G_it is the player's return-to-go at its turn t. A state is everything that the player has seen
    and said before the turn, token by token: the conversation of the whole episode so far, or the
    part kept by HANABI_MEMORY. The mean is over the turns of *other* episodes of the group that
    reached the state. If none did, it is over the other episodes' turns with the same number, then
    over all their turns. The gradient is therefore unbiased as long as nothing is divided. The
    episode's own turns are excluded: with HANABI_MEMORY=turn, an episode may reach a state twice,
    and the two returns-to-go are not independent.

    Source: GiGPO (arXiv 2505.10978), which adds this term to the episode's advantage, discounts,
    and includes the episode itself in the mean.
    """

    name = "state_baseline"
    credit = "return-to-go of the turn"
    compared_with = "the mean of the group's other episodes with the same history"
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
        """Return G minus its baseline for each turn, undivided, see `Estimator.credits`."""
        return self._above_baseline(episodes, player, is_divided=False)

    def advantages(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Compare each return-to-go with the nearest turns of other episodes, see the class."""
        return self._above_baseline(episodes, player, is_divided=self.scaled)

    def _above_baseline(
        self, episodes: Sequence[Episode], player: int, *, is_divided: bool
    ) -> TurnValues:
        returns = returns_to_go(episodes, player, self.options.gamma)
        peers = _peers_of_turns(episodes, player)

        # The returns of each kind of peers, episode by episode, so that an episode can leave itself
        # out.
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
    """Return the mean over a turn's nearest peers in other episodes; None if it has no peers.

    Args:
        returns_of: The returns of each kind of peers, episode by episode.
        kinds: The turn's kinds of peers, the nearest first.
        game: Number of the turn's own episode, which is left out.
    """
    for kind in kinds:
        mean = mean_of_others(returns_of[kind], game)
        if mean is not None:
            return mean
    return None


def _peers_of_turns(episodes: Sequence[Episode], player: int) -> list[list[list[_Peers]]]:
    """Return each turn's peers per episode, the nearest first."""
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
    """Return a number for the state at each of a player's turns; equal conversations share one.

    Args:
        episode: The episode.
        player: Number of the seat.
        history_numbers: (number of the history so far, tokens of the next message, or its text for
            a script) -> number of the history including that message. New entries are added. It is
            the tree of all conversations, so that none is stored or compared as a whole.
    """
    states = []
    history = _ROOT
    for turn in episode.trajectory(player):
        if turn.fresh:
            history = _ROOT
        prompt_ids = turn.prompt_ids
        reply_ids = turn.reply_ids
        if turn.lesson is not None and turn.lesson.plays:
            # The reply of a teacher is at the end of the prompt.
            reply_ids = turn.lesson.reply_ids
            prompt_ids = prompt_ids[: -len(reply_ids)]
        asked = (history, prompt_ids or turn.prompt)
        history = history_numbers.setdefault(asked, len(history_numbers) + 1)
        states.append(history)
        answered = (history, reply_ids or turn.reply)
        history = history_numbers.setdefault(answered, len(history_numbers) + 1)
    return states
