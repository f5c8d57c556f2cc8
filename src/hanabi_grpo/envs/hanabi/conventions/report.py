"""Counters to figures: quotients of two sums of the counters of `counts`, per seat and for the team."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from hanabi_grpo.envs.hanabi.conventions.counts import ConventionCounts, Row, hint_labels, move_labels
from hanabi_grpo.envs.hanabi.rules import GameSpec
from hanabi_grpo.types import player_names

TEAM = "team"
ANY_HINT = "any"
MIN_COUNT = 30
"""Observations below which a figure says little; pages show such figures in grey."""


class Unit(StrEnum):
    """How a figure is written."""

    SHARE = "share"
    BITS = "bits"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that is one counter over another."""

    title: str
    over: str
    per: str
    unit: Unit = Unit.SHARE


OF_GAMES = {
    "score": Figure("score", "score", "games", Unit.NUMBER),
    "score_kept": Figure("points kept on a bomb", "score_kept", "games", Unit.NUMBER),
    "bombs": Figure("games bombed", "bombs", "games"),
}
"""Of the team, whoever moved."""

PER_GAME = {
    name: Figure(title, name, "games", Unit.NUMBER)
    for name, title in (
        ("turns", "turns"),
        ("hints", "hints given"),
        ("wasted_hints", "hints that told nothing new"),
        ("plays", "plays"),
        ("misplays", "misplays"),
        ("discards", "discards"),
        ("critical_discards", "discards of a last copy still needed"),
    )
}

OF_PLAYS = {
    "bits_per_play": Figure("bits from hints about the card played", "bits", "plays", Unit.BITS),
    "chance_per_play": Figure("chance to fit of the card played, as its player could know", "chance", "plays"),
    "certain_plays": Figure("plays that were certain", "certain_plays", "plays"),
    "misplay_share": Figure("plays that failed", "misplays", "plays"),
    "wasted_share": Figure("hints that told nothing new", "wasted_hints", "hints"),
    "unhinted_plays": Figure("turns without a new hint that play", "unhinted_plays", "unhinted_turns"),
}

OF_HINTS = {
    "plays": Figure("plays", "plays", "answered"),
    "discards": Figure("discards", "discards", "answered"),
    "hints_back": Figure("hints", "hints_back", "answered"),
    "plays_touched": Figure("plays a touched card", "plays_touched", "answered"),
    "touched_of_plays": Figure("of plays: a touched card", "plays_touched", "plays"),
    "oldest_of_choices": Figure("of choices: the oldest", "oldest", "choices"),
    "newest_of_choices": Figure("of choices: the newest", "newest", "choices"),
    "scored_of_touched": Figure("touched card scores", "touched_scored", "plays_touched"),
    "playable_when_hinted": Figure("touched cards that fit", "playable", "touched"),
    "touched_per_hint": Figure("cards touched", "touched", "hints", Unit.NUMBER),
}
"""Of one kind of hint to one seat."""

PLAY_SIGNAL = Figure("play signal", "", "")
"""P(plays a touched card | hinted) - P(plays | no new hint): 0 or less of a receiver that does not listen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure, its standard error, and how much it rests on."""

    value: float | None
    """None: nothing was observed."""
    error: float | None
    """Standard error over deals; None where fewer than two groups of deals observed something."""
    count: int
    """Observations: the number that a share or mean is divided by."""

    @property
    def is_thin(self) -> bool:
        """True for a figure from fewer than `MIN_COUNT` observations."""
        return self.count < MIN_COUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveMatrix:
    """What the next player does after each move, as in Hu et al. (2020), "Other-Play for zero-shot coordination"."""

    counts: tuple[tuple[int, ...], ...]
    """[move][next move]."""
    shares: tuple[tuple[float | None, ...], ...]
    """P(next move | move): each row sums to 1; None in rows without observations."""
    marginal: tuple[float | None, ...]
    """P(next move), whatever the move before; a row equal to it carries no information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The figures of one seat, or of the team."""

    name: str
    """`player_<i>` or `team`."""
    matrix: MoveMatrix
    """Moves of this seat, and of the seat after it."""
    figures: Mapping[str, Estimate]
    hints: Mapping[str, Mapping[str, Estimate]]
    """Kind of hint (a colour's letter, a printed rank, or `any`) to what this seat, as its receiver, does next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConventionReport:
    """One line-up's figures."""

    label: str
    spec: GameSpec
    num_games: int
    num_unfinished: int
    """Games that were cut off before their end; they count as far as they went."""
    num_groups: int
    """Groups of deals behind the standard errors."""
    actions: tuple[tuple[str, str], ...]
    """Short and long name of each class of moves."""
    team: Side
    seats: tuple[Side, ...]


