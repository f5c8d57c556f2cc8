"""A run folder looked at again and again, while a trainer writes it, resumes it, or has not made it
yet.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.run_views.figures import recent
from hanabi_grpo.runs.alarms import AlarmChange, AlarmWatch, Reading, alarms_of
from hanabi_grpo.runs.history import number, read_history
from hanabi_grpo.runs.manifest import checkpoints_of
from hanabi_grpo.runs.run_folder import TRAIN, holder_of, recorded_settings, run_home


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
    """What each alarm made of the last row that had its figure: raised ones first, then by
    distance.
    """
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


class RunWatch:
    """Looks at one run folder; a file is read when it has changed.

    Example:
        watch = RunWatch(Path("outputs/my-run"))
        state = watch.look()
        print(state.step, list(state.raised))
    """

    def __init__(self, folder: Path) -> None:
        """Prepare for a run folder, or one that holds it as `train/`; it need not exist."""
        self.folder = folder
        self._start(folder)

    def _start(self, home: Path) -> None:
        self._home = home
        self._seen: dict[str, tuple[int, int, int] | None] = {}
        self._rows: list[dict[str, Any]] = []
        self._forget_alarms()
        self._incidents: tuple[Incident, ...] = ()

    def _forget_alarms(self) -> None:
        self._alarms = AlarmWatch(alarms_of(recorded_settings(self._home)))
        self._readings: dict[tuple[str, str], Reading] = {}
        self._changes: list[AlarmChange] = []

    def look(self) -> RunState:
        """Return what the folder holds now; what cannot be read is in the notes."""
        home = run_home(self.folder)
        if home != self._home:
            self._start(home)
        notes: list[str] = []
        for read in (self._read_metrics, self._read_incidents):
            try:
                read()
            except OSError as error:
                notes.append(f"{error.filename}: cannot be read ({error.strerror})")
                self._seen.clear()
        settings = recorded_settings(home)
        raised = self._alarms.raised
        written = (self._seen.get("metrics.jsonl") or (0, 0, 0))[2]
        whole = self.folder.resolve()
        return RunState(
            # A folder called train/ is named by what it belongs to.
            name=visible(f"{whole.parent.name}/{TRAIN}" if whole.name == TRAIN else whole.name),
            is_there=bool(self._rows or settings),
            trainer=visible(holder_of(home)),
            rows=self._rows,
            settings=settings,
            # Another machine's clock may be ahead.
            age=max(0.0, time.time() - written / 1e9) if written else None,
            raised=raised,
            readings=sorted(
                self._readings.values(), key=lambda one: (one.key not in raised, one.distance)
            ),
            changes=tuple(self._changes),
            incidents=self._incidents,
            checkpoints=tuple(checkpoints_of(home)),
            notes=tuple(map(visible, notes)),
        )

    def _read_metrics(self) -> None:
        if self._is_new("metrics.jsonl"):
            rows = read_history(self._home / "metrics.jsonl")
            known = len(self._rows)
            if not known or rows[:known] != self._rows:
                # A resumed run makes steps again.
                self._forget_alarms()
                known = 0
            for row in rows[known:]:
                self._changes += self._alarms.update(row)
                self._readings |= {one.key: one for one in self._alarms.readings}
            self._rows = rows

    def _read_incidents(self) -> None:
        if self._is_new("incidents.jsonl"):
            path = self._home / "incidents.jsonl"
            lines = path.read_bytes().splitlines() if path.exists() else []
            self._incidents = tuple(filter(None, map(_incident, lines)))

    def _is_new(self, name: str) -> bool:
        """Tell whether a file changed since it was last asked for."""
        try:
            facts = (self._home / name).stat()
            seen = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
        except FileNotFoundError:
            seen = None
        is_new = seen != self._seen.get(name)
        self._seen[name] = seen
        return is_new


def read_run(folder: Path) -> RunState:
    """Return what a run folder holds, for commands that need its steps; a SettingsError: no run, or
    no step.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "no such folder"
        raise SettingsError(f"{folder}: {what}; give the folder of a run (OUTPUT_DIR).")
    state = RunWatch(folder).look()
    if not state.rows:
        why = f" ({state.notes[0]})" if state.notes else ""
        raise SettingsError(
            f"{folder}: its metrics.jsonl holds no step{why}; the run ended before its first one, "
            "or this is no run."
        )
    return state


def _incident(line: bytes) -> Incident | None:
    try:
        row = json.loads(line)
        time, step, message = (
            number(row.get("time")),
            row.get("step"),
            visible(str(row.get("message", ""))),
        )
        return Incident(time=time, kind=visible(row["kind"]), message=message, step=step)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        # The last line may still be written.
        return None
