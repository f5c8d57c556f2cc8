"""Wins, draws and losses in games of two players against each other, from both seats.

They are counted for the first policy of the lineup, e.g. for `player_0@latest` in
"player_0@latest,iggi".
"""

import math
from collections.abc import Mapping, Sequence

from hanabi_grpo.envs.base import FORFEIT, EnvSpec
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet, figure
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.types import REPLY_PARTS, Episode

WIN = "win"
DRAW = "draw"
LOSS = "loss"
FORFEIT_WIN = "bad-reply win"
"""A win because the other player lost by a bad reply; it counts as a win, too."""
OUTCOMES = (WIN, DRAW, LOSS, FORFEIT_WIN)
RETURN = "return"
"""Return of the game, without the penalties of bad replies."""
AS = " as "
"""Stands between an outcome and the role in which it was reached, e.g. "win as first"."""
_SIGNS = {WIN: 1, DRAW: 0, LOSS: -1}
"""Entries of `EvaluationResult.outcomes`."""
_BOTH = "both"
"""Seat of the row over both roles."""
_Z = 1.959964
"""Standard normal quantile of a 95 % interval."""
_ROUNDING = 1e-9
"""A smaller standard error of a share is a rounding error."""


def is_versus(spec: EnvSpec) -> bool:
    """Tell whether a game has a winner and a loser."""
    return spec.num_players == 2 and not spec.has_common_score


def seat_of(order: int, num_players: int) -> int:
    """Return the seat of a lineup's first policy: it moves one seat left with each seat order."""
    return -order % num_players


def outcome_figures(spec: EnvSpec, games: Sequence[Episode]) -> dict[str, float]:
    """Return the outcomes of one task's games, one game per seat order.

    The winner has the greater return; penalties of bad replies do not count. A win in which the
    environment made the other player lose by a bad reply counts as a win, and is also counted
    separately.

    Example:
        {"win as first": 1.0, "draw as first": 0.0, "loss as first": 0.0,
         "bad-reply win as first": 0.0, "return as first": 2.0, "win as second": 0.0, …}
    """
    figures: dict[str, float] = {}
    names = spec.role_names
    for order, game in enumerate(games):
        seat = seat_of(order, spec.num_players)
        own_points = _points(game, seat)
        margin = own_points - _points(game, 1 - seat)
        has_forfeit = FORFEIT in [turn.action for turn in game.turns]
        role = names[seat]
        figures[f"{WIN}{AS}{role}"] = float(margin > 0)
        figures[f"{DRAW}{AS}{role}"] = float(margin == 0)
        figures[f"{LOSS}{AS}{role}"] = float(margin < 0)
        figures[f"{FORFEIT_WIN}{AS}{role}"] = float(margin > 0 and has_forfeit)
        figures[f"{RETURN}{AS}{role}"] = own_points
    return figures


def task_outcomes(figures: Sequence[Mapping[str, float]]) -> dict[str, tuple[int, ...]]:
    """Return the outcomes of all tasks by role, as in `EvaluationResult.outcomes`.

    Args:
        figures: Per task, the figures by name, see `outcome_figures`; all have the same roles.

    Example:
        {"first": (1, 1, 0), "second": (-1, 1, 0)}
    """
    outcomes = {}
    for role in played_roles(figures[0]):
        signs = []
        for task in figures:
            signs.append(round(task[f"{WIN}{AS}{role}"] - task[f"{LOSS}{AS}{role}"]))
        outcomes[role] = tuple(signs)
    return outcomes


def outcome_sheets(results: Sequence[EvaluationResult]) -> list[Sheet]:
    """Return the table of wins, draws and losses; an empty list where the game has no winner.

    A lineup has a row per seat, and one for both.
    """
    groups = []
    for result in results:
        rows = _rows(result)
        if rows:
            groups.append(rows)
    if not groups:
        return []
    sheet = Sheet(
        title="Outcomes of the first policy",
        columns=("lineup", "seat", *OUTCOMES, "normalized"),
        groups=groups,
        num_names=2,
        note=(
            "Shares with 95 % intervals over tasks, as for the score; Wilson's where every task is "
            "one game with a start of its own. Normalized: 0 is the lowest return that the rules "
            "allow, 100 the highest."
        ),
    )
    return [sheet]


def played_roles(figures: Mapping[str, float]) -> list[str]:
    """Return the roles in which the first policy played; an empty list without a winner.

    A role is left out if one of its outcomes is missing or is not a share from 0 to 1.
    """
    prefix = f"{WIN}{AS}"
    roles = []
    for name in figures:
        role = name.removeprefix(prefix)
        shares = [figures.get(f"{outcome}{AS}{role}", math.nan) for outcome in OUTCOMES]
        has_return = math.isfinite(figures.get(f"{RETURN}{AS}{role}", math.nan))
        if role != name and has_return and all(0 <= share <= 1 for share in shares):
            roles.append(role)
    return roles


