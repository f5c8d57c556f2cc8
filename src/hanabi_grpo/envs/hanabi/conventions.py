"""What a team's hints mean to its players.

Games are reduced to integer counters. What a receiver does next is reported as shares of these
counters, with standard errors over deals.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS, Action, Event, Game, GameSpec
from hanabi_grpo.types import player_names

NUM_GROUPS = 32
"""Groups of deals.

Leaving out one at a time gives the standard errors, which are then good to about one eighth."""
ANY_HINT = "any"
"""All kinds of hints together, as a key of `ConventionReport.sides`."""
Row = Counter[Any]
"""Counters of one group of deals by their keys, see `count_game`."""


class HintShare(NamedTuple):
    """A share reported for each kind of hint: one counter of `count_game` divided by another."""

    title: str
    """Column title."""
    numerator: str
    """Name of a counter."""
    denominator: str
    """Name of a counter."""


OF_HINTS: Mapping[str, HintShare] = {
    "plays_touched": HintShare("plays it", "plays_touched", "answered"),
    "plays": HintShare("plays", "plays", "answered"),
    "discards": HintShare("discards", "discards", "answered"),
    "hints_back": HintShare("hints", "hints_back", "answered"),
    "oldest_of_choices": HintShare("oldest", "oldest", "choices"),
    "newest_of_choices": HintShare("newest", "newest", "choices"),
    "scored_of_touched": HintShare("scores", "touched_scored", "plays_touched"),
    "playable_when_hinted": HintShare("fits", "playable", "touched"),
}
"""What a seat does after a kind of hint, by name.

A choice is a play of a touched card after a hint that touched several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a seat, or any of the team, does on its turn after a kind of hint."""

    count: int
    """Answered hints."""
    shares: Mapping[str, float | None]
    """By the names of `OF_HINTS`; None: nothing was observed."""
    signal: float | None
    """P(plays a touched card | hinted) - P(plays | no new hint).

    0 or less for a receiver that ignores hints."""
    error: float | None
    """Standard error of the signal over deals.

    None if fewer than two groups of deals have observations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConventionReport:
    """One lineup's conventions."""

    label: str
    """What was counted, for titles."""
    spec: GameSpec
    """The board."""
    num_games: int
    """Games that were counted."""
    sides: Mapping[str, Mapping[str, Answers]]
    """`team`, then each `player_<i>`, to kinds of hints.

    The kinds are `any`, a colour's letter or a printed rank."""


@dataclass(frozen=True, slots=True)
class _PendingHint:
    """A hint whose receiver has not moved since."""

    kind: int
    """See `hint_kind`."""
    touched: tuple[int, ...]
    """Slots, oldest first."""


def convention_report(label: str, games: Sequence[Game]) -> ConventionReport:
    """Return the conventions of one lineup; the team's are pooled over its seats.

    Args:
        label: What was counted, for titles.
        games: At least one game, all of one board.
    """
    spec = games[0].spec
    groups = count_games(games)
    kinds = _kind_names(spec)
    sides = {"team": _answers_by_kind(groups, range(spec.num_players), kinds)}
    for seat, name in enumerate(player_names(spec.num_players)):
        sides[name] = _answers_by_kind(groups, [seat], kinds)
    return ConventionReport(label=label, spec=spec, num_games=len(games), sides=sides)


def hint_kind(spec: GameSpec, hint: Action) -> int:
    """Return the number of a hint's kind: its colour, or its rank after all colours."""
    if hint.kind == "hint_rank":
        return spec.num_colors + hint.value
    return hint.value


def count_games(games: Iterable[Game]) -> list[Row]:
    """Return the counters of groups of deals of one board; see `count_game`.

    A hash of the deck puts a game into one of `NUM_GROUPS` groups, so all games of one deal count
    as one draw in the standard errors. A truncated game counts up to its last move.
    """
    groups: dict[int, Row] = {}
    for game in games:
        deck = bytes([8 * card.color + card.rank for card in game.deck])
        group = zlib.crc32(deck) % NUM_GROUPS
        count_game(game, groups.setdefault(group, Row()))
    return [groups[group] for group in sorted(groups)]


def count_game(game: Game, row: Row) -> None:
    """Add one game to a row of counters.

    Keys are `(seat, name)` of turns without a new hint, and `(seat, kind, name)` of hints and their
    answers. For example, `row[1, 0, "answered"]` is the number of times that player_1 answered a
    hint of red.

    The receiver's next turn answers a hint, whatever happens in between: the receiver's hand, and
    therefore the touched slots, are unchanged until then. One turn answers all hints before it.

    Args:
        game: The game, at any point.
        row: The counters, which are changed.
    """
    spec = game.spec
    table = Game(spec, game.deck)
    pending: list[list[_PendingHint]] = [[] for _ in range(spec.num_players)]
    for event in game.events:
        if pending[event.player]:
            for hint in pending[event.player]:
                _count_answer(row, hint, event)
        else:
            row[event.player, "unhinted_turns"] += 1
            row[event.player, "unhinted_plays"] += event.action.kind == "play"
        pending[event.player] = []
        if event.action.slot < 0:
            hint = _PendingHint(hint_kind(spec, event.action), event.touched)
            pending[event.action.target].append(hint)
            _count_touched(row, hint, table, event.action.target)
        table.apply(event.action)


