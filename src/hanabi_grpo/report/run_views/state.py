"""What one look at a run folder found."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hanabi_grpo.report.run_views.figures import recent
from hanabi_grpo.runs.alarms import AlarmChange, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One line of `incidents.jsonl`."""

    time: float | None
    """Seconds since 1970."""
    kind: str
    message: str
    step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What one look found."""

    name: str
    """Of the run folder."""
    is_there: bool = False
    """False while there is neither a step nor a settings file."""
    trainer: str = ""
    """Who holds the folder's lock, e.g. "pid 12 on gpu7"; "": nobody."""
    rows: Sequence[Mapping[str, Any]] = ()
    """Rows of `metrics.jsonl` by step."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    age: float | None = None
    """Seconds since `metrics.jsonl` was written."""
    raised: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Step since which an alarm is raised, by its name and subject."""
    readings: Sequence[Reading] = ()
    """What each alarm made of the last row that had its figure: raised ones first, then by distance."""
    changes: Sequence[AlarmChange] = ()
    incidents: tuple[Incident, ...] = ()
    """Oldest first."""
    checkpoints: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be read."""

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def max_steps(self) -> int | None:
        """MAX_STEPS; None where the dataset's length decides."""
        value = self.settings.get("MAX_STEPS")
        return value if type(value) is int and value > 0 else None

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds of one of the last steps."""
        return recent(self.rows, "step_time")

    @property
    def seconds_left(self) -> float | None:
        """Expected seconds to MAX_STEPS."""
        if self.max_steps is None or self.step_seconds is None:
            return None
        return max(0, self.max_steps - self.step) * self.step_seconds

    @property
    def version(self) -> int | None:
        """Version that played the games of the last step; None without one."""
        staleness = round(recent(self.rows[-1:], "staleness") or 0)
        return max(0, self.step - 1 - staleness) if self.rows else None

    @property
    def incident_counts(self) -> dict[str, int]:
        """Incidents by kind."""
        return Counter(one.kind for one in self.incidents)
