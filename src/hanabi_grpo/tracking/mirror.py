"""The trainer's side of the mirror: starts its process, reads its messages, and ends it in time."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import open_plain_to_append
from hanabi_grpo.tracking.wandb_run import MARGIN_SECONDS, time_limit, wandb_environ

logger = logging.getLogger(__name__)

LOG = "wandb.log"
"""The mirror's log in the run folder."""

_TROUBLE_SECONDS = 10.0
"""Time to send the rest at the end if something did not reach W&B."""
_EXIT_SECONDS = 5.0
"""Time for the mirror to exit after its last message."""
_START_SECONDS = 45.0
"""Time for the interpreter and W&B's own process to start, in addition to the service's time."""
_POLL_SECONDS = 0.2
"""Interval between checks that the mirror is still running."""
_SHOWN_LINE = 200
"""Characters of a line that is not a message, in the log."""

_ENDED = ""
"""Kind of a placeholder message: the mirror has exited, or the time is up."""
_GOOD_KINDS = ("ready", "waiting")
"""Kinds of messages that require no action."""
_LAST_KINDS = ("done", "incomplete")
"""Kinds of the mirror's last message."""


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of the mirror."""

    kind: str
    """In this order: optionally waiting; one of ready, offline, refused or trouble; any number of
    trouble; finally done or incomplete."""
    text: str
    """One sentence."""


class Mirror:
    """Mirrors a run folder to W&B in a separate process.

    Only the constructor and `close` wait for W&B.
    """

    def __init__(self, run_folder: Path, from_step: int) -> None:
        """Start the process and wait until W&B answers or its time is up.

        Args:
            run_folder: The folder to mirror.
            from_step: W&B already has the rows up to this step.

        Raises:
            SettingsError: W&B refuses the key, the entity or the project.
            OSError: The process cannot be started.
        """
        self.run_folder = run_folder
        self.environ = wandb_environ(run_folder, os.environ)
        self.sync_command = f".venv/bin/wandb sync {shlex.quote(str(run_folder / 'wandb'))}/*run-*"
        self._in_trouble = False
        self._messages: queue.Queue[_Message] = queue.Queue()
        self._process = self._start_process(from_step)
        thread = threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True)
        thread.start()
        time_to_answer = time_limit(self.environ, "WANDB_INIT_TIMEOUT") + _START_SECONDS
        try:
            answer = self._next_message(time.monotonic() + time_to_answer)
        except BaseException:
            self._kill()
            raise
        if answer.kind == "refused":
            self._kill()
            raise SettingsError(answer.text)
        if answer.kind == _ENDED:
            logger.warning(
                "W&B: no response from the mirror yet (see %s); training continues",
                run_folder / LOG,
            )
        else:
            self._report(answer)

    def _start_process(self, from_step: int) -> "subprocess.Popen[str]":
        command = [
            sys.executable,
            "-m",
            "hanabi_grpo.commands.mirror",
            str(self.run_folder),
            str(from_step),
        ]
        with open_plain_to_append(self.run_folder / LOG) as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environ,
                # Ctrl-C at the terminal is meant for the trainer, which then ends the mirror.
                start_new_session=True,
            )

    def check(self) -> None:
        """Log new messages of the mirror, without waiting."""
        while not self._messages.empty():
            self._report(self._messages.get())

    def close(self, exit_code: int) -> None:
        """Let the mirror send the rest for up to WANDB_FINISH_TIMEOUT, then end it."""
        time_to_finish = time_limit(self.environ, "WANDB_FINISH_TIMEOUT") + MARGIN_SECONDS
        deadline = time.monotonic() + time_to_finish
        last_kind = None
        try:
            self._send_exit_code(exit_code)
            while last_kind not in (*_LAST_KINDS, _ENDED):
                if self._in_trouble:
                    deadline = min(deadline, time.monotonic() + _TROUBLE_SECONDS)
                message = self._next_message(deadline)
                last_kind = message.kind
                if message.kind == "trouble":
                    self._report(message)
        finally:
            self._kill(_EXIT_SECONDS if last_kind in _LAST_KINDS else 0.0)
        if last_kind != "done":
            logger.warning(
                "W&B: not everything was sent (see %s). To send it later: %s",
                self.run_folder / LOG,
                self.sync_command,
            )
            return
        unsent = unsent_folders(self.run_folder)
        logger.info("W&B: %s", sync_line(unsent) if unsent else "everything was sent")

    def _send_exit_code(self, exit_code: int) -> None:
        if self._process.stdin is None:
            return
        try:
            self._process.stdin.write(f"{exit_code}\n")
            self._process.stdin.close()
        except OSError:
            logger.warning("W&B: the mirror has already exited")

    def _report(self, message: _Message) -> None:
        if message.kind in _GOOD_KINDS:
            logger.info("W&B: %s", message.text)
            return
        # Reported only once; the mirror's log has the rest.
        if not self._in_trouble:
            logger.warning(
                "W&B: %s; training continues. To send the run later: %s",
                message.text,
                self.sync_command,
            )
        if message.kind == "trouble":
            self._in_trouble = True

    def _next_message(self, deadline: float) -> _Message:
        """Return the mirror's next message, or one of kind `_ENDED` if none comes in time."""
        while True:
            time_left = deadline - time.monotonic()
            if time_left <= 0:
                break
            try:
                return self._messages.get(timeout=min(time_left, _POLL_SECONDS))
            except queue.Empty:
                has_ended = self._process.poll() is not None
                if has_ended and self._messages.empty():
                    break
        return _Message(_ENDED, "")

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            try:
                data: Any = json.loads(line)
                message = _Message(str(data["kind"]), str(data["message"]))
            except (ValueError, KeyError, TypeError):
                logger.debug("the mirror printed %r", line[:_SHOWN_LINE])
            else:
                self._messages.put(message)

    def _kill(self, patience: float = 0.0) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=patience)
        with suppress(ProcessLookupError, PermissionError):
            # W&B's own process is in the mirror's process group.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def unsent_folders(run_folder: Path) -> list[Path]:
    """Return the folders of offline runs that `wandb sync` has not marked as sent."""
    folders = sorted((run_folder / "wandb").glob("offline-run-*"))
    return [folder for folder in folders if not any(folder.glob("*.synced"))]


def sync_line(folders: list[Path]) -> str:
    """Return a line with the command that uploads offline runs."""
    paths = shlex.join(str(folder) for folder in folders)
    return f"recorded on this disk; to upload it: .venv/bin/wandb sync {paths}"
