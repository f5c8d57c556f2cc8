"""A lower bound on a best responder's winnings, for games too large for the exact figure.

One responder learns for each seat, by Monte Carlo tree search over its own information states
(information set MCTS, Cowling, Powley and Whitehouse 2012) while fixed players occupy the other
seats, which makes it a single-agent search. Whatever the responder has learned, its mean return in
new games is an unbiased estimate of what one strategy wins, and thus of a lower bound on
exploitability (approximate exploitability, Timbers et al., arXiv 2004.09677).

Actions are selected by UCB1. An action's mean is over the games that ended after it and the values
of the positions that followed. A position's value is the largest mean of its actions that were
tried often enough. If there are none yet, it is the mean over the position's visits, because the
largest of a few noisy means would be far too high. Outside the tree, the responder plays like the
lineup's own player in its seat, so it only has to learn where to deviate.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.openspiel.exploitability import check_zero_sum
from hanabi_grpo.envs.openspiel.game import OpenSpielConfig, information
from hanabi_grpo.envs.openspiel.rules import facts, load
from hanabi_grpo.errors import SettingsError

Chances = Callable[[Sequence[Any]], Sequence[Sequence[float]]]
"""Returns, per OpenSpiel state, the acting player's probabilities for `state.legal_actions()`."""
Progress = Callable[[int], None]
"""Called with the number of games played since the last call."""

MOST_TURNS = 1000
"""Maximum number of turns of a game that can be searched; also the depth of the tree."""
_AT_ONCE = 64
"""Number of concurrent games, so that probabilities are requested in batches."""
_TRIED_ENOUGH = 8
"""Minimum number of tries for an action's mean to be reliable.

In Leduc poker and Connect Four (4 x 5), 8 and 30 did better than 0, 100, or using only means.
"""

_Game = Generator[Any, Sequence[float], None]
"""Yields states and receives the probabilities of their legal actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedResponse:
    """Results of trained responders in new games, in units of the game's returns."""

    returns: tuple[float, ...]
    """Mean return of the responder in each seat."""
    standard_errors: tuple[float, ...]
    """Standard errors of `returns` over the new games."""
    positions: tuple[int, ...]
    """Number of positions in the tree of each seat."""

    @property
    def bound(self) -> float:
        """Estimate of a lower bound on exploitability: the mean over seats.

        In a zero-sum game the lineup's own returns cancel out of NashConv.
        """
        return fmean(self.returns)

    @property
    def standard_error(self) -> float:
        """Standard error of `bound`."""
        return math.hypot(*self.standard_errors) / len(self.standard_errors)


@dataclass(slots=True)
class _Action:
    """Statistics of an action in a position of the tree."""

    num_tried: int = 0
    total_at_end: float = 0.0
    """Sum of the returns of the games that ended before the responder's next turn."""
    followers: Counter[str] = field(default_factory=Counter)
    """The responder's next positions, with the number of times that each followed."""


@dataclass(slots=True)
class _Position:
    """An information state of the responder."""

    actions: tuple[_Action, ...]
    num_visits: int = 0
    value: float = 0.0


def uniform_chances(states: Sequence[Any]) -> list[list[float]]:
    """Return equal probabilities for all legal actions; see `Chances`."""
    rows = []
    for state in states:
        num_actions = len(state.legal_actions())
        rows.append([1 / num_actions] * num_actions)
    return rows


def check_searchable(setup: Setup[OpenSpielConfig]) -> None:
    """Raise an error for games that `learn_response` cannot search.

    Raises:
        SettingsError: The game is not a two-player zero-sum game of OpenSpiel, or it may have more
            than `MOST_TURNS` turns.
    """
    check_zero_sum(setup)
    longest = load(setup.config.game()).max_game_length()
    if longest > MOST_TURNS:
        raise SettingsError(
            f"exploit --learned of {setup.spec.preset}: a game may have {longest} turns; at most "
            f"{MOST_TURNS} can be searched. Choose a shorter game."
        )


def learn_response(
    setup: Setup[OpenSpielConfig],
    chances: Chances,
    *,
    num_games: int,
    num_tests: int,
    seed: int = 0,
    progress: Progress | None = None,
) -> LearnedResponse:
    """Train a responder for each seat, and return what the responders win in new games.

    Args:
        setup: A two-player zero-sum game of OpenSpiel.
        chances: The policies of the lineup, in both seats.
        num_games: Number of training games per responder.
        num_tests: Number of new games per responder, at least 2.
        seed: Seed of chance events and of samples from `chances`.
        progress: Called as games are played.

    Raises:
        SettingsError: See `check_searchable`.
    """
    check_searchable(setup)
    returns = []
    standard_errors = []
    positions = []
    for player in range(setup.spec.num_players):
        responder = _Responder(setup, player)
        # Learning and testing each have one stream for chance, moves and exploration.
        learning = random.Random(f"learn {seed} {player}")
        testing = random.Random(f"test {seed} {player}")
        _play((responder.learn(learning) for _ in range(num_games)), chances, progress)
        won: list[float] = []
        _play((responder.test(testing, won) for _ in range(num_tests)), chances, progress)
        returns.append(fmean(won))
        standard_errors.append(stdev(won) / math.sqrt(num_tests))
        positions.append(len(responder.tree))
    return LearnedResponse(
        returns=tuple(returns),
        standard_errors=tuple(standard_errors),
        positions=tuple(positions),
    )


