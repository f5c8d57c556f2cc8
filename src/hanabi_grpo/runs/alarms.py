"""Watches the metrics of a run: raises an alarm once, and reports when it is over."""

import math
import re
import textwrap
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.alarms import GENERAL, WINDOW, Alarm
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.history import number

_PLAYER_METRIC = re.compile(r"(player_[0-9]+)/", re.ASCII)
_BOARD_METRIC = re.compile(r"games/(.+)", re.ASCII)
_NUM_JUMPS = 50
"""Jumps between readings from which the noise of a figure is estimated."""

AlarmKey = tuple[str, str]
"""Name and subject of an alarm, e.g. ("blind_play", "player_0") or ("kl", "")."""


def alarms_of(settings: Mapping[str, Any]) -> tuple[Alarm, ...]:
    """Return the alarms of a run: those of its environment, and the general ones.

    In a zero-sum game the mean score of self-play is not informative, so alarms on scores are left
    out. For an environment that is not installed, only the general alarms are known.

    Args:
        settings: Settings of the run, by variable.
    """
    env = settings.get("HANABI_ENV") or "hanabi"
    try:
        own_alarms = registry.get(env).alarms
        is_zero_sum = registry.is_zero_sum(env)
    except SettingsError:
        return GENERAL
    alarms = list(own_alarms)
    for alarm in GENERAL:
        if not (is_zero_sum and alarm.figure.startswith("score/")):
            alarms.append(alarm)
    return tuple(alarms)


@dataclass(slots=True)
class _Series:
    """The readings of one metric."""

    window: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """The last readings."""
    jumps: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_JUMPS))
    """The last absolute differences between neighbors."""
    count: int = 0
    """Readings so far."""
    first: float | None = None
    """Mean of the first whole window."""
    highest: float | None = None
    """Highest mean of a whole window so far."""

    def add(self, value: float) -> None:
        if self.window:
            self.jumps.append(abs(value - self.window[-1]))
        self.window.append(value)
        self.count += 1
        if self.count < WINDOW:
            return
        mean = self.mean
        if self.first is None or self.highest is None:
            self.first = mean
            self.highest = mean
        self.highest = max(self.highest, mean)

    @property
    def mean(self) -> float:
        return sum(self.window) / len(self.window)

    @property
    def noise(self) -> float:
        """Standard error of `mean`, from the mean jump between readings.

        A trend hardly affects the jumps. For independent normal readings the mean jump is
        2 / sqrt(pi) = 1.128 standard deviations (the moving range of control charts: Montgomery,
        "Introduction to Statistical Quality Control").
        """
        if not self.jumps:
            return 0.0
        mean_jump = sum(self.jumps) / len(self.jumps)
        standard_deviation = mean_jump * math.sqrt(math.pi) / 2
        return standard_deviation / math.sqrt(WINDOW)


