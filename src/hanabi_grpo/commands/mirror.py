"""The process that mirrors a run to W&B; the trainer starts it, see `tracking.mirror`.

`python -m hanabi_grpo.commands.mirror RUN STEP`. Its standard input tells how the trainer fares: a
line with the exit code when training ended, or the end of input without a line when the trainer was
killed. Its standard output has one JSON object per line, `kind` and `message`; everything that W&B
prints goes to standard error.
"""

import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.report.games import newest_games_page
from hanabi_grpo.runs.run_folder import open_locked
from hanabi_grpo.settings import read_settings
from hanabi_grpo.tracking.publisher import Publisher
from hanabi_grpo.tracking.record import read_record
from hanabi_grpo.tracking.wandb_run import MARGIN_SECONDS, Unreachable, open_run, time_limit

logger = logging.getLogger("hanabi_grpo.commands.mirror")

_LOCK = ".wandb.lock"
"""File of the run folder that one mirror at a time holds."""
_LOOK_SECONDS = 1.0
"""Between two looks at the run folder."""
_NICENESS = 10
_TROUBLE = 1
"""Exit code when W&B could not be started."""
_REFUSED = 2
"""Exit code when settings or the run folder cannot be used."""
_Say = Callable[[str, str], None]
"""Sends the trainer a message; takes its kind and its text."""


def mirror_run(run_folder: Path, from_step: int) -> int:
    """Mirror a run until its trainer ends.

    Args:
        run_folder: The run.
        from_step: Steps before it are on W&B already.

    Returns:
        The exit code of this process.
    """
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    say = _open_channel()
    lock = _lock_when_free(run_folder, say)
    if lock is None:
        say("trouble", "another process still mirrors this run")
        return _TROUBLE
    with lock:
        return _mirror_alone(run_folder, from_step, say)


def _mirror_alone(run_folder: Path, from_step: int, say: _Say) -> int:
    """Do what `mirror_run` does, as the only mirror of the run."""
    try:
        settings = read_settings(run_folder / "settings.json")
        record = read_record(run_folder)
        wandb_run = _open_wandb_run(settings, run_folder, record, say)
    except SettingsError as error:
        say("refused", str(error))
        return _REFUSED
    except Exception as error:
        # Whatever W&B's library raises: training continues without it.
        logger.exception("W&B could not be started")
        say("trouble", f"W&B could not be started ({type(error).__name__}: {error})")
        return _TROUBLE
    # The trainer waited for the answer so far; from here on it comes first.
    os.nice(_NICENESS)
    last_lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(last_lines,), daemon=True).start()
    publisher = Publisher(
        wandb_run,
        record,
        settings,
        run_folder,
        from_step=from_step,
        games_page=newest_games_page,
        trouble=partial(say, "trouble"),
    )
    last_line = None
    while last_line is None:
        publisher.publish_new()
        with suppress(queue.Empty):
            last_line = last_lines.get(timeout=_LOOK_SECONDS)
    # A trainer that was killed sends no exit code.
    exit_code = int(last_line or 1)
    is_complete = publisher.close(exit_code)
    say("done" if is_complete else "incomplete", wandb_run.url or wandb_run.mode)
    return 0


def _lock_when_free(run_folder: Path, say: _Say) -> AbstractContextManager[object] | None:
    """Return what keeps this process the only mirror of a run until it is closed.

    The mirror of a trainer that was killed still sends what that left, for a bounded time, and the
    next trainer may be there before. Two mirrors would write over each other's rows at W&B, and
    over each other's `wandb.json`.

    Returns:
        The locked file, or a stand-in where the file system has no locks; None where another mirror
        does not end in that time.
    """
    deadline = time.monotonic() + time_limit(os.environ, "WANDB_FINISH_TIMEOUT") + MARGIN_SECONDS
    is_told = False
    while True:
        try:
            return open_locked(run_folder / _LOCK)
        except BlockingIOError:
            if not is_told:
                say("waiting", "what the trainer before has left is still sent; this run follows")
                is_told = True
        except OSError as error:
            logger.info("%s: %s; W&B is used without a lock", run_folder / _LOCK, error)
            return nullcontext()
        if time.monotonic() >= deadline:
            return None
        time.sleep(_LOOK_SECONDS)


def _open_channel() -> _Say:
    """Keep standard output for messages to the trainer, and send everything else to standard error.

    Returns:
        The function that sends a message.
    """
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(kind: str, message: str) -> None:
        logger.info("%s: %s", kind, message)
        try:
            channel.write(json.dumps({"kind": kind, "message": message}) + "\n")
        except (OSError, ValueError):
            logger.info("the trainer is gone")

    return say


def _open_wandb_run(settings: Any, run_folder: Path, record: Any, say: _Say) -> Any:
    """Open the run at W&B, or record it on this disk where W&B does not answer."""
    try:
        wandb_run = open_run(settings, run_folder, record, settings.wandb_mode)
        say("ready", wandb_run.url or f"recorded in {run_folder / 'wandb'}")
    except Unreachable as error:
        wandb_run = open_run(settings, run_folder, record, "offline")
        say("offline", f"W&B does not answer ({error}): this run is recorded on this disk")
    return wandb_run


def _listen(last_lines: "queue.Queue[str]") -> None:
    """Hand on the trainer's last line, and make sure that this process ends some time after it.

    The line is empty for a trainer that was killed.
    """
    last_lines.put(sys.stdin.readline().strip())
    time.sleep(time_limit(os.environ, "WANDB_FINISH_TIMEOUT") + MARGIN_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    try:
        code = mirror_run(Path(sys.argv[1]), int(sys.argv[2]))
    except HanabiGrpoError as failure:
        logger.error("%s", failure)
        code = _REFUSED
    sys.stderr.flush()
    sys.exit(code)
