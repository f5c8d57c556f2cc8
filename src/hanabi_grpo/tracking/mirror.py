"""The mirror as the trainer sees it: a process that is started, listened to, and ended in time."""

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
"""For the rest at the end, once something did not reach W&B."""
_EXIT_SECONDS = 5.0
"""For a mirror that has sent its last message to end."""
_START_SECONDS = 45.0
"""For the interpreter and W&B's own process to come up, beyond the service's time."""
_POLL_SECONDS = 0.2
"""Between two looks at whether the mirror still lives."""
_SHOWN_LINE = 200
"""Characters of a line that is no message, in the log."""

_ENDED = ""
"""Kind of the message that stands for none: the mirror has ended, or the time is up."""
_GOOD_KINDS = ("ready", "waiting")
"""Kinds of messages that nobody has to act on."""
_LAST_KINDS = ("done", "incomplete")
"""Kinds of a mirror's last message."""


@dataclass(frozen=True, slots=True)
class _Message:
    """What the mirror reports."""

    kind: str
    """Perhaps waiting; one of ready, offline, refused or trouble; then trouble; at last done or
    incomplete."""
    text: str
    """One sentence."""


class Mirror:
    """Mirrors a run folder to W&B in a process of its own.

    No call waits for W&B but the constructor and `close`.
    """

    def __init__(self, run_folder: Path, from_step: int) -> None:
        """Start the process and wait until W&B answers or its time is up.

        Args:
            run_folder: What is mirrored.
            from_step: W&B knows the rows up to this step.

        Raises:
            SettingsError: W&B refuses key, entity or project.
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
                # A Ctrl-C at the terminal is for the trainer, which ends the mirror in order.
                start_new_session=True,
            )

    def check(self) -> None:
        """Log what the mirror reported meanwhile; waits for nothing."""
        while not self._messages.empty():
            self._report(self._messages.get())

    def close(self, exit_code: int) -> None:
        """Let the mirror send the rest, for as long as WANDB_FINISH_TIMEOUT says, then end it."""
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
        # Once is enough: the others are in the mirror's log.
        if not self._in_trouble:
            logger.warning(
                "W&B: %s; training continues. To send the run later: %s",
                message.text,
                self.sync_command,
            )
        if message.kind == "trouble":
            self._in_trouble = True

    def _next_message(self, deadline: float) -> _Message:
        """Return the mirror's next message; one of kind `_ENDED` when none will come in time."""
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
            # W&B's own process is in the mirror's group.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def unsent_folders(run_folder: Path) -> list[Path]:
    """Return the folders of offline runs that `wandb sync` has not marked as sent."""
    folders = sorted((run_folder / "wandb").glob("offline-run-*"))
    return [folder for folder in folders if not any(folder.glob("*.synced"))]


def sync_line(folders: list[Path]) -> str:
    """Return the command that sends offline runs."""
    paths = shlex.join(str(folder) for folder in folders)
    return f"recorded on this disk; to upload it: .venv/bin/wandb sync {paths}"