def convention_report(label: str, counts: ConventionCounts) -> ConventionReport:
    """Return the figures of one line-up of at least one game; the team's pool the seats."""
    spec, groups = counts.spec, [group for group in counts.groups if group]
    names = player_names(spec.num_players)
    return ConventionReport(
        label=label,
        spec=spec,
        num_games=int(sum(group["games"] for group in groups)),
        num_unfinished=int(sum(group["unfinished"] for group in groups)),
        num_groups=len(groups),
        actions=move_labels(spec),
        team=_side(TEAM, groups, range(spec.num_players), spec),
        seats=tuple(_side(name, groups, (seat,), spec) for seat, name in enumerate(names)),
    )


def convention_json(report: ConventionReport) -> dict[str, Any]:
    """Return a report as JSON values; an estimate is {value, error, count}, what was never observed is null."""
    return {
        "label": report.label,
        "board": {**asdict(report.spec), "hash": report.spec.hash},
        "num_games": report.num_games,
        "num_unfinished": report.num_unfinished,
        "num_groups": report.num_groups,
        "actions": [long for _, long in report.actions],
        "sides": [asdict(side) for side in (report.team, *report.seats)],
    }


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

    figures = {key: ratio(figure, lambda counter: sums([counter])) for key, figure in OF_GAMES.items()}
    figures |= {key: ratio(figure, of_seats) for key, figure in (PER_GAME | OF_PLAYS).items()}
    usual = _divide(of_seats("unhinted_plays"), of_seats("unhinted_turns"))
    kinds = {short: (kind,) for kind, (short, _) in enumerate(hint_labels(spec))}
    hints = {}
    for short, numbers in {ANY_HINT: tuple(range(len(kinds))), **kinds}.items():

        def of_hints(counter: str, numbers: Sequence[int] = numbers) -> np.ndarray:
            return sums((seat, kind, counter) for seat in seats for kind in numbers)

        hints[short] = {key: ratio(figure, of_hints) for key, figure in OF_HINTS.items()}
        answered = of_hints("answered")
        hints[short]["play_signal"] = estimate(_divide(of_hints("plays_touched"), answered) - usual, answered[0])
    return Side(name=name, matrix=_matrix(groups, seats, spec), figures=figures, hints=hints)


def _matrix(groups: Sequence[Row], seats: Sequence[int], spec: GameSpec) -> MoveMatrix:
    num_moves = len(move_labels(spec))
    pairs = np.zeros((num_moves, num_moves))
    for group in groups:
        for key, count in group.items():
            if key[0] == "pair" and key[1] in seats:
                pairs[key[2], key[3]] += count
    shares = _divide(pairs, pairs.sum(axis=-1, keepdims=True))
    return MoveMatrix(
        counts=tuple(tuple(map(int, row)) for row in pairs),
        shares=tuple(tuple(map(_finite, row)) for row in shares),
        marginal=tuple(map(_finite, _divide(pairs.sum(axis=0), pairs.sum().reshape(1)))),
    )


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return the quotients; NaN where the denominator is 0."""
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    return np.divide(numerator, denominator, out=np.full(shape, np.nan), where=denominator != 0)


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
