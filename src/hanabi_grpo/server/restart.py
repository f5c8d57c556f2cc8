"""A dead engine does not come back, so the server's process begins anew: same pid, same port, new instance id.

The process image is replaced (`execve`) instead of building a second engine beside the remains of the first: whatever
the dead one left behind in memory, threads and open files ends with the old image. How often that happened travels in
a variable of the process's own environment.
"""

import contextlib
import logging
import multiprocessing
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

logger = logging.getLogger(__name__)

COUNT_VARIABLE = "_HANABI_GRPO_RESTARTS"
"""With the underscore it is no setting, and the check for misspelt settings passes over it."""
_MARK = "_HANABI_GRPO_IMAGE"
"""Of the processes that this process image started."""
EXIT_CODE = 70
"""The engine died once too often (EX_SOFTWARE)."""
HEALTHY_SECONDS = 600.0
CLEAN_UP_SECONDS = 60.0
"""From the engine's death to the new process image, at most."""
_STOP_SECONDS = 20.0
_END_SECONDS = 20.0
"""For killed processes to be gone; one that holds a GPU gives its memory back first."""


def own_command() -> tuple[str, ...]:
    """Return the command that started this interpreter: a console script, `python -m` or a file alike."""
    return (sys.executable, *sys.orig_argv[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """How often this server may still begin anew. Made once, at the process's start.

    Example:
        restarts = Restarts(allowed=3)      # before the environment is changed
        restarts.after_engine_death()       # does not return
    """

    allowed: int
    """Restarts without `healthy_seconds` in between."""
    healthy_seconds: float = HEALTHY_SECONDS
    command: Sequence[str] = field(default_factory=own_command)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    """As it was at the start: what libraries set for themselves is not handed on."""
    started: float = field(default_factory=time.monotonic)

    @property
    def count(self) -> int:
        """Restarts so far, this process image included."""
        text = self.environment.get(COUNT_VARIABLE, "0")
        return int(text) if text.isdecimal() and len(text) < 6 else 0

    def after_engine_death(self) -> None:
        """Replace this process image; leave with EXIT_CODE when that was done too often. Does not return.

        Raises:
            SystemExit: The restarts are used up, or the system refuses one.
        """
        healthy = time.monotonic() - self.started
        number = 1 if healthy >= self.healthy_seconds else self.count + 1
        end_children()
        if number > self.allowed:
            logger.error(
                "engine dead after %.0f s, and HANABI_ENGINE_RESTARTS=%d is used up: the server ends (exit code %d). "
                "Look for the engine's error above, then start the server again.",
                healthy,
                self.allowed,
                EXIT_CODE,
            )
            raise SystemExit(EXIT_CODE)
        logger.error("engine dead after %.0f s: the server starts again (%d of %d)", healthy, number, self.allowed)
        _close_on_exec()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        try:
            os.execve(self.command[0], list(self.command), {**self.environment, COUNT_VARIABLE: str(number)})
        except OSError as error:
            logger.error("the server cannot start again (%s): %s", error, " ".join(self.command))
            raise SystemExit(EXIT_CODE) from error


def restart_at_latest(restarts: Restarts, seconds: float = CLEAN_UP_SECONDS) -> None:
    """Restart from a thread of its own after `seconds`, should the clean-up in the main thread hang."""

    def force() -> None:
        logger.error("the clean-up takes more than %g s; the server does not wait for it", seconds)
        try:
            restarts.after_engine_death()
        except SystemExit:
            # It would only end this thread.
            os._exit(EXIT_CODE)

    timer = threading.Timer(seconds, force)
    timer.daemon = True
    timer.start()


def stop_within(stop: Callable[[], None], seconds: float = _STOP_SECONDS) -> None:
    """Call `stop`, which may hang on what is dead, and go on after `seconds`; its errors are logged."""

    def attempt() -> None:
        try:
            stop()
        except Exception:
            logger.exception("ending the engine failed")

    thread = threading.Thread(target=attempt, daemon=True, name="stop-engine")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        logger.warning("ending the engine takes more than %g s; going on without it", seconds)


def mark_children() -> None:
    """Put a mark of this process image into the environment that its children and theirs inherit."""
    os.environ[_MARK] = uuid.uuid4().hex


def end_children(seconds: float = _END_SECONDS) -> None:
    """Kill what the engine left behind, its workers too, and wait until it is gone: a new engine needs their memory."""
    told, deadline = set[int](), time.monotonic() + seconds
    while left := _left_behind():
        if time.monotonic() > deadline:
            logger.error("killed processes that do not end: %s", ", ".join(str(process.pid) for process in left))
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.pid not in told:
                    told.add(process.pid)
                    logger.warning("killing process %d (%s), which the engine left behind", process.pid, process.name())
                process.kill()
        time.sleep(0.05)


def _left_behind() -> list[psutil.Process]:
    # Workers are children of the engine core: when it is dead they have another parent, and only the mark tells them.
    children, mark = {child.pid for child in multiprocessing.active_children()}, os.environ.get(_MARK)
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # another user's, a zombie, or gone meanwhile
            ours = process.pid in children or (mark and process.environ().get(_MARK) == mark)
            # Python's resource tracker removes the shared memory of the dead, and ends when they are gone.
            if ours and "multiprocessing.resource_tracker" not in " ".join(process.cmdline()):
                found.append(process)
    return found


def reap_children() -> None:
    """Collect the exit codes of children that an earlier image of this process left behind."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _close_on_exec() -> None:
    # Libraries open sockets and devices without that flag; the new image would hold them for ever.
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            descriptor = int(name)
            if descriptor > 2:
                with contextlib.suppress(OSError):
                    os.set_inheritable(descriptor, False)
