"""Counters to figures: what a team's moves mean, per seat and for the team."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hanabi_grpo.envs.hanabi.conventions.counts import ConventionCounts
from hanabi_grpo.envs.hanabi.conventions.estimates import (
    Estimate,
    chance_information,
    divide,
    entropy,
    leave_one_out,
    mutual_information,
    standard_error,
)
from hanabi_grpo.envs.hanabi.conventions.figures import OF_HINTS, OF_PLAYS, PER_GAME, Ratio
from hanabi_grpo.envs.hanabi.conventions.layout import (
    GameCount,
    HintCount,
    SeatCount,
    action_labels,
    hint_labels,
    layout_of,
)
from hanabi_grpo.envs.hanabi.rules import GameSpec
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import player_names

TEAM = "team"
ANY_HINT = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveMatrix:
    """What the next player does after each move: P(next move | move).

    Hu, Lerer, Peysakhovich, Foerster (2020), "Other-Play for zero-shot coordination", show the conventions of trained
    Hanabi agents by this matrix.
    """

    counts: tuple[tuple[int, ...], ...]
    """[move][next move]."""
    shares: tuple[tuple[float | None, ...], ...]
    """Each row sums to 1; None in rows without observations."""
    errors: tuple[tuple[float | None, ...], ...]
    """Standard errors of `shares`."""
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
    """By the names in `figures`."""
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
    """Groups of deals behind the standard errors; with few, these are rough."""
    actions: tuple[tuple[str, str], ...]
    """Short and long name of each class of moves."""
    team: Side
    seats: tuple[Side, ...]


@dataclass(frozen=True, slots=True)
class _Sample:
    """Counters [1 + group, ...], on everything and without one group of deals at a time."""

    games: np.ndarray
    seats: np.ndarray
    pairs: np.ndarray
    hints: np.ndarray
    sizes: np.ndarray

    def of(self, seats: slice) -> "_Sample":
        return _Sample(self.games, self.seats[:, seats], self.pairs[:, seats], self.hints[:, seats], self.sizes)

    def estimate(self, values: np.ndarray, count: int) -> Estimate:
        return Estimate(value=_finite(values[0]), error=_finite(standard_error(values, self.sizes)), count=int(count))


def convention_report(label: str, counts: ConventionCounts) -> ConventionReport:
    """Return the figures of one line-up.

    Standard errors are over deals, not over moves: see `estimates.standard_error`. The team's matrix and shares pool
    the seats.

    Args:
        label: What to call the line-up, e.g. "iggi,player_1@7".
        counts: Its games.

    Raises:
        SettingsError: No game was counted.
    """
    groups = counts.groups()
    if not len(groups):
        raise SettingsError(f"{label!r}: no games counted; add at least one before asking for a report.")
    spec = counts.spec
    replicates = leave_one_out(groups)
    parts: list[np.ndarray] = []
    start = 0
    for shape in layout_of(spec).shapes.values():
        size = int(np.prod(shape))
        parts.append(replicates[:, start : start + size].reshape(-1, *shape))
        start += size
    sample = _Sample(games=parts[0], seats=parts[1], pairs=parts[2], hints=parts[3], sizes=groups[:, GameCount.GAMES])
    totals = sample.games[0]
    return ConventionReport(
        label=label,
        spec=spec,
        num_games=int(totals[GameCount.GAMES]),
        num_unfinished=int(totals[GameCount.UNFINISHED]),
        num_groups=len(groups),
        actions=action_labels(spec),
        team=_side(TEAM, sample, spec),
        seats=tuple(
            _side(name, sample.of(slice(seat, seat + 1)), spec)
            for seat, name in enumerate(player_names(spec.num_players))
        ),
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
        "sides": [_side_json(side) for side in (report.team, *report.seats)],
    }


def _side_json(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "figures": {name: asdict(one) for name, one in side.figures.items()},
        "hints": {hint: {name: asdict(one) for name, one in row.items()} for hint, row in side.hints.items()},
        "matrix": asdict(side.matrix),
    }


def _side(name: str, sample: _Sample, spec: GameSpec) -> Side:
    return Side(name=name, matrix=_matrix(sample), figures=_figures(sample, spec), hints=_hint_figures(sample, spec))


def _matrix(sample: _Sample) -> MoveMatrix:
    pairs = sample.pairs.sum(axis=1)
    shares = divide(pairs, pairs.sum(axis=-1, keepdims=True))
    marginal = divide(pairs[0].sum(axis=0), pairs[0].sum(keepdims=True).reshape(1))
    return MoveMatrix(
        counts=tuple(tuple(map(int, row)) for row in pairs[0]),
        shares=_rows(shares[0]),
        errors=_rows(standard_error(shares, sample.sizes)),
        marginal=tuple(map(_finite, marginal)),
    )


def _figures(sample: _Sample, spec: GameSpec) -> dict[str, Estimate]:
    games = sample.games[:, GameCount.GAMES]
    counters = sample.seats.sum(axis=1)
    of_games = {"score": GameCount.SCORE, "score_kept": GameCount.SCORE_KEPT, "bombs": GameCount.BOMBS}
    found = {name: sample.estimate(divide(sample.games[:, index], games), games[0]) for name, index in of_games.items()}
    for name, ratio in (PER_GAME | OF_PLAYS).items():
        found[name] = _ratio(sample, ratio, counters, games)
    return found | _information(sample, spec)


def _information(sample: _Sample, spec: GameSpec) -> dict[str, Estimate]:
    """Return the mutual informations, in bits.

    - `action_information`: I(a seat's move; the next seat's move), the mutual information of consecutive moves. It is
      the "instantaneous coordination" of Jaques et al. (2019), "Social influence as intrinsic motivation". Both moves
      also depend on what the whole table sees (without a hint token nobody hints), so it is above 0 without any
      convention: compare with the random line-up.
    - `hint_information`: the same over hints to the next seat alone: I(which hint; the receiver's move | a hint).
      A bound on what the channel carried, no proof that it was understood: Lowe et al. (2019), "On the pitfalls of
      measuring emergent communication".
    - `next_entropy`: H(the next seat's move), which bounds the first.

    From both, what moves paired by chance would show is taken off (`estimates.chance_information`); so a value can be a
    little below 0. The team's value is the mean over seats, weighted by their moves: conventions may differ by seat.
    """
    hints = slice(2 * spec.hand_size, 2 * spec.hand_size + spec.num_colors + spec.num_ranks)
    channel = sample.pairs[:, :, hints]
    next_moves = entropy(sample.pairs.sum(axis=-2))
    return {
        "action_information": _mean_over_seats(sample, sample.pairs, _above_chance(sample.pairs)),
        "hint_information": _mean_over_seats(sample, channel, _above_chance(channel)),
        "next_entropy": _mean_over_seats(sample, sample.pairs, next_moves),
    }


def _above_chance(pairs: np.ndarray) -> np.ndarray:
    """Return the information in pairs [1 + group, seat, a, b] above chance: [1 + group, seat].

    Chance is that of all deals everywhere; it hardly changes when a group is left out, and takes long to compute.
    """
    return mutual_information(pairs) - np.array([chance_information(seat) for seat in pairs[0]])


def _mean_over_seats(sample: _Sample, pairs: np.ndarray, values: np.ndarray) -> Estimate:
    """Average values [1 + group, seat] by the number of pairs."""
    weights = pairs.sum(axis=(-2, -1))
    total = weights.sum(axis=1)
    return sample.estimate(divide((weights * np.nan_to_num(values)).sum(axis=1), total), total[0])


def _hint_figures(sample: _Sample, spec: GameSpec) -> dict[str, dict[str, Estimate]]:
    """Return, per kind of hint, what its receiver does next.

    `play_signal` = P(plays a touched card | hinted) - P(plays | no new hint). A receiver that does not listen plays as
    often as before, and a touched card at most every time: its signal is 0 or less.
    """
    seats = sample.seats.sum(axis=1)
    usual = divide(seats[:, SeatCount.UNHINTED_PLAYS], seats[:, SeatCount.UNHINTED_TURNS])
    by_kind = sample.hints.sum(axis=1)
    found = {}
    counters_of = {ANY_HINT: by_kind.sum(axis=1)}
    counters_of |= {short: by_kind[:, index] for index, (short, _) in enumerate(hint_labels(spec))}
    for name, counters in counters_of.items():
        row = {key: _ratio(sample, ratio, counters, None) for key, ratio in OF_HINTS.items()}
        answered = counters[:, HintCount.ANSWERED]
        signal = divide(counters[:, HintCount.PLAYS_TOUCHED], answered) - usual
        row["play_signal"] = sample.estimate(signal, answered[0])
        found[name] = row
    return found


def _ratio(sample: _Sample, ratio: Ratio, counters: np.ndarray, games: np.ndarray | None) -> Estimate:
    """Return a quotient of counters [1 + group, counter]."""
    per = counters[:, ratio.per] if ratio.per is not None else games
    assert per is not None  # figures per game are asked for with the games
    return sample.estimate(ratio.scale * divide(counters[:, ratio.over], per), per[0])


def _rows(values: np.ndarray) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(map(_finite, row)) for row in values)


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
