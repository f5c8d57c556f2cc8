"""Which figures of `metrics.jsonl` are shown, in which order and under which names.

Those that every environment has come first, then what the environment itself counts, by the names
of its own."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any

from hanabi_grpo.envs.texts import visible
from hanabi_grpo.runs.history import number

WINDOW = 10
"""Steps of which the dashboard shows means."""
SCORE = "score/mean"

_PLAYER = re.compile(r"(player_[0-9]+)/(.+)", re.ASCII | re.DOTALL)
_TEAM_TITLES = {
    SCORE: "score",
    "illegal_per_game": "illegal replies a game",
    "unparsable_per_game": "unparsable replies a game",
    "out_of_tokens_per_game": "games out of tokens",
    "turns_per_game": "turns a game",
    "flat_group_share": "zero-variance groups",
    "resample/flat_after": "zero-variance groups, used",
    "loss": "loss",
    "kl": "KL to the base model, nats",
}
_PLAYER_TITLES = {
    "reward": "mean return",
    "bad_reply_share": "bad replies",
    "entropy_estimate": "entropy, nats a token",
    "tokens_per_reply": "tokens a reply",
    "grad_norm": "gradient norm",
    "parity": "logprob mismatch, nats",
    "parity_slope": "sampler: 0 this version, 1 the one before",
}
_UNSHOWN = re.compile(
    r"(alarm|time|memory|clip_ratio|tokens|games|score|validation|partners|self_play|resample)/.*|step|seconds|step_time|epoch|"
    r"learning_rate|"
    r"staleness|grad_norm|games|games_.*|groups_.*|reply_tokens|updates_dropped|unparsable_share|hint_pairs",
    re.DOTALL,
)
"""Counts and clocks, and what other figures say already."""
_PHASES = ("push", "rollout", "resample", "wait", "recall", "train")


def team_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the figures of all players together that the rows have: key to what it is, with its
    unit.
    """
    return _figures([name for name in _names(rows) if not _PLAYER.fullmatch(name)], _TEAM_TITLES)


def player_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the same of the figures of single players, their keys without `player_N/`."""
    return _figures(
        [match[2] for name in _names(rows) if (match := _PLAYER.fullmatch(name))], _PLAYER_TITLES
    )


def players(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the players that the last row has figures of."""
    return sorted({match[1] for name in _names(rows[-1:]) if (match := _PLAYER.fullmatch(name))})


def series(rows: Iterable[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Return steps and values of a figure; rows without it are left out."""
    points = [
        (int(row["step"]), value) for row in rows if (value := number(row.get(name))) is not None
    ]
    return [step for step, _ in points], [value for _, value in points]


def recent(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean of a figure over the last steps; None without a value among them."""
    values = series(rows[-WINDOW:], name)[1]
    return sum(values) / len(values) if values else None


def phases(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds that a step spent in each phase, one after another.

    With HANABI_OVERLAP the next games are played while this step learns, so only the waiting for
    them is of the step."""
    found = {
        name: value for name in _PHASES if (value := number(row.get(f"time/{name}"))) is not None
    }
    if "wait" in found:
        found.pop("rollout", None)
    return found


def recent_phases(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean seconds of each phase over the last steps."""
    last = [phases(row) for row in rows[-WINDOW:]]
    values = {name: [found[name] for found in last if name in found] for name in _PHASES}
    return {name: sum(found) / len(found) for name, found in values.items() if found}


def shown(value: float | None) -> str:
    """Return a figure as tables show it, e.g. "2.59", "0.0123", "3.6e-07"; a dash for none."""
    if value is None:
        return "–"
    return f"{value:.0f}" if 100 <= abs(value) < 100_000 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return e.g. "0:03:05", "3 days, 4:00:00"."""
    return str(timedelta(seconds=max(0, round(seconds))))


def clock(seconds: float | None, zone: tzinfo | None = None) -> str:
    """Return a time since 1970 as people read it, in this machine's zone or another; "" for
    none.
    """
    try:
        return (
            "" if seconds is None else f"{datetime.fromtimestamp(seconds, zone):%Y-%m-%d %H:%M:%S}"
        )
    except (ValueError, OverflowError, OSError):
        return ""


def _names(rows: Sequence[Mapping[str, Any]]) -> dict[str, None]:
    return dict.fromkeys(name for row in rows for name in row)


def _figures(names: Sequence[str], titles: dict[str, str]) -> dict[str, str]:
    known = {name: title for name, title in titles.items() if name in names}
    others = [name for name in names if name not in titles and not _UNSHOWN.fullmatch(name)]
    own = {
        name: visible(name.removesuffix("/mean").replace("_per_", " a ").replace("_", " "))
        for name in others
    }
    return known | own
