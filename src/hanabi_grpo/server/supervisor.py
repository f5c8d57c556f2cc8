"""A parent that serves nothing itself: it starts the process that does, hands signals on, and starts it again.

A dead engine does not come back, and a killed process cannot help itself. The parent holds the listening socket, so
the port stays and clients wait in its queue meanwhile. Whatever a dead process left behind (engine core, workers) is
handed to the parent by the kernel and ended before the next process starts: a new engine needs their memory.
"""

import contextlib
import logging
import os
import signal
import sys
import time

import psutil

from hanabi_grpo.processes import adopt_orphans, die_with_parent

logger = logging.getLogger(__name__)

EXIT_CODE = 70
"""The engine died (EX_SOFTWARE): of the serving process each time, of the parent once too often."""
HEALTHY_SECONDS = 600.0
_END_SECONDS = 20.0
"""For killed processes to be gone; one that holds a GPU gives its memory back first."""
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
_FROM_TERMINAL = 0x80
"""Linux's SI_KERNEL: Ctrl-C, which the terminal sends to the serving process too."""


def fork_and_supervise(*, allowed: int, healthy_seconds: float = HEALTHY_SECONDS) -> None:
    """Return in each serving process; the parent stays here and ends with it. Call it before any thread starts.

    The serving process is killed when its parent is, and its engine with it (Linux only).

    Args:
        allowed: Restarts after an engine's death or a kill, without `healthy_seconds` in between.
        healthy_seconds: After which the count begins anew.

    Raises:
        SystemExit: In the parent: the serving process ended otherwise (its code), or died too often (`EXIT_CODE`).
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    adopt_orphans()
    parent, restarts, is_first = os.getpid(), 0, True
    while True:
        for stream in (sys.stdout, sys.stderr):
            # What is still in a buffer would be written by both.
            stream.flush()
        started, child = time.monotonic(), os.fork()
        if child == 0:
            die_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                # It died before the kernel was asked.
                os._exit(1)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return
        code, was_stopped = _wait_for(child)
        lived = time.monotonic() - started
        _end_left_behind()
        reason = None if was_stopped else _reason_to_restart(code, is_first=is_first)
        if reason is None:
            raise SystemExit(code if code >= 0 else 128 - code)
        is_first = False
        restarts = 1 if lived >= healthy_seconds else restarts + 1
        if restarts > allowed:
            logger.error(
                "%s after %.0f s, and HANABI_ENGINE_RESTARTS=%d is used up: the server ends (exit code %d). Look for "
                "the engine's error above, then start the server again.",
                *(reason, lived, allowed, EXIT_CODE),
            )
            raise SystemExit(EXIT_CODE)
        logger.error("%s after %.0f s: the server starts again (%d of %d)", reason, lived, restarts, allowed)


def _reason_to_restart(code: int, *, is_first: bool) -> str | None:
    if code in (EXIT_CODE, -signal.SIGALRM):  # the alarm ends a clean-up that hangs on the dead engine
        return "engine dead"
    if code < 0 and -code not in (signal.SIGINT, signal.SIGTERM):
        return f"server process killed by {signal.Signals(-code).name}"
    if code == 1 and not is_first:
        # It started before with the same settings: what the dead one held may not be free yet.
        return "the server did not start again and ended"
    return None


def _wait_for(child: int) -> tuple[int, bool]:
    """Hand signals on until a child ends; return its exit code, or minus a signal, and whether it was told to end."""
    was_stopped = False
    while True:
        came = signal.sigwaitinfo(_SIGNALS)
        if came.si_signo == signal.SIGCHLD:
            if (code := _reap(child)) is not None:
                return code, was_stopped
            continue
        was_stopped = True
        if came.si_signo != signal.SIGINT or came.si_code != _FROM_TERMINAL:
            os.kill(child, came.si_signo)


def _reap(child: int) -> int | None:
    """Collect every process that has ended; return the exit code of `child` when it is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def _end_left_behind() -> None:
    deadline = time.monotonic() + _END_SECONDS
    while left := _left_behind():
        if time.monotonic() > deadline:
            logger.error("killed processes that do not end: %s", ", ".join(str(process.pid) for process in left))
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)


def _left_behind() -> list[psutil.Process]:
    _reap(0)
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # a zombie, or gone meanwhile
            # Python's resource tracker removes the shared memory of the dead, and ends when they are gone.
            if "multiprocessing.resource_tracker" not in " ".join(process.cmdline()):
                found.append(process)
    return found
