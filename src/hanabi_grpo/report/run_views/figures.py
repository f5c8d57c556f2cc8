"""Which figures of `metrics.jsonl` are shown, in which order and under which names."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from hanabi_grpo.envs.hanabi.dynamics import number

WINDOW = 10
"""Steps of which the dashboard shows means."""
SCORE = "score/mean"

_PLAYER = re.compile(r"(player_[0-9]+)/", re.ASCII)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure."""

    name: str
    """Key in a row, of a player without `player_N/`."""
    title: str
    """What it is, with its unit."""


TEAM = (
    Figure(SCORE, "score"),
    Figure("score_kept/mean", "score kept"),
    Figure("bombs_per_game", "bombs a game"),
    Figure("illegal_per_game", "illegal replies a game"),
    Figure("unparsable_per_game", "unparsable replies a game"),
    Figure("out_of_tokens_per_game", "games out of tokens"),
    Figure("hints_per_game", "hints a game"),
    Figure("turns_per_game", "turns a game"),
    Figure("flat_group_share", "deals without spread"),
    Figure("loss", "loss"),
    Figure("kl", "KL to the base model, nats"),
)
PLAYER = (
    Figure("reward", "mean return"),
    Figure("entropy_estimate", "entropy, nats a token"),
    Figure("bad_reply_share", "bad replies"),
    Figure("hint_bits", "bits a hint tells"),
    Figure("share/play", "turns that play"),
    Figure("share/hint", "turns that hint"),
    Figure("blind_share", "plays its oldest card"),
    Figure("tokens_per_reply", "tokens a reply"),
    Figure("grad_norm", "gradient norm"),
    Figure("parity", "parity gap, nats"),
)
_PHASES = ("push", "rollout", "wait", "recall", "train")


def series(rows: Iterable[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Return steps and values of a figure; rows without it are left out."""
    points = [(int(row["step"]), value) for row in rows if (value := number(row.get(name))) is not None]
    return [step for step, _ in points], [value for _, value in points]


def recent(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean of a figure over the last steps; None without a value among them."""
    values = series(rows[-WINDOW:], name)[1]
    return sum(values) / len(values) if values else None


def players(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the players that the last row has figures of."""
    last = rows[-1] if rows else {}
    return sorted({match[1] for name in last if (match := _PLAYER.match(name))})


def phases(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds that a step spent in each phase, one after another.

    With HANABI_OVERLAP the next games are played while this step learns, so only the waiting for them is of the step.
    """
    found = {name: value for name in _PHASES if (value := number(row.get(f"time/{name}"))) is not None}
    if "wait" in found:
        found.pop("rollout", None)
    return found


def recent_phases(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean seconds of each phase over the last steps."""
    found: dict[str, list[float]] = {}
    for row in rows[-WINDOW:]:
        for name, value in phases(row).items():
            found.setdefault(name, []).append(value)
    return {name: sum(found[name]) / len(found[name]) for name in _PHASES if name in found}


def shown(value: float | None) -> str:
    """Return a figure as tables show it, e.g. "2.59", "0.0123", "3.6e-07"."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if abs(value) < 0.001 or abs(value) >= 100_000:
        return f"{value:.1e}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def duration(seconds: float) -> str:
    """Return e.g. "12 s", "3 min 05 s", "2 h 07 min", "3 d 4 h"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def clock(seconds: float | None, zone: tzinfo | None = None) -> str:
    """Return a time since 1970 as people read it, in this machine's zone or another; "" for none."""
    try:
        return "" if seconds is None else f"{datetime.fromtimestamp(seconds, zone):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return ""
