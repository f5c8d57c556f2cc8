"""Counters to figures: quotients of two sums of the counters of `counts`, per seat and for the team."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hanabi_grpo.envs.hanabi.conventions.counts import Row, count_games, hint_names
from hanabi_grpo.envs.hanabi.rules import Game, GameSpec
from hanabi_grpo.types import player_names

ANY_HINT = "any"


class Figure(NamedTuple):
    """A figure that is one counter over another."""

    title: str
    over: str
    per: str
    is_share: bool = True


OF_MOVES = {
    "hints": Figure("hints a game", "hints", "games", False),
    "plays": Figure("plays a game", "plays", "games", False),
    "discards": Figure("discards a game", "discards", "games", False),
    "critical_discards": Figure("discards a game of a last copy still needed", "critical_discards", "games", False),
    "misplay_share": Figure("plays that failed", "misplays", "plays"),
    "certain_plays": Figure("plays that were certain", "certain_plays", "plays"),
    "chance_per_play": Figure("chance to fit of the card played, as its player could know", "chance", "plays"),
    "bits_per_play": Figure("bits from hints about the card played", "bits", "plays", False),
    "wasted_share": Figure("hints that told nothing new", "wasted_hints", "hints"),
    "unhinted_plays": Figure("turns without a new hint that play", "unhinted_plays", "unhinted_turns"),
}
"""Of the moves of a seat."""

OF_HINTS = {
    "plays_touched": Figure("plays it", "plays_touched", "answered"),
    "plays": Figure("plays", "plays", "answered"),
    "discards": Figure("discards", "discards", "answered"),
    "hints_back": Figure("hints", "hints_back", "answered"),
    "oldest_of_choices": Figure("oldest", "oldest", "choices"),
    "newest_of_choices": Figure("newest", "newest", "choices"),
    "scored_of_touched": Figure("scores", "touched_scored", "plays_touched"),
    "playable_when_hinted": Figure("fits", "playable", "touched"),
}
"""Of what a seat does after a kind of hint. A choice is a play of a touched card after a hint that touched several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure, its standard error, and how much it rests on."""

    value: float | None
    """None: nothing was observed."""
    error: float | None
    """Standard error over deals; None where fewer than two groups of deals observed something."""
    count: int
    """Observations: the number that a share or mean is divided by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The figures of one seat, or of the team."""

    name: str
    """`player_<i>` or `team`."""
    figures: Mapping[str, Estimate]
    """By the names of `OF_MOVES`."""
    hints: Mapping[str, Mapping[str, Estimate]]
    """Kind of hint (a colour's letter, a printed rank, or `any`) to what this seat, as its receiver, does next.

    By the names of `OF_HINTS`, and `play_signal`: P(plays a touched card | hinted) - P(plays | no new hint), which is 0
    or less of a receiver that does not listen.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConventionReport:
    """One line-up's figures."""

    label: str
    spec: GameSpec
    num_games: int
    team: Side
    seats: tuple[Side, ...]


def convention_report(label: str, games: Sequence[Game]) -> ConventionReport:
    """Return the figures of one line-up from at least one game, all of one board; the team's pool the seats."""
    spec, groups = games[0].spec, count_games(games)
    names = player_names(spec.num_players)
    return ConventionReport(
        label=label,
        spec=spec,
        num_games=len(games),
        team=_side("team", groups, range(spec.num_players), spec),
        seats=tuple(_side(name, groups, (seat,), spec) for seat, name in enumerate(names)),
    )


def standard_error(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the standard error [...] of a figure by the delete-a-group jackknife for groups of unequal size.

    With sizes m_j that sum to n, h_j = n / m_j, the figure t on everything and t_j without group j:
    s_j = h_j t - (h_j - 1) t_j, J = sum_j (m_j / n) s_j, variance = (1 / g) sum_j (s_j - J)^2 / (h_j - 1).
    For the mean of groups of one game each, it is the standard deviation divided by sqrt(n). NaN where a value is NaN
    or there are fewer than two groups.

    Source: Busing, Meijer, van der Leeden (1999), "Delete-m jackknife for unequal m", Statistics and Computing 9.

    Args:
        values: [1 + group, ...], as `leave_one_out` orders them.
        sizes: [group], games of each group.
    """
    if len(sizes) < 2:
        return np.full(values.shape[1:], np.nan)
    share = (sizes / sizes.sum()).reshape(-1, *[1] * (values.ndim - 1))
    ratio = 1 / share
    pseudo = ratio * values[0] - (ratio - 1) * values[1:]
    center = (share * pseudo).sum(axis=0)
    return np.sqrt(((pseudo - center) ** 2 / (ratio - 1)).mean(axis=0))


def leave_one_out(groups: np.ndarray) -> np.ndarray:
    """Return the sums [1 + group, ...] of counters [group, ...]: over all groups, then over all but one at a time."""
    total = groups.sum(axis=0, keepdims=True)
    return np.concatenate([total, total - groups])


def _side(name: str, groups: Sequence[Row], seats: Sequence[int], spec: GameSpec) -> Side:
    sizes = np.array([group["games"] for group in groups])

    def sums(keys: Iterable[Any]) -> np.ndarray:
        wanted = list(keys)
        return leave_one_out(np.array([sum(group.get(key, 0.0) for key in wanted) for group in groups], dtype=float))

    def of_seats(counter: str) -> np.ndarray:
        return sums([counter] if counter == "games" else [(seat, counter) for seat in seats])

    def estimate(values: np.ndarray, count: float) -> Estimate:
        return Estimate(value=_finite(values[0]), error=_finite(standard_error(values, sizes)), count=round(count))

    def ratio(figure: Figure, of: Any) -> Estimate:
        per = of(figure.per)
        return estimate(_divide(of(figure.over), per), per[0])

    usual = _divide(of_seats("unhinted_plays"), of_seats("unhinted_turns"))
    names = hint_names(spec)
    kinds = {ANY_HINT: range(len(names)), **{name: (kind,) for kind, name in enumerate(names)}}
    hints = {}
    for kind_name, numbers in kinds.items():

        def of_hints(counter: str, numbers: Sequence[int] = numbers) -> np.ndarray:
            return sums((seat, kind, counter) for seat in seats for kind in numbers)

        answered = of_hints("answered")
        signal = estimate(_divide(of_hints("plays_touched"), answered) - usual, answered[0])
        hints[kind_name] = {key: ratio(one, of_hints) for key, one in OF_HINTS.items()} | {"play_signal": signal}
    return Side(name=name, figures={key: ratio(one, of_seats) for key, one in OF_MOVES.items()}, hints=hints)


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotients; NaN where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.full(numerator.shape, np.nan), where=denominator != 0)


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
