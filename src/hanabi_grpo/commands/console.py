"""Terminal functions that commands share.

Printing, progress bars, interruption, the command of the other terminal, and offline switches.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.runs.run_folder import json_text
from hanabi_grpo.settings import (
    LoadedSettings,
    Settings,
    load_settings,
    settings_json,
    settings_table,
)
from hanabi_grpo.settings.base_models import base_models
from hanabi_grpo.settings.gpus import Terminal, gpu_share
from hanabi_grpo.settings.partners import without_weight
from hanabi_grpo.settings.refs import split_player
from hanabi_grpo.terminal import VisibleConsole, sayer
from hanabi_grpo.texts import visible_json

_SECTIONS: Mapping[Terminal, tuple[str, ...]] = {
    "server": ("run", "server", "game"),
    "trainer": ("run", "game", "trainer", "tracking"),
}
"""Sections of the settings that each terminal prints."""
INTERRUPTED = 130
"""Exit code of a command that was stopped and can be continued."""
_TABLE_WIDTH = 120
"""Width of a table if standard output is not a terminal and COLUMNS is not set."""
_SECONDS_OF_A_LINE = 60.0
"""Time between two progress lines in a log."""
_QUIET = {"USE_HF": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "VLLM_NO_USAGE_STATS": "1"}
"""`USE_HF` makes ms-swift download models from the same hub as vLLM."""
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def make_console(*, aside: bool = False) -> Console:
    """Return a console for standard output.

    Args:
        aside: Write to standard error, which is for progress and everything that is not a result.
    """
    width = None
    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    if not aside and not has_width:
        width = _TABLE_WIDTH
    return VisibleConsole(stderr=aside, width=width)


def print_json(document: Any, indent: int | None = None) -> None:
    """Write a document to standard output; a number that is not finite becomes null.

    Terminal control characters are escaped.

    Args:
        document: A value that json can serialize.
        indent: Spaces per level; None writes one line.
    """
    sys.stdout.write(visible_json(json_text(document, indent=indent)))


class _ProgressLines(Progress):
    """Progress for logs: one line per minute, because bars appear there only when they end."""

    def __init__(self, *columns: ProgressColumn, console: Console) -> None:
        """Start the timer of the first line.

        Args:
            *columns: Columns of the bars, which are printed at the end.
            console: Where lines and bars are printed.
        """
        super().__init__(*columns, console=console)
        self._say = sayer(console)
        self._next_line = time.monotonic() + _SECONDS_OF_A_LINE

    def update(self, task_id: TaskID, *given: Any, **fields: Any) -> None:
        """Update a bar, and print its progress if a minute has passed since the last line."""
        super().update(task_id, *given, **fields)
        self._say_now_and_then(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """As `update`, advancing the bar by `advance`."""
        super().advance(task_id, advance)
        self._say_now_and_then(task_id)

    def _say_now_and_then(self, task_id: TaskID) -> None:
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + _SECONDS_OF_A_LINE
        task = self._tasks[task_id]
        line = f"{task.description}: {task.completed:g}"
        if task.total is not None:
            line += f" of {task.total:g}"
        if task.time_remaining:
            line += f", {timedelta(seconds=task.time_remaining)} left"
        self._say(line)


def progress_bars(console: Console) -> Progress:
    """Return rich's progress bars with our columns; a log also gets one line per minute."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    if console.is_terminal:
        return Progress(*columns, console=console)
    return _ProgressLines(*columns, console=console)


@contextmanager
def interruptible(summary: Callable[[], str]) -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, and end an interrupted command with a summary and exit code 130.

    A ServerError is raised again, after the same summary.

    Args:
        summary: Returns a line on what is done and how to continue.
    """
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except (KeyboardInterrupt, ServerError) as error:
        sayer(make_console(aside=True))(summary())
        if isinstance(error, ServerError):
            raise
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def stop_flag() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a flag, so that work is finished or not begun.

    A second signal raises KeyboardInterrupt.

    Yields:
        A function that tells whether the command was asked to stop.
    """
    is_asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked:
            raise KeyboardInterrupt
        is_asked = True

    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, stop)
    try:
        yield lambda: is_asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def show_settings(*, as_json: bool, only_given: bool = False, named: str = "") -> None:
    """Print settings, their values and origins.

    Args:
        as_json: Whether to print all of them in the format of settings.json.
        only_given: Whether to omit defaults.
        named: Text in the names of the settings to show; "": all.

    Raises:
        SettingsError: No setting's name contains `named`.
    """
    loaded = load_settings()
    if as_json:
        print_json(settings_json(loaded), indent=2)
        return
    table = settings_table(loaded, only_given=only_given, named=named.upper())
    if table.row_count:
        make_console().print(table)
        return
    everything = settings_table(loaded, named=named.upper())
    if not everything.row_count:
        raise SettingsError(
            f"NAME={named!r}: no setting has this in its name; list them all: hanabi-grpo settings"
        )
    sayer(make_console())("all settings shown have their default values")


def announce(console: Console, terminal: Terminal) -> LoadedSettings:
    """Load the settings, print those that were given, and set variables of other software.

    See `set_environ` for these variables.
    """
    loaded = load_settings()
    table = settings_table(loaded, _SECTIONS[terminal], only_given=True)
    if table.row_count:
        console.print(table)
    else:
        settings = loaded.settings
        sayer(console)(
            f"defaults for {settings.device} ({settings.device_reason}); all settings have their "
            "default values"
        )
    reason = set_environ(loaded, terminal)
    if reason:
        sayer(console)(reason)
    return loaded


def set_environ(loaded: LoadedSettings, terminal: Terminal) -> str:
    """Set this process's variables for other software, and the GPUs of this terminal.

    Returns:
        Why the terminal uses other GPUs than CUDA_VISIBLE_DEVICES names; empty if it uses those.

    Raises:
        SettingsError: A list of GPUs is too short for both terminals.
    """
    give_environ(loaded)
    share = gpu_share(loaded, terminal)
    if share is None:
        return ""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(share.names)
    return share.reason


def give_environ(loaded: LoadedSettings) -> None:
    """Set the other software's variables of `.env` and the profile, and the offline switches.

    Values from this shell take precedence.
    """
    environ = {**loaded.dotenv_environ, **offline_environ(loaded.settings)}
    for name, value in environ.items():
        os.environ.setdefault(name, value)


def offline_environ(settings: Settings) -> dict[str, str]:
    """Return switches that keep libraries off the network, unless a hub is needed.

    A model folder needs nothing from a hub, and without these switches a machine that is offline
    waits through every library's retries. A model or a checkpoint from a hub needs the network.
    """
    from_hub = False
    partners = map(without_weight, settings.partners)
    for entry in (*settings.start_from, *partners, *settings.teacher):
        _, reference = split_player(entry)
        if reference.startswith("hf:"):
            from_hub = True
    are_local = all(Path(name).is_dir() for name in base_models(settings))
    if from_hub or not are_local:
        return dict(_QUIET)
    return {**_QUIET, **_OFFLINE}