def _count_answer(row: Row, hint: _PendingHint, answer: Event) -> None:
    """Count the receiver's next turn after a hint."""
    seat = answer.player
    action = answer.action
    row[seat, hint.kind, "answered"] += 1
    if action.slot < 0:
        row[seat, hint.kind, "hints_back"] += 1
    elif action.kind == "discard":
        row[seat, hint.kind, "discards"] += 1
    else:
        row[seat, hint.kind, "plays"] += 1
        if action.slot in hint.touched:
            row[seat, hint.kind, "plays_touched"] += 1
            row[seat, hint.kind, "touched_scored"] += answer.scored
            if len(hint.touched) > 1:
                row[seat, hint.kind, "choices"] += 1
                row[seat, hint.kind, "oldest"] += action.slot == hint.touched[0]
                row[seat, hint.kind, "newest"] += action.slot == hint.touched[-1]


def _count_touched(row: Row, hint: _PendingHint, table: Game, target: int) -> None:
    """Count the cards that a hint touches, and how many of them fit now.

    Args:
        row: The counters, which are changed.
        hint: The hint.
        table: The game when the hint is given.
        target: The seat that receives the hint.
    """
    num_fitting = 0
    for slot in hint.touched:
        card = table.hands[target][slot]
        num_fitting += table.fireworks[card.color] == card.rank
    row[target, hint.kind, "touched"] += len(hint.touched)
    row[target, hint.kind, "playable"] += num_fitting


def leave_one_out(groups: np.ndarray) -> np.ndarray:
    """Return the sums of a counter over all groups, then over all but one at a time.

    Args:
        groups: (groups,), the counter in each group.

    Returns:
        (1 + groups,)
    """
    total = groups.sum()
    return np.concatenate([[total], total - groups])


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of a statistic by the delete-a-group jackknife.

    Args:
        values: (1 + groups,), as `leave_one_out` orders them: over all groups, then without each.

    Returns:
        NaN where a value is NaN or there are fewer than two groups.
    """
    num_groups = len(values) - 1
    if num_groups < 2:
        return float("nan")
    without_each = values[1:]
    deviations = without_each - without_each.mean()
    return float(np.sqrt((num_groups - 1) / num_groups * (deviations**2).sum()))


class _SideCounters:
    """Counters summed over some seats, in the form that `leave_one_out` returns."""

    def __init__(self, groups: Sequence[Row], seats: Sequence[int]) -> None:
        self._groups = groups
        self._seats = seats

    def of_turns(self, name: str) -> np.ndarray:
        """Return a counter of turns without a new hint, (1 + groups,)."""
        return self._sums([(seat, name) for seat in self._seats])

    def of_hints(self, kinds: Sequence[int], name: str) -> np.ndarray:
        """Return a counter of hints or answers, over kinds of hints, (1 + groups,)."""
        keys: list[tuple[Any, ...]] = []
        for seat in self._seats:
            for kind in kinds:
                keys.append((seat, kind, name))
        return self._sums(keys)

    def _sums(self, keys: Sequence[tuple[Any, ...]]) -> np.ndarray:
        sums = [sum(group[key] for key in keys) for group in self._groups]
        return leave_one_out(np.array(sums))


def _kind_names(spec: GameSpec) -> list[str]:
    """Return the names of kinds of hints in the order of `hint_kind`: letters, printed ranks."""
    letters = list(COLOR_LETTERS[: spec.num_colors])
    ranks = [str(rank + 1) for rank in range(spec.num_ranks)]
    return letters + ranks


def _answers_by_kind(
    groups: Sequence[Row], seats: Sequence[int], kinds: Sequence[str]
) -> dict[str, Answers]:
    """Return what seats do after each kind of hint, and after any.

    Args:
        groups: The counters of each group of deals.
        seats: The receivers, pooled.
        kinds: Names of the kinds of hints, in the order of their numbers.
    """
    counters = _SideCounters(groups, seats)
    answers = {ANY_HINT: _answers(counters, range(len(kinds)))}
    for kind, name in enumerate(kinds):
        answers[name] = _answers(counters, [kind])
    return answers


def _answers(counters: _SideCounters, kinds: Sequence[int]) -> Answers:
    """Return what seats do after a hint of one of these kinds."""
    shares = {}
    for name, share in OF_HINTS.items():
        numerator = counters.of_hints(kinds, share.numerator)
        denominator = counters.of_hints(kinds, share.denominator)
        shares[name] = _finite(_divide(numerator, denominator)[0])
    answered = counters.of_hints(kinds, "answered")
    plays_when_hinted = _divide(counters.of_hints(kinds, "plays_touched"), answered)
    plays_unhinted = _divide(
        counters.of_turns("unhinted_plays"), counters.of_turns("unhinted_turns")
    )
    signal = plays_when_hinted - plays_unhinted
    return Answers(
        count=int(answered[0]),
        shares=shares,
        signal=_finite(signal[0]),
        error=_finite(standard_error(signal)),
    )


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotients; NaN where the denominator is 0."""
    nan = np.full(numerator.shape, np.nan)
    return np.divide(numerator, denominator, out=nan, where=denominator != 0)


def _finite(value: float) -> float | None:
    """Return the value, or None for NaN."""
    return float(value) if np.isfinite(value) else None