def outcome_shares(figures: Mapping[str, float], roles: Sequence[str]) -> list[float]:
    """Return the share of each of `OUTCOMES`, as a mean over roles.

    Args:
        figures: Figures by name, see `outcome_figures`.
        roles: Some of `played_roles`.
    """
    return [_role_mean(figures, outcome, roles) for outcome in OUTCOMES]


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % score interval of a share of `count` games.

    With z = 1.96 it is (p + z^2 / 2n ± z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n): E. B.
    Wilson, Probable inference, the law of succession, and statistical inference, J. Am. Stat.
    Assoc. 22, 1927.
    """
    scale = 1 + _Z**2 / count
    middle = (share + _Z**2 / (2 * count)) / scale
    variance = share * (1 - share) / count + _Z**2 / (4 * count**2)
    half_width = _Z / scale * math.sqrt(variance)
    return max(0.0, middle - half_width), min(1.0, middle + half_width)


def share_interval(
    result: EvaluationResult, outcome: str, roles: Sequence[str]
) -> tuple[float, float] | None:
    """Return the 95 % interval of an outcome's share over roles; None if the share is exact.

    The unit is the task, as for the score: its value is the share over its games, and tasks of one
    start are one cluster. Wilson's interval, which is better near 0 and 1, needs independent games:
    every task is a single game with a start of its own.

    Without any variation, the error is 0 although a further task may differ. Wilson's interval of 0
    of n then bounds the share of the starts that differ, and these may have any value. If all
    starts were played, n is the number of tasks.

    Args:
        result: The result. One of an earlier version has no outcomes per task; its games count as
            independent.
        outcome: `WIN`, `DRAW` or `LOSS`.
        roles: Some of `played_roles`.
    """
    share = _role_mean(result.figures, outcome, roles)
    if not result.outcomes.keys() >= set(roles):
        return wilson(share, result.num_tasks * len(roles))
    num_starts = len(set(result.starts))
    if len(roles) == 1 and num_starts == result.num_tasks:
        return wilson(share, result.num_tasks)
    estimate = result.over_tasks(_shares_of_tasks(result, outcome, roles))
    if estimate.is_exact:
        return None
    if estimate.standard_error < _ROUNDING:
        count = result.num_tasks if result.covers_all_starts else num_starts
        _, most = wilson(0.0, count)
        return share - share * most, share + (1 - share) * most
    return max(0.0, estimate.low), min(1.0, estimate.high)


def _shares_of_tasks(result: EvaluationResult, outcome: str, roles: Sequence[str]) -> list[float]:
    """Return per task the share of its games, one per role, that have an outcome."""
    shares = []
    for task in range(result.num_tasks):
        signs = [result.outcomes[role][task] for role in roles]
        shares.append(signs.count(_SIGNS[outcome]) / len(roles))
    return shares


def _role_mean(figures: Mapping[str, float], name: str, roles: Sequence[str]) -> float:
    total = sum(figures[f"{name}{AS}{role}"] for role in roles)
    return total / len(roles)


def _points(game: Episode, player: int) -> float:
    """Return what a player earned in the game, without the penalties of bad replies."""
    points = 0.0
    for turn in game.turns:
        for part, value in turn.rewards[player].items():
            if part not in REPLY_PARTS:
                points += value
    return points


def _rows(result: EvaluationResult) -> list[tuple[str, ...]]:
    """Return a lineup's rows: one per role, and one for both."""
    roles = played_roles(result.figures)
    roles_by_seat = {role: [role] for role in roles}
    if len(roles) > 1:
        roles_by_seat[_BOTH] = roles
    rows: list[tuple[str, ...]] = []
    for seat, seat_roles in roles_by_seat.items():
        label = "" if rows else result.label
        rows.append((label, seat, *_outcome_cells(result, seat_roles)))
    return rows


def _outcome_cells(result: EvaluationResult, roles: Sequence[str]) -> list[str]:
    """Return wins, draws and losses with intervals, forfeit wins, and the normalized return."""
    *shares, forfeit_share = outcome_shares(result.figures, roles)
    cells = []
    for outcome, share in zip(_SIGNS, shares, strict=True):
        interval = share_interval(result, outcome, roles)
        if interval is None:
            cells.append(f"{figure(share)} exact")
        else:
            low, high = interval
            cells.append(f"{figure(share)} ({low:.2f} to {high:.2f})")
    cells.append(figure(forfeit_share))
    least, greatest = result.score_range
    mean_return = _role_mean(result.figures, RETURN, roles)
    # The range comes from a file and may be invalid.
    span = greatest - least if greatest > least else math.nan
    normalized = 100 * (mean_return - least) / span
    cells.append(f"{normalized:.1f}" if math.isfinite(normalized) else UNKNOWN)
    return cells
