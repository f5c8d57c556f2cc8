"""The process that mirrors a run to W&B; the trainer starts it, see `tracking.mirror`.

`python -m hanabi_grpo.commands.mirror RUN STEP`. Its standard input reports how the trainer ended:
a line with the exit code after training, or the end of input without a line if the trainer was
killed. Its standard output has one JSON object per line, with `kind` and `message`; everything that
W&B prints goes to standard error.
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
"""Lock file in the run folder, held by one mirror at a time."""
_LOOK_SECONDS = 1.0
"""Time between two reads of the run folder."""
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
        say("trouble", "another process is still mirroring this run")
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
        # Training continues without W&B, whatever its library raises.
        logger.exception("W&B could not be started")
        say("trouble", f"W&B could not be started ({type(error).__name__}: {error})")
        return _TROUBLE
    # The trainer waited for the answer up to here; from now on it has priority.
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
    """Return a lock that makes this process the only mirror of a run until it is closed.

    The mirror of a killed trainer continues to send its remaining records for a bounded time, and
    the next trainer may start before that ends. Two mirrors would overwrite each other's rows at
    W&B and each other's `wandb.json`.

    Returns:
        The locked file, or a stand-in if the file system has no locks; None if another mirror does
        not end in that time.
    """
    deadline = time.monotonic() + time_limit(os.environ, "WANDB_FINISH_TIMEOUT") + MARGIN_SECONDS
    is_told = False
    while True:
        try:
            return open_locked(run_folder / _LOCK)
        except BlockingIOError:
            if not is_told:
                say("waiting", "still sending the previous trainer's records; this run follows")
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
            logger.info("the trainer has exited")

    return say


def _open_wandb_run(settings: Any, run_folder: Path, record: Any, say: _Say) -> Any:
    """Open the run at W&B, or record it on this disk if W&B does not answer."""
    try:
        wandb_run = open_run(settings, run_folder, record, settings.wandb_mode)
        say("ready", wandb_run.url or f"recorded in {run_folder / 'wandb'}")
    except Unreachable as error:
        wandb_run = open_run(settings, run_folder, record, "offline")
        say("offline", f"W&B does not answer ({error}): this run is recorded on this disk")
    return wandb_run


def _listen(last_lines: "queue.Queue[str]") -> None:
    """Pass the trainer's last line on, and make sure that this process ends soon after it.

    The line is empty if the trainer was killed.
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
