"""The state of a run folder, read repeatedly while a trainer writes, resumes or creates it."""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.files import MAX_INCIDENTS_BYTES, read_bytes
from hanabi_grpo.report.run_views.figures import recent
from hanabi_grpo.runs.alarms import AlarmChange, AlarmWatch, Reading, alarms_of
from hanabi_grpo.runs.history import MAX_STEP, number, read_whole_history
from hanabi_grpo.runs.manifest import checkpoints_of
from hanabi_grpo.runs.run_folder import TRAIN, holder_of, recorded_settings, run_home
from hanabi_grpo.runs.validation import FILE as VALIDATIONS
from hanabi_grpo.runs.validation import Validated, read_validations
from hanabi_grpo.texts import visible, visible_line

_METRICS = "metrics.jsonl"
_INCIDENTS = "incidents.jsonl"
_NANOSECONDS = 1e9
"""In a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One line of `incidents.jsonl`."""

    time: float | None
    """Seconds since 1970."""
    kind: str
    """E.g. "server_gone"."""
    message: str
    step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run folder at one moment."""

    name: str
    """Name of the run folder."""
    is_there: bool = False
    """False while there is neither a step nor a settings file."""
    trainer: str = ""
    """The process that holds the folder's lock, e.g. "pid 12 on gpu7"; "": none."""
    rows: Sequence[Mapping[str, Any]] = ()
    """Rows of `metrics.jsonl` by step."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings by variable."""
    age: float | None = None
    """Seconds since `metrics.jsonl` was written."""
    raised: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Step since which an alarm is raised, by its name and subject."""
    readings: Sequence[Reading] = ()
    """Reading of each alarm at the last row that had its metric: raised ones first, then by
    distance."""
    changes: Sequence[AlarmChange] = ()
    """Alarms that were raised or ended, by step."""
    incidents: tuple[Incident, ...] = ()
    """Incidents, oldest first."""
    checkpoints: tuple[int, ...] = ()
    """Steps of the checkpoints, ascending."""
    validations: tuple[Validated, ...] = ()
    """Validations of all curves, by step."""
    notes: tuple[str, ...] = ()
    """Notes about what could not be read."""

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def max_steps(self) -> int | None:
        """MAX_STEPS; None where the dataset's length decides."""
        value = self.settings.get("MAX_STEPS")
        return value if type(value) is int and 0 < value <= MAX_STEP else None

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
        if not self.rows:
            return None
        staleness = round(recent(self.rows[-1:], "staleness") or 0)
        return max(0, self.step - 1 - staleness)

    @property
    def incident_counts(self) -> dict[str, int]:
        """Incidents by kind."""
        kinds = [incident.kind for incident in self.incidents]
        return Counter(kinds)


class _FileVersion(NamedTuple):
    """Attributes of a file that change with its content."""

    inode: int
    size: int
    written_ns: int
    """Nanoseconds since 1970."""


class RunWatch:
    """Watches one run folder; a file is read only when it has changed.

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
        """Reset, and start with the run in a folder."""
        self._home = home
        self._versions: dict[str, _FileVersion | None] = {}
        """Versions of the files when they were read; None: the file was missing."""
        self._rows: list[dict[str, Any]] = []
        self._history_note = ""
        """What was left out of `metrics.jsonl`."""
        self._incidents: tuple[Incident, ...] = ()
        self._validations: tuple[Validated, ...] = ()
        self._validation_note = ""
        """Why `validation.json` could not be read."""
        self._forget_alarms()

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
        for read in (self._read_metrics, self._read_incidents, self._read_validations):
            try:
                read()
            except OSError as error:
                notes.append(f"{error.filename}: cannot be read ({error.strerror})")
                self._versions.clear()
        if self._history_note:
            notes.append(self._history_note)
        if self._validation_note:
            notes.append(self._validation_note)
        settings = recorded_settings(home)
        raised = self._alarms.raised
        readings = sorted(
            self._readings.values(),
            key=lambda reading: (reading.key not in raised, reading.distance),
        )
        return RunState(
            name=self._name(),
            is_there=bool(self._rows or settings),
            trainer=visible_line(holder_of(home)),
            rows=self._rows,
            settings=settings,
            age=self._age(),
            raised=raised,
            readings=readings,
            changes=tuple(self._changes),
            incidents=self._incidents,
            checkpoints=tuple(checkpoints_of(home)),
            validations=self._validations,
            notes=tuple(map(visible, notes)),
        )

    def _name(self) -> str:
        """Return the folder's name; that of train/ includes its parent's name."""
        path = self.folder.resolve()
        if path.name == TRAIN:
            return visible_line(f"{path.parent.name}/{TRAIN}")
        return visible_line(path.name)

    def _age(self) -> float | None:
        """Return the seconds since `metrics.jsonl` was written; None where it is missing."""
        version = self._versions.get(_METRICS)
        if version is None:
            return None
        # Another machine's clock may be ahead.
        return max(0.0, time.time() - version.written_ns / _NANOSECONDS)

    def _read_metrics(self) -> None:
        if not self._has_changed(_METRICS):
            return
        history = read_whole_history(self._home / _METRICS)
        self._history_note = history.note
        rows = history.rows
        num_known = len(self._rows)
        is_continued = num_known > 0 and rows[:num_known] == self._rows
        if not is_continued:
            # A resumed run repeats steps.
            self._forget_alarms()
            num_known = 0
        for row in rows[num_known:]:
            self._changes += self._alarms.update(row)
            for reading in self._alarms.readings:
                self._readings[reading.key] = reading
        self._rows = rows

    def _read_incidents(self) -> None:
        if not self._has_changed(_INCIDENTS):
            return
        content = b""
        with contextlib.suppress(FileNotFoundError):
            content = read_bytes(self._home / _INCIDENTS, MAX_INCIDENTS_BYTES)
        incidents = []
        for line in content.splitlines():
            incident = _parse_incident(line)
            if incident is not None:
                incidents.append(incident)
        self._incidents = tuple(incidents)

    def _read_validations(self) -> None:
        if not self._has_changed(VALIDATIONS):
            return
        self._validation_note = ""
        try:
            self._validations = tuple(read_validations(self._home))
        except RunFolderError as error:
            self._validations = ()
            self._validation_note = str(error)

    def _has_changed(self, name: str) -> bool:
        """Tell whether a file changed since the last call."""
        version = None
        try:
            status = (self._home / name).stat()
            version = _FileVersion(status.st_ino, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            pass
        has_changed = version != self._versions.get(name)
        self._versions[name] = version
        return has_changed


def read_run(folder: Path) -> RunState:
    """Return what a run folder holds, for commands that need its steps.

    Raises:
        SettingsError: The folder is not a run, or the run has no step.
    """
    if not folder.is_dir():
        reason = "is a file" if folder.exists() else "no such folder"
        raise SettingsError(f"{folder}: {reason}; give the folder of a run (OUTPUT_DIR).")
    state = RunWatch(folder).look()
    if not state.rows:
        reason = f" ({state.notes[0]})" if state.notes else ""
        raise SettingsError(
            f"{folder}: its metrics.jsonl has no step{reason}; the run ended before its first one, "
            "or this is not a run folder."
        )
    return state


def _parse_incident(line: bytes) -> Incident | None:
    """Return the incident of a line; None for any other line: the last one may be incomplete."""
    try:
        row = json.loads(line)
        step = row.get("step")
        return Incident(
            time=number(row.get("time")),
            kind=visible_line(row["kind"]),
            message=visible(str(row.get("message", ""))),
            step=step if type(step) is int and 0 <= step <= MAX_STEP else None,
        )
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
