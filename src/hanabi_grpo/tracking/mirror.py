"""The mirror as the trainer sees it: a process that is started, heard, and ended within a time
limit.
"""

import json
import logging
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.tracking.wandb_run import MARGIN_SECONDS, time_limit, wandb_environ

logger = logging.getLogger(__name__)

LOG = "wandb.log"
_TROUBLE_SECONDS = 10.0  # For the rest, once something did not reach W&B
_EXIT_SECONDS = 5.0  # For a mirror that said its last word
_START_SECONDS = (
    45.0  # For the interpreter and W&B's own process to come up, beyond the service's time
)


class Mirror:
    """Mirrors a run folder to W&B in a process of its own; no call waits for W&B but the first and
    the last.
    """

    def __init__(self, run_folder: Path, from_step: int) -> None:
        """Start the process and wait until W&B answered, refused (a SettingsError), or had its
        time.
        """
        self.run_folder = run_folder
        self.environ = wandb_environ(run_folder, os.environ)
        self.sync_command = f".venv/bin/wandb sync {shlex.quote(str(run_folder / 'wandb'))}/*run-*"
        self._in_trouble = False
        self._messages: queue.Queue[tuple[str, str]] = queue.Queue()
        """Kind and text: first one of ready, offline, refused or trouble; later trouble, and done
        or incomplete.
        """
        words = ["-m", "hanabi_grpo.commands.mirror", str(run_folder), str(from_step)]
        with (run_folder / LOG).open("ab") as log:
            self._process: subprocess.Popen[str] = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environ,
                # A Ctrl-C at the terminal is for the trainer, which ends the mirror in order.
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        try:
            kind, text = self._next(
                time.monotonic() + time_limit(self.environ, "WANDB_INIT_TIMEOUT") + _START_SECONDS
            )
        except BaseException:
            self._kill()
            raise
        if kind == "refused":
            self._kill()
            raise SettingsError(text)
        if not kind:
            logger.warning(
                "W&B: no word from the mirror yet (see %s); training goes on", run_folder / LOG
            )
        elif kind == "ready":
            logger.info("W&B: %s", text)
        else:
            self._report(kind, text)

    def check(self) -> None:
        """Log what the mirror said meanwhile; waits for nothing."""
        while not self._messages.empty():
            self._report(*self._messages.get())

    def close(self, exit_code: int) -> None:
        """Let the mirror send the rest, for as long as WANDB_FINISH_TIMEOUT says, then end it."""
        limit = time.monotonic() + time_limit(self.environ, "WANDB_FINISH_TIMEOUT") + MARGIN_SECONDS
        kind = "open"
        try:
            if self._process.stdin is not None:
                try:
                    self._process.stdin.write(f"{exit_code}\n")
                    self._process.stdin.close()
                except OSError:
                    logger.warning("W&B: the mirror has ended already")
            while kind not in ("done", "incomplete", ""):
                if self._in_trouble:
                    limit = min(limit, time.monotonic() + _TROUBLE_SECONDS)
                kind, text = self._next(limit)
                if kind == "trouble":
                    self._report(kind, text)
        finally:
            self._kill(_EXIT_SECONDS if kind in ("done", "incomplete") else 0.0)
        if kind == "done":
            unsent = unsent_folders(self.run_folder)
            logger.info("W&B: %s", sync_line(unsent) if unsent else "everything was sent")
        else:
            log = self.run_folder / LOG
            logger.warning(
                "W&B: not everything was sent (see %s). Later: %s", log, self.sync_command
            )

    def _report(self, kind: str, text: str) -> None:
        # Once is enough: the others are in the mirror's log.
        if not self._in_trouble:
            logger.warning("W&B: %s; training goes on. Later: %s", text, self.sync_command)
        self._in_trouble = self._in_trouble or kind == "trouble"

    def _next(self, deadline: float) -> tuple[str, str]:
        """Return the mirror's next message; an empty one when it has ended or the time is up."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                return self._messages.get(timeout=min(left, 0.2))
            except queue.Empty:
                if self._process.poll() is not None and self._messages.empty():
                    break
        return "", ""

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            try:
                data: Any = json.loads(line)
                self._messages.put((str(data["kind"]), str(data["message"])))
            except (ValueError, KeyError, TypeError):
                logger.debug("the mirror said %r", line[:200])

    def _kill(self, patience: float = 0.0) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=patience)
        with suppress(ProcessLookupError, PermissionError):
            # W&B's own process is in the mirror's group.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def unsent_folders(run_folder: Path) -> list[Path]:
    """Return the folders of offline runs that `wandb sync` has not marked as sent."""
    found = sorted((run_folder / "wandb").glob("offline-run-*"))
    return [folder for folder in found if not any(folder.glob("*.synced"))]


def sync_line(folders: list[Path]) -> str:
    """Return the command that sends offline runs."""
    return (
        f"recorded on this disk; to send it: .venv/bin/wandb sync {shlex.join(map(str, folders))}"
    )