_LINE_WIDTH = 92
"""Width of a line of advice, before the indentation of the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmChange:
    """An alarm that was raised, or that ended."""

    alarm: Alarm
    subject: str
    """A player or a board; "": the whole run."""
    step: int
    value: float
    """Mean of the last readings."""
    level: float
    """The threshold that was crossed."""
    since: int | None = None
    """Step at which the alarm was raised; None: it is raised now."""

    @property
    def message(self) -> str:
        """Message that says what happened, what it means and what to do."""
        if self.since is not None:
            return self._happened
        return f"{self._happened}: {self._advice}"

    @property
    def lines(self) -> list[str]:
        """The message in lines for a terminal: what happened, what it means and what to do."""
        if self.since is not None:
            return [self._happened]
        advice = textwrap.wrap(
            self._advice, _LINE_WIDTH, break_long_words=False, break_on_hyphens=False
        )
        return [self._happened, *advice]

    @property
    def _advice(self) -> str:
        return f"{self.alarm.means} {self.alarm.do}"

    @property
    def _happened(self) -> str:
        alarm = self.alarm
        subject = f"{self.subject}: " if self.subject else ""
        reading = f"{subject}{alarm.title} is {self.value:.3g} over the last {WINDOW} steps"
        if self.since is not None:
            return f"{alarm.name} is over: {reading}; it was raised at step {self.since}."
        side = "below" if alarm.below else "above"
        return f"{alarm.name}: {reading} ({side} {self.level:.3g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The reading of an alarm at one step, for tables and charts."""

    alarm: Alarm
    subject: str
    """A player or a board; "": the whole run."""
    value: float
    """The metric at this step."""
    mean: float
    """Mean over the last readings; over fewer at the start."""
    level: float | None
    """The threshold now; None while the reference is unknown."""
    raised: bool
    """Whether the alarm is raised after this step."""

    @property
    def key(self) -> AlarmKey:
        """Name and subject of the alarm."""
        return self.alarm.name, self.subject

    @property
    def distance(self) -> float:
        """Distance of the mean from the threshold, as a share of it; negative beyond it."""
        if self.level is None:
            return math.inf
        gap = self.mean - self.level
        if not self.alarm.below:
            gap = -gap
        return gap / (abs(self.level) or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    """One alarm on one metric of a row."""

    alarm: Alarm
    metric: str
    """E.g. "player_0/blind_share" for the alarm's figure "{player}/blind_share"."""
    subject: str


class AlarmWatch:
    """Watches the rows of one run.

    The state depends only on the rows, so a resumed run replays them.

    Example:
        watch = AlarmWatch.after(read_history(folder / "metrics.jsonl"), alarms_of(settings))
        watch.raised == {("blind_play", "player_0"): 37}
    """

    def __init__(self, alarms: Sequence[Alarm]) -> None:
        """Start before the first step, with the alarms of the environment, see `alarms_of`."""
        self.alarms = tuple(alarms)
        self.readings: list[Reading] = []
        """Readings of the alarms at the last row."""
        self._series: dict[str, _Series] = {}
        self._raised_since: dict[AlarmKey, int] = {}
        self._names_with_readings: set[str] = set()

    @classmethod
    def after(cls, rows: Iterable[Mapping[str, Any]], alarms: Sequence[Alarm]) -> "AlarmWatch":
        """Return a watch that has seen these rows."""
        watch = cls(alarms)
        for row in rows:
            watch.update(row)
        return watch

    @property
    def raised(self) -> dict[AlarmKey, int]:
        """Step since which each alarm is raised, by its name and subject."""
        return dict(self._raised_since)

    def metrics(self) -> dict[str, float]:
        """Return `alarm/<name>`: 1 while it is raised for any subject, else 0.

        Alarms without a reading so far are absent.
        """
        raised_names = {name for name, _ in self._raised_since}
        metrics = {}
        for alarm in self.alarms:
            if alarm.name in self._names_with_readings:
                metrics[f"alarm/{alarm.name}"] = float(alarm.name in raised_names)
        return metrics

    def update(self, row: Mapping[str, Any]) -> list[AlarmChange]:
        """Process the row of one step and return the changes.

        Metrics that are absent or not finite change nothing.
        """
        step = int(row["step"])
        watched = self._watched_metrics(row)
        # Several alarms may watch one metric; each of its values is added once.
        metrics = [entry.metric for entry in watched]
        for metric in dict.fromkeys(metrics):
            value = number(row.get(metric))
            if value is not None:
                self._series.setdefault(metric, _Series()).add(value)
        changes = []
        self.readings = []
        for entry in watched:
            value = number(row.get(entry.metric))
            if value is None:
                continue
            self._names_with_readings.add(entry.alarm.name)
            series = self._series[entry.metric]
            change = self._check(entry, series, step)
            if change is not None:
                changes.append(change)
            reading = Reading(
                alarm=entry.alarm,
                subject=entry.subject,
                value=value,
                mean=series.mean,
                level=_level(entry.alarm, series),
                raised=(entry.alarm.name, entry.subject) in self._raised_since,
            )
            self.readings.append(reading)
        return changes

    def _watched_metrics(self, row: Mapping[str, Any]) -> list[_Watched]:
        """Return every alarm with each metric of the row's players and boards that it reads."""
        players: set[str] = set()
        boards: list[str] = []
        for key in row:
            player_match = _PLAYER_METRIC.match(key)
            if player_match is not None:
                players.add(player_match[1])
                continue
            board_match = _BOARD_METRIC.fullmatch(key)
            if board_match is not None:
                boards.append(board_match[1])
        subjects_of_placeholder = {"{player}": sorted(players), "{board}": boards}
        watched = []
        for alarm in self.alarms:
            for metric, subject in _expand(alarm.figure, subjects_of_placeholder):
                watched.append(_Watched(alarm=alarm, metric=metric, subject=subject))
        return watched

    def _check(self, entry: _Watched, series: _Series, step: int) -> AlarmChange | None:
        """Raise or end an alarm; return the change, None if nothing changed."""
        alarm = entry.alarm
        key = (alarm.name, entry.subject)
        since = self._raised_since.get(key)
        is_raised = since is not None
        level = _level(alarm, series, clear=is_raised)
        if level is None or series.count < WINDOW:
            return None
        is_beyond = series.mean < level if alarm.below else series.mean > level
        if is_beyond == is_raised:
            return None
        if not is_raised and series.count < alarm.after:
            return None
        if is_raised:
            del self._raised_since[key]
        else:
            self._raised_since[key] = step
        return AlarmChange(
            alarm=alarm,
            subject=entry.subject,
            step=step,
            value=series.mean,
            level=level,
            since=since,
        )


def _level(alarm: Alarm, series: _Series, *, clear: bool = False) -> float | None:
    reference = series.first if alarm.reference == "first" else series.highest
    return alarm.level(reference, noise=series.noise, clear=clear)


def _expand(
    figure: str, subjects_of_placeholder: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    """Return each metric that matches a figure, with its subject.

    Example:
        _expand("{player}/cut_share", {"{player}": ["player_0", "player_1"], "{board}": []}) ==
            [("player_0/cut_share", "player_0"), ("player_1/cut_share", "player_1")]
    """
    for placeholder, subjects in subjects_of_placeholder.items():
        if placeholder in figure:
            return [(figure.replace(placeholder, subject), subject) for subject in subjects]
    return [(figure, "")]
