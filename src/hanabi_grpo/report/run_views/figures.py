"""The metrics of `metrics.jsonl` that are shown, with their order and titles.

Metrics that every environment has come first, then the environment's own counts under their own
names.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any

from hanabi_grpo.runs.history import number
from hanabi_grpo.texts import visible
from hanabi_grpo.types import MAX_PLAYERS, player_names

WINDOW = 10
"""Steps over which the dashboard averages."""
SCORE = "score/mean"
"""Metric of the mean score."""
EXPLOITABILITY = "exploitability"
"""Metric of what a best responder wins, see HANABI_EXPLOIT_EVERY."""

_PLAYER_METRIC = re.compile(r"(player_[0-9]+)/(.+)", re.ASCII | re.DOTALL)
_TEAM_TITLES = {
    SCORE: "score",
    "illegal_per_game": "illegal replies per game",
    "unparsable_per_game": "unparsable replies per game",
    "out_of_tokens_per_game": "games out of tokens",
    "turns_per_game": "turns per game",
    "flat_group_share": "zero-variance groups",
    "repeated_episode_share": "duplicate episodes",
    "resample/flat_after": "zero-variance groups, used",
    "loss": "loss",
    "kl": "KL to the base model, nats",
}
_PLAYER_TITLES = {
    "reward": "mean return",
    "bad_reply_share": "bad replies",
    "entropy_estimate": "entropy, nats per token",
    "tokens_per_reply": "tokens per reply",
    "grad_norm": "gradient norm",
    "parity": "logprob mismatch, nats",
    "parity_slope": "sampler's version: 0 this one, 1 the previous",
    "parity_scale": "sampler's adapter scale, 1 as trained",
    "parity_temperature": "sampler's temperature, 1 as set",
    "update_kept": "share of an update kept in 16 bits",
    "belief_loss": "surprise at hidden cards in training, nats",
    "belief_kl": "KL(exact‖stated belief), bits per card",
    "belief_bits": "surprise at hidden cards, bits per card",
    "belief_bits_exact": "surprise, knowing the partner, bits per card",
    "belief_bits_rules": "surprise, by the rules alone, bits per card",
    "belief_answered": "share of answers that name a card",
    "parity_surprise": "surprise of sampled tokens, standard errors",
}
_HIDDEN_GROUPS = (
    "alarm",
    "time",
    "memory",
    "clip_ratio",
    "tokens",
    "games",
    "score",
    "validation",
    "partners",
    "self_play",
    "resample",
)
"""Groups of metrics, e.g. "time/…", that are not shown: counts, clocks, repetitions."""
_HIDDEN_METRICS = frozenset(
    {
        "step",
        "seconds",
        "step_time",
        "epoch",
        "learning_rate",
        "staleness",
        "grad_norm",
        "games",
        "reply_tokens",
        "samples",
        "updates_dropped",
        "unparsable_share",
        "hint_pairs",
    }
)
_HIDDEN_PREFIXES = ("games_", "groups_")
_LONGEST_SECONDS = 10**10
"""Longest time span that is shown, about 300 years."""
_PHASES = ("push", "rollout", "resample", "wait", "recall", "train")
"""Phases of a step, in their order."""


def team_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the rows' figures of all players together: metric to title with unit."""
    names = []
    for name in _metric_names(rows):
        if not _PLAYER_METRIC.fullmatch(name):
            names.append(name)
    return _titles(names, _TEAM_TITLES)


def player_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the rows' figures of single players: metric without `player_N/` to title with unit."""
    names = []
    for name in _metric_names(rows):
        match = _PLAYER_METRIC.fullmatch(name)
        if match:
            names.append(match[2])
    return _titles(names, _PLAYER_TITLES)


def players(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the players with figures in the last row."""
    possible = player_names(MAX_PLAYERS)
    names = set()
    for name in _metric_names(rows[-1:]):
        match = _PLAYER_METRIC.fullmatch(name)
        if match and match[1] in possible:
            names.add(match[1])
    return sorted(names)


def series(rows: Iterable[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Return steps and values of a metric; rows without it are left out."""
    steps = []
    values = []
    for row in rows:
        value = number(row.get(name))
        if value is not None:
            steps.append(int(row["step"]))
            values.append(value)
    return steps, values


def recent(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean of a metric over the last steps; None if they have no value."""
    _, values = series(rows[-WINDOW:], name)
    return sum(values) / len(values) if values else None


def phases(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds that a step spent in each phase, one after another.

    With HANABI_OVERLAP the next games are played while this step learns, so only the time spent
    waiting for them belongs to the step.
    """
    seconds_of_phases = {}
    for name in _PHASES:
        seconds = number(row.get(f"time/{name}"))
        if seconds is not None:
            seconds_of_phases[name] = seconds
    if "wait" in seconds_of_phases:
        seconds_of_phases.pop("rollout", None)
    return seconds_of_phases


def recent_phases(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean seconds of each phase over the last steps."""
    values_of_phases: dict[str, list[float]] = {name: [] for name in _PHASES}
    for row in rows[-WINDOW:]:
        for name, seconds in phases(row).items():
            values_of_phases[name].append(seconds)
    means = {}
    for name, values in values_of_phases.items():
        if values:
            means[name] = sum(values) / len(values)
    return means


def shown(value: float | None) -> str:
    """Return a figure as tables show it, e.g. "2.59", "0.0123", "3.6e-07"; a dash for none."""
    if value is None:
        return "–"
    # "%.3g" would write 1234 as 1.23e+03.
    if 100 <= abs(value) < 100_000:
        return f"{value:.0f}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return a time span, e.g. "0:03:05", "3 days, 4:00:00"."""
    return str(timedelta(seconds=min(max(0, round(seconds)), _LONGEST_SECONDS)))


def clock(seconds: float | None, zone: tzinfo | None = None) -> str:
    """Return a time since 1970 in readable form, e.g. "2026-01-31 09:30:00"; "" for none.

    Args:
        seconds: Seconds since 1970.
        zone: Time zone; None: that of this machine.
    """
    if seconds is None:
        return ""
    try:
        return f"{datetime.fromtimestamp(seconds, zone):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return ""


def _metric_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of all metrics, each once, in the order of appearance."""
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    return list(names)


def _titles(names: Sequence[str], titles: Mapping[str, str]) -> dict[str, str]:
    """Return the titles of metrics: known ones first, then the environment's own."""
    shown_titles = {}
    for name, title in titles.items():
        if name in names:
            shown_titles[name] = title
    for name in names:
        if name not in titles and not _is_hidden(name):
            base_name = name.removesuffix("/mean")
            title = base_name.replace("_per_", " per ").replace("_", " ")
            shown_titles[name] = visible(title)
    return shown_titles


def _is_hidden(name: str) -> bool:
    group, slash, _ = name.partition("/")
    if slash and group in _HIDDEN_GROUPS:
        return True
    return name in _HIDDEN_METRICS or name.startswith(_HIDDEN_PREFIXES)