def _play(games: Iterator[_Game], chances: Chances, progress: Progress | None) -> None:
    """Play games, `_AT_ONCE` at a time."""
    in_play: list[tuple[_Game, Any]] = []
    while True:
        started = list(itertools.islice(games, _AT_ONCE - len(in_play)))
        waiting = [(game, next(game, None)) for game in started]
        if in_play:
            answers = chances([state for _, state in in_play])
            for (game, _), answer in zip(in_play, answers, strict=True):
                waiting.append((game, _next_state(game, answer)))
        if not waiting:
            return
        in_play = [(game, state) for game, state in waiting if state is not None]
        if progress is not None:
            progress(len(waiting) - len(in_play))


def _next_state(game: _Game, answer: Sequence[float]) -> Any:
    """Return the state in which a game waits next, or None if it is over."""
    try:
        return game.send(answer)
    except StopIteration:
        return None


class _Responder:
    """Learns the best actions of one seat."""

    def __init__(self, setup: Setup[OpenSpielConfig], player: int) -> None:
        """Start with an empty tree."""
        self.player = player
        self.facts = facts(setup.config.game())
        # UCB1 assumes returns between 0 and 1; scale the bonus with the range of returns.
        self.exploration = (self.facts.game.max_utility() - self.facts.game.min_utility()) / 2
        self.tree: dict[str, _Position] = {}

    def learn(self, rng: random.Random) -> _Game:
        """Play a game and learn from it."""
        state = self.facts.game.new_initial_state()
        path: list[tuple[str, int]] = []
        is_in_tree = True
        while not state.is_terminal():
            if state.is_chance_node():
                _let_chance_act(state, rng)
                continue
            if state.current_player() != self.player or not is_in_tree:
                yield from _act(state, rng)
                continue
            key = self._key(state)
            position = self.tree.get(key)
            if position is None:
                # Each game adds one position; from here on, the lineup's own player plays.
                actions = tuple(_Action() for _ in state.legal_actions())
                self.tree[key] = _Position(actions=actions)
                is_in_tree = False
                path.append((key, (yield from _act(state, rng))))
                continue
            index = self._tried_next(position, rng)
            path.append((key, index))
            state.apply_action(state.legal_actions()[index])
        self._learn(path, state.player_return(self.player))

    def test(self, rng: random.Random, won: list[float]) -> _Game:
        """Play a game with the learned actions, and append its return to `won`."""
        state = self.facts.game.new_initial_state()
        while not state.is_terminal():
            if state.is_chance_node():
                _let_chance_act(state, rng)
                continue
            best = self._best(state) if state.current_player() == self.player else None
            if best is None:
                yield from _act(state, rng)
            else:
                state.apply_action(state.legal_actions()[best])
        won.append(state.player_return(self.player))

    def _key(self, state: Any) -> str:
        """Return a key for the player's information state.

        If nothing is hidden, this is the board and the number of moves, so that different orders
        of the same moves share a position. It includes the legal actions because a board may not
        show chance outcomes, such as a die roll.
        """
        if self.facts.is_open:
            return f"{state.move_number()} {state.legal_actions()} {state}"
        return information(state, self.player)

    def _tried_next(self, position: _Position, rng: random.Random) -> int:
        """Return the index of the action to try: an untried one, otherwise UCB1's choice."""
        untried = []
        for index, action in enumerate(position.actions):
            if not action.num_tried:
                untried.append(index)
        if untried:
            return rng.choice(untried)
        log_visits = math.log(position.num_visits)

        def optimism(index: int) -> float:
            action = position.actions[index]
            bonus = self.exploration * math.sqrt(log_visits / action.num_tried)
            return self._mean(action) + bonus

        return max(range(len(position.actions)), key=optimism)

    def _best(self, state: Any) -> int | None:
        """Return the index of the action with the largest mean, or None if no mean is reliable."""
        position = self.tree.get(self._key(state))
        if position is None:
            return None
        means = self._reliable_means(position)
        return max(means, key=means.__getitem__) if means else None

    def _reliable_means(self, position: _Position) -> dict[int, float]:
        """Return the means of the actions that were tried often enough, by index."""
        means = {}
        for index, action in enumerate(position.actions):
            if action.num_tried >= _TRIED_ENOUGH:
                means[index] = self._mean(action)
        return means

    def _mean(self, action: _Action) -> float:
        total = action.total_at_end
        for key, times in action.followers.items():
            total += times * self.tree[key].value
        return total / action.num_tried

    def _mean_of_visits(self, position: _Position) -> float:
        total = 0.0
        for action in position.actions:
            if action.num_tried:
                total += action.num_tried * self._mean(action)
        return total / position.num_visits

    def _learn(self, path: Sequence[tuple[str, int]], won: float) -> None:
        """Back up a game's return along its path, from the last turn to the first."""
        follower: str | None = None
        for key, index in reversed(path):
            position = self.tree[key]
            action = position.actions[index]
            action.num_tried += 1
            position.num_visits += 1
            if follower is None:
                action.total_at_end += won
            else:
                action.followers[follower] += 1
            means = self._reliable_means(position)
            position.value = max(means.values()) if means else self._mean_of_visits(position)
            follower = key


def _let_chance_act(state: Any, rng: random.Random) -> None:
    outcomes = state.chance_outcomes()
    actions = [action for action, _ in outcomes]
    weights = [chance for _, chance in outcomes]
    [action] = rng.choices(actions, weights)
    state.apply_action(action)


def _act(state: Any, rng: random.Random) -> Generator[Any, Sequence[float], int]:
    """Let the lineup's player act, and return the index of its action."""
    weights = yield state
    [index] = rng.choices(range(len(weights)), weights)
    state.apply_action(state.legal_actions()[index])
    return index
