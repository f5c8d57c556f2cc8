"""A run folder looked at again and again, while a trainer writes it, resumes it, or has not made it yet."""

import json
import os
import re
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.hanabi.dynamics import AlarmWatch, number
from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.run_views.last_game import LastGameWatch
from hanabi_grpo.report.run_views.state import Incident, RaisedAlarm, RunState
from hanabi_grpo.report.run_views.tail import LineTail
from hanabi_grpo.runs.manifest import CHECKPOINT_NAME
from hanabi_grpo.runs.run_folder import LOCK, TRAIN, recorded_settings, run_home

_HOLDER = re.compile(r"pid ([0-9]{1,10}) on (.+)", re.ASCII)
_KEPT_INCIDENTS = 200


class RunWatch:
    """Looks at one run folder; each look reads only what is new.

    Example:
        watch = RunWatch(Path("outputs/my-run"))
        state = watch.look()
        print(state.step, [alarm.name for alarm in state.alarms])
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Prepare; the folder need not exist.

        Args:
            folder: Run folder, or one that holds it as `train/`.
            clock: Seconds since 1970.
        """
        self.folder, self._clock = folder, clock
        self._start(folder)

    def _start(self, home: Path) -> None:
        self._home = home
        self._metrics = LineTail(home / "metrics.jsonl")
        self._incidents = LineTail(home / "incidents.jsonl")
        self._rows: dict[int, dict[str, Any]] = {}
        self._alarms = AlarmWatch()
        self._kept: deque[Incident] = deque(maxlen=_KEPT_INCIDENTS)
        self._counts: Counter[str] = Counter()
        self._game = LastGameWatch()

    def look(self) -> RunState:
        """Return what the folder holds now; what cannot be read is in the notes."""
        home = run_home(self.folder)
        if home != self._home:
            self._start(home)
        notes: list[str] = []
        for read in (self._read_metrics, self._read_incidents, self._read_game):
            try:
                read()
            except OSError as error:
                notes.append(f"{error.filename}: cannot be read ({error.strerror})")
        if self._game.problem:
            notes.append(self._game.problem)
        settings = recorded_settings(home)
        rows = [self._rows[step] for step in sorted(self._rows)]
        return RunState(
            name=visible(_name(self.folder)),
            is_there=bool(rows or settings),
            trainer=_trainer(home),
            rows=rows,
            settings=settings,
            age=self._age(home),
            alarms=self._raised(),
            incidents=tuple(self._kept),
            incident_counts=dict(self._counts),
            checkpoints=_checkpoints(home),
            game=self._game.game,
            notes=tuple(visible(note) for note in notes),
        )

    def _read_metrics(self) -> None:
        lines, began_anew = self._metrics.read()
        if began_anew:
            self._rows, self._alarms = {}, AlarmWatch()
        last = max(self._rows, default=-1)
        in_order = True
        new = []
        for line in lines:
            row = _row(line)
            if row is not None:
                in_order = in_order and row["step"] > last
                last = max(last, row["step"])
                self._rows[row["step"]] = row
                new.append(row)
        if not in_order:
            # A step that is there twice was made again; of the two the later one counts.
            self._alarms, new = AlarmWatch(), [self._rows[step] for step in sorted(self._rows)]
        for row in new:
            self._alarms.update(row)

    def _read_incidents(self) -> None:
        lines, began_anew = self._incidents.read()
        if began_anew:
            self._kept.clear()
            self._counts.clear()
        for line in lines:
            row = _json_object(line)
            if row is not None and isinstance(row.get("kind"), str):
                kind = visible(row["kind"])
                self._counts[kind] += 1
                step = row.get("step")
                self._kept.append(
                    Incident(
                        time=number(row.get("time")),
                        kind=kind,
                        message=visible(str(row.get("message", ""))),
                        step=step if type(step) is int else None,
                    )
                )

    def _read_game(self) -> None:
        self._game.look(self._home)

    def _raised(self) -> tuple[RaisedAlarm, ...]:
        titles = {alarm.name: alarm.title for alarm in self._alarms.alarms}
        return tuple(
            RaisedAlarm(name=name, subject=visible(subject), since=since, title=titles[name])
            for (name, subject), since in self._alarms.raised.items()
        )

    def _age(self, home: Path) -> float | None:
        try:
            # Another machine's clock may be ahead.
            return max(0.0, self._clock() - (home / "metrics.jsonl").stat().st_mtime)
        except OSError:
            return None


def read_run(folder: Path) -> RunState:
    """Return what a run folder holds, for commands that need its steps.

    Raises:
        SettingsError: There is no run, or it has no step.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "no such folder"
        raise SettingsError(f"{folder}: {what}; give the folder of a run (OUTPUT_DIR).")
    state = RunWatch(folder).look()
    if not state.rows:
        why = f" ({state.notes[0]})" if state.notes else ""
        raise SettingsError(
            f"{folder}: its metrics.jsonl holds no step{why}; the run ended before its first one, or this is no run."
        )
    return state


def _name(folder: Path) -> str:
    whole = folder.resolve()
    # A folder called train/ is named by what it belongs to.
    return f"{whole.parent.name}/{TRAIN}" if whole.name == TRAIN else whole.name or "/"


def _row(line: bytes) -> dict[str, Any] | None:
    row = _json_object(line)
    return row if row is not None and type(row.get("step")) is int and "games" in row else None


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line, object_pairs_hook=_interned)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _interned(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # A row has a hundred names, each of which would else be in memory once per step.
    return {sys.intern(name): value for name, value in pairs}


def _checkpoints(home: Path) -> tuple[int, ...]:
    try:
        names = [entry.name for entry in home.iterdir()]
    except OSError:
        return ()
    return tuple(sorted(int(match[1]) for name in names if (match := CHECKPOINT_NAME.fullmatch(name))))


def _trainer(home: Path) -> str:
    """Tell who holds the folder by what the lock says; to try it would be in a starting trainer's way."""
    try:
        holder = _HOLDER.match((home / LOCK).read_text(encoding="utf-8", errors="replace")[:200])
    except OSError:
        return ""
    if holder is None:
        return ""
    if holder[2].strip() != socket.gethostname():
        return "elsewhere"
    try:
        os.kill(int(holder[1]), 0)
    except PermissionError:
        return "running"
    except (ProcessLookupError, OverflowError):
        return "not running"
    return "running"
