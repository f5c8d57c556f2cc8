"""What a team's hints mean to its players: counters of games, and what a receiver does next as
shares of them.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS, Action, Game, GameSpec
from hanabi_grpo.types import player_names

NUM_GROUPS = 32
"""Groups of deals. Leaving out one at a time gives the standard errors, which are then good to
about one eighth.
"""
ANY_HINT = "any"
Row = Counter[Any]
"""Counters by their keys, see `count_game`."""

OF_HINTS = {
    "plays_touched": ("plays it", "plays_touched", "answered"),
    "plays": ("plays", "plays", "answered"),
    "discards": ("discards", "discards", "answered"),
    "hints_back": ("hints", "hints_back", "answered"),
    "oldest_of_choices": ("oldest", "oldest", "choices"),
    "newest_of_choices": ("newest", "newest", "choices"),
    "scored_of_touched": ("scores", "touched_scored", "plays_touched"),
    "playable_when_hinted": ("fits", "playable", "touched"),
}
"""Figures of what a seat does after a kind of hint: title, and two counters of which it is the
first over the second.

A choice is a play of a touched card after a hint that touched several.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a seat, or any of the team, does on its turn after a kind of hint."""

    count: int
    """Answered hints."""
    shares: Mapping[str, float | None]
    """By the names of `OF_HINTS`; None: nothing was observed."""
    signal: float | None
    """P(plays a touched card | hinted) - P(plays | no new hint): 0 or less of a receiver that does
    not listen.
    """
    error: float | None
    """Standard error of the signal over deals; None where fewer than two groups of deals observed
    something.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConventionReport:
    """One lineup's figures."""

    label: str
    spec: GameSpec
    num_games: int
    sides: Mapping[str, Mapping[str, Answers]]
    """`team`, then each `player_<i>`, to kinds of hints: `any`, a colour's letter or a printed
    rank.
    """


def convention_report(label: str, games: Sequence[Game]) -> ConventionReport:
    """Return the figures of one lineup from at least one game, all of one board; the team's pool
    the seats.
    """
    spec, groups = games[0].spec, count_games(games)
    seats: dict[str, Sequence[int]] = {"team": range(spec.num_players)}
    seats |= {name: (seat,) for seat, name in enumerate(player_names(spec.num_players))}
    hints = (*COLOR_LETTERS[: spec.num_colors], *(str(rank + 1) for rank in range(spec.num_ranks)))
    sides = {name: _side(groups, own, hints) for name, own in seats.items()}
    return ConventionReport(label=label, spec=spec, num_games=len(games), sides=sides)


def hint_kind(spec: GameSpec, hint: Action) -> int:
    """Return the number of a hint's kind, colours before ranks."""
    return hint.value + (spec.num_colors if hint.kind == "hint_rank" else 0)


def count_games(games: Iterable[Game]) -> list[Row]:
    """Return the counters of groups of deals of one board; see `count_game`.

    A hash of the deck puts a game into one of `NUM_GROUPS` groups, so all games of one deal count
    as one draw in the standard errors. A game that was cut off before its end counts as far as it
    went."""
    groups: dict[int, Row] = {}
    for game in games:
        deck = bytes([8 * card.color + card.rank for card in game.deck])
        count_game(game, groups.setdefault(zlib.crc32(deck) % NUM_GROUPS, Row()))
    return [groups[number] for number in sorted(groups)]


def count_game(game: Game, row: Row) -> None:
    """Add one game to a row of counters: `(seat, name)` of turns without a new hint, `(seat, kind,
    name)` of answers.

    A hint is answered by the receiver's next turn, whatever happens in between: its hand, and so
    the touched slots, are still the same then. Several hints before one turn are each answered by
    it."""
    spec, table = game.spec, Game(game.spec, game.deck)
    pending: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in range(spec.num_players)]
    for player, action, _, scored, touched in game.events:
        plays = action.kind == "play"
        if not pending[player]:
            row[player, "unhinted_turns"] += 1
            row[player, "unhinted_plays"] += plays
        for kind, slots in pending[player]:
            row[player, kind, "answered"] += 1
            row[
                player, kind, "plays" if plays else "discards" if action.slot >= 0 else "hints_back"
            ] += 1
            if plays and action.slot in slots:
                row[player, kind, "plays_touched"] += 1
                row[player, kind, "touched_scored"] += scored
                if len(slots) > 1:
                    row[player, kind, "choices"] += 1
                    row[player, kind, "oldest"] += action.slot == slots[0]
                    row[player, kind, "newest"] += action.slot == slots[-1]
        pending[player] = []
        if action.slot < 0:
            target, kind = action.target, hint_kind(spec, action)
            pending[target].append((kind, touched))
            cards = [table.hands[target][slot] for slot in touched]
            row[target, kind, "touched"] += len(touched)
            row[target, kind, "playable"] += sum(
                table.fireworks[card.color] == card.rank for card in cards
            )
        table.apply(action)


def leave_one_out(groups: np.ndarray) -> np.ndarray:
    """Return the sums [1 + group] of a counter [group]: over all groups, then over all but one at a
    time.
    """
    return np.concatenate([[groups.sum()], groups.sum() - groups])


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of a figure [1 + group], as `leave_one_out` orders it, by the
    delete-a-group jackknife.

    NaN where a value is NaN or there are fewer than two groups.
    """
    num, apart = len(values) - 1, values[1:] - values[1:].mean()
    return float(np.sqrt((num - 1) / num * (apart**2).sum())) if num > 1 else float("nan")


def _side(groups: Sequence[Row], seats: Sequence[int], names: Sequence[str]) -> dict[str, Answers]:
    def sums(*keys: Any) -> np.ndarray:
        return leave_one_out(
            np.array([sum(group[seat, *key] for seat in seats for key in keys) for group in groups])
        )

    usual = _divide(sums(("unhinted_plays",)), sums(("unhinted_turns",)))
    kinds = {ANY_HINT: range(len(names)), **{name: (kind,) for kind, name in enumerate(names)}}
    found = {}
    for name, numbers in kinds.items():
        counters = {counter for _, *both in OF_HINTS.values() for counter in both}
        counted = {counter: sums(*((kind, counter) for kind in numbers)) for counter in counters}
        signal = _divide(counted["plays_touched"], counted["answered"]) - usual
        found[name] = Answers(
            count=int(counted["answered"][0]),
            shares={
                key: _finite(_divide(counted[a], counted[b])[0])
                for key, (_, a, b) in OF_HINTS.items()
            },
            signal=_finite(signal[0]),
            error=_finite(standard_error(signal)),
        )
    return found


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotients; NaN where the denominator is 0."""
    return np.divide(
        numerator, denominator, out=np.full(numerator.shape, np.nan), where=denominator != 0
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
