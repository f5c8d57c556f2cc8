"""Raises an alarm of a run once, and says when it is over."""

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.alarms import GENERAL, WINDOW, Alarm
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.history import number

_PLAYER = re.compile(r"(player_[0-9]+)/", re.ASCII)
_BOARD = re.compile(r"games/(.+)", re.ASCII)
_JUMPS = 50  # Jumps between readings from which the noise of a figure is estimated


def alarms_of(settings: Mapping[str, Any]) -> tuple[Alarm, ...]:
    """Return the alarms of a run, given its settings by variable: its environment's, and the
    general ones.

    In a zero-sum game the mean score of self-play is no sign of anything.
    """
    env = settings.get("HANABI_ENV") or "hanabi"
    try:
        kept = (
            one
            for one in GENERAL
            if not (one.figure.startswith("score/") and registry.is_zero_sum(env))
        )
        return (*registry.get(env).alarms, *kept)
    except SettingsError:
        return GENERAL


@dataclass(slots=True)
class _Series:
    window: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    jumps: deque[float] = field(default_factory=lambda: deque(maxlen=_JUMPS))
    count: int = 0
    first: float | None = None
    highest: float | None = None

    def add(self, value: float) -> None:
        if self.window:
            self.jumps.append(abs(value - self.window[-1]))
        self.window.append(value)
        self.count += 1
        if self.count < WINDOW:
            return
        mean = self.mean
        self.first = mean if self.first is None else self.first
        self.highest = mean if self.highest is None else max(self.highest, mean)

    @property
    def mean(self) -> float:
        return sum(self.window) / len(self.window)

    @property
    def noise(self) -> float:
        """Standard error of `mean`, from the mean jump between readings, which a trend hardly
        touches.

        Of independent normal readings the mean jump is 2 / sqrt(pi) = 1.128 standard deviations
        (the moving range of control charts: Montgomery, "Introduction to Statistical Quality
        Control")."""
        if not self.jumps:
            return 0.0
        return sum(self.jumps) / len(self.jumps) * math.sqrt(math.pi) / 2 / math.sqrt(WINDOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmChange:
    """An alarm that was raised, or is over."""

    alarm: Alarm
    subject: str
    """A player or a board; "": the whole run."""
    step: int
    value: float
    """Mean of the last readings."""
    level: float
    """The threshold that was crossed."""
    since: int | None = None
    """Step at which it was raised; None: it is raised now."""

    @property
    def message(self) -> str:
        """What happened, what it means and what to do."""
        of = f"{self.subject}: " if self.subject else ""
        found = f"{of}{self.alarm.title} is {self.value:.3g} over the last {WINDOW} steps"
        if self.since is not None:
            return f"{self.alarm.name} is over: {found}; it was raised at step {self.since}."
        side = "below" if self.alarm.below else "above"
        return (
            f"{self.alarm.name}: {found} ({side} {self.level:.3g}): {self.alarm.means} "
            f"{self.alarm.do}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an alarm made of one step, for tables and pictures."""

    alarm: Alarm
    subject: str
    value: float
    """Of this step."""
    mean: float
    """Over the last readings; fewer at the start."""
    level: float | None
    """The threshold now; None while the reference is unknown."""
    raised: bool

    @property
    def key(self) -> tuple[str, str]:
        """Name and subject of the alarm."""
        return self.alarm.name, self.subject

    @property
    def distance(self) -> float:
        """How far the figure is from its threshold, as a share of it."""
        if self.level is None:
            return math.inf
        gap = self.mean - self.level if self.alarm.below else self.level - self.mean
        return gap / (abs(self.level) or 1.0)


class AlarmWatch:
    """Watches the rows of one run. Everything depends on the rows alone, so a resumed run replays
    them.
    """

    def __init__(self, alarms: Sequence[Alarm]) -> None:
        """Start before the first step, with `alarms_of` what is played."""
        self.alarms = tuple(alarms)
        self.readings: list[Reading] = []
        """What each alarm made of the last row that was given."""
        self._series: dict[str, _Series] = {}
        self._since: dict[tuple[str, str], int] = {}
        self._heard: set[str] = set()

    @classmethod
    def after(cls, rows: Iterable[Mapping[str, Any]], alarms: Sequence[Alarm]) -> "AlarmWatch":
        """Return the watch as it stood after these rows."""
        watch = cls(alarms)
        for row in rows:
            watch.update(row)
        return watch

    @property
    def raised(self) -> dict[tuple[str, str], int]:
        """Name and subject of every alarm that is raised, and since which step."""
        return dict(self._since)

    def metrics(self) -> dict[str, float]:
        """Return `alarm/<name>`: 1 while it is raised for anybody, else 0; alarms without a reading
        are absent.
        """
        raised = {name for name, _ in self._since}
        return {
            f"alarm/{one.name}": float(one.name in raised)
            for one in self.alarms
            if one.name in self._heard
        }

    def update(self, row: Mapping[str, Any]) -> list[AlarmChange]:
        """Take a row of one step and return what changed; figures that are absent or not finite
        change nothing.
        """
        step = int(row["step"])
        subjects = {
            "player": sorted({match[1] for key in row if (match := _PLAYER.match(key))}),
            "board": [match[1] for key in row if (match := _BOARD.fullmatch(key))],
        }
        figures = [
            (alarm, figure, subject)
            for alarm in self.alarms
            for figure, subject in _expand(alarm, subjects)
        ]
        for figure in dict.fromkeys(figure for _, figure, _ in figures):
            value = number(row.get(figure))
            if value is not None:
                self._series.setdefault(figure, _Series()).add(value)
        changes = []
        self.readings = []
        for alarm, figure, subject in figures:
            value, series = number(row.get(figure)), self._series.get(figure)
            if value is not None and series is not None:
                self._heard.add(alarm.name)
                changes += self._look(alarm, series, subject, step)
                level, raised = _level(alarm, series), (alarm.name, subject) in self._since
                self.readings.append(
                    Reading(
                        alarm=alarm,
                        subject=subject,
                        value=value,
                        mean=series.mean,
                        level=level,
                        raised=raised,
                    )
                )
        return changes

    def _look(self, alarm: Alarm, series: _Series, subject: str, step: int) -> list[AlarmChange]:
        key = (alarm.name, subject)
        since = self._since.get(key)
        level = _level(alarm, series, clear=since is not None)
        if level is None or series.count < WINDOW:
            return []
        beyond = series.mean < level if alarm.below else series.mean > level
        if beyond != (since is None) or (since is None and series.count < alarm.after):
            return []
        if since is None:
            self._since[key] = step
        else:
            del self._since[key]
        return [
            AlarmChange(
                alarm=alarm, subject=subject, step=step, value=series.mean, level=level, since=since
            )
        ]


def _level(alarm: Alarm, series: _Series, *, clear: bool = False) -> float | None:
    reference = series.first if alarm.reference == "first" else series.highest
    return alarm.level(reference, noise=series.noise, clear=clear)


def _expand(alarm: Alarm, subjects: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    for kind, names in subjects.items():
        if f"{{{kind}}}" in alarm.figure:
            return [(alarm.figure.replace(f"{{{kind}}}", name), name) for name in names]
    return [(alarm.figure, "")]
