"""Wins, draws and losses of a lineup's first word in games of two players against each other, from
both seats.
"""

import math
from collections.abc import Mapping, Sequence

from hanabi_grpo.envs.base import FORFEIT, EnvSpec
from hanabi_grpo.evaluation.sheets import Sheet, figure
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.types import REPLY_PARTS, Episode

OUTCOMES = ("win", "draw", "loss", "bad-reply win")
RETURN = "return"
"""Of the game, without what bad replies cost."""
AS = " as "
"""Between an outcome and the role in which it was reached, e.g. "win as first"."""
_Z = 1.959964
"""Of a 95 % interval."""


def is_versus(spec: EnvSpec) -> bool:
    """Tell whether a game has a winner and a loser."""
    return spec.num_players == 2 and not spec.has_common_score


def seat_of(order: int, num_players: int) -> int:
    """Return where a lineup's first word sits: one seat further to the left in each seat order."""
    return -order % num_players


def outcome_figures(spec: EnvSpec, games: Sequence[Episode]) -> dict[str, float]:
    """Return the outcomes of one task's games, one per seat order, e.g. {"win as first": 1.0, "draw
    as first": 0.0, …}.

    The winner has the greater return; what a bad reply costs beside the game does not count. A win
    in which the other player lost by a bad reply, where the environment says so, counts as a win
    and apart."""
    found: dict[str, float] = {}
    for order, game in enumerate(games):
        seat = seat_of(order, spec.num_players)
        margin = _points(game, seat) - _points(game, 1 - seat)
        is_forfeit = any(turn.action == FORFEIT for turn in game.turns)
        happened = (margin > 0, margin == 0, margin < 0, margin > 0 and is_forfeit)
        for name, has in zip(OUTCOMES, happened, strict=True):
            found[f"{name}{AS}{spec.roles[seat]}"] = float(has)
        found[f"{RETURN}{AS}{spec.roles[seat]}"] = _points(game, seat)
    return found


def outcome_sheets(results: Sequence[EvaluationResult]) -> list[Sheet]:
    """Return the table of wins, draws and losses, none where nobody wins; a row per seat and one
    for both.
    """
    groups = [rows for result in results if (rows := _rows(result))]
    note = (
        "Shares with 95 % Wilson intervals. Normalised: 0 is the least return of the rules, "
        "100 the greatest."
    )
    columns = ("lineup", "seat", *OUTCOMES, "normalised")
    title = "Outcomes of the first word"
    return (
        [Sheet(title=title, columns=columns, groups=groups, num_names=2, note=note)]
        if groups
        else []
    )


def played_roles(figures: Mapping[str, float]) -> list[str]:
    """Return the roles in which the first word played; empty where nobody wins."""
    return [name.removeprefix(f"win{AS}") for name in figures if name.startswith(f"win{AS}")]


def outcome_shares(figures: Mapping[str, float], roles: Sequence[str]) -> list[float]:
    """Return the shares of `OUTCOMES` as a mean over roles, from figures by name, see
    `outcome_figures`.
    """
    return [sum(figures[f"{name}{AS}{role}"] for role in roles) / len(roles) for name in OUTCOMES]


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % score interval of a share of `count` games (Wilson, J. Am. Stat. Assoc. 22,
    1927).
    """
    scale = 1 + _Z**2 / count
    middle = (share + _Z**2 / (2 * count)) / scale
    half = _Z / scale * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def _points(game: Episode, player: int) -> float:
    parts = (item for turn in game.turns for item in turn.rewards[player].items())
    return sum(value for name, value in parts if name not in REPLY_PARTS)


def _rows(result: EvaluationResult) -> list[tuple[str, ...]]:
    roles = played_roles(result.figures)
    if not roles:
        return []
    rows: list[tuple[str, ...]] = []
    low, high = result.score_range
    for seat in (*roles, *(["both"] if len(roles) > 1 else [])):
        parts = roles if seat == "both" else [seat]
        shares = outcome_shares(result.figures, parts)
        between = [(share, *wilson(share, result.num_tasks * len(parts))) for share in shares[:-1]]
        cells = [f"{figure(share)} ({least:.2f} to {most:.2f})" for share, least, most in between]
        won = sum(result.figures[f"{RETURN}{AS}{role}"] for role in parts) / len(parts)
        cells += [figure(shares[-1]), f"{100 * (won - low) / (high - low):.1f}"]
        rows.append((result.label if not rows else "", seat, *cells))
    return rows
