"""Start the rollout server: port first, then the process that serves, in it the engine, then the
routes.

The parent serves nothing itself: it starts the process that does, hands signals on, and starts it
again. A dead engine does not come back, and a killed process cannot help itself. The parent holds
the listening socket, so the port stays and clients wait in its queue meanwhile. Whatever a dead
process left behind (engine core, workers) is handed to the parent by the kernel and ended before
the next process starts: a new engine needs their memory."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from datetime import datetime
from pathlib import Path

import psutil

from hanabi_grpo.errors import ServerError
from hanabi_grpo.logs import LineRing, set_up_logging
from hanabi_grpo.processes import adopt_orphans, die_with_parent, importing
from hanabi_grpo.settings import Settings

logger = logging.getLogger(__name__)

EXIT_CODE = 70
"""The engine died (EX_SOFTWARE): of the serving process each time, of the parent once too often."""
_END_SECONDS = 20.0
"""For killed processes to be gone; one that holds a GPU gives its memory back first."""
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
_FROM_TERMINAL = 0x80
"""Linux's SI_KERNEL: Ctrl-C, which the terminal sends to the serving process too."""
_CLEAN_UP_SECONDS = 20
"""From the engine's death to the process's end, at most: a clean-up may hang on what is dead."""


def serve(settings: Settings, extra_args: list[str]) -> None:
    """Run the server until SIGINT, SIGTERM or too many deaths; a ServerError says that the port is
    taken.
    """
    set_up_logging()
    listener = listen(settings.host, settings.port)
    # Named here, so that a process that takes a dead one's place goes on with it.
    calls = Path("outputs") / f"partner_calls-{datetime.now():%Y%m%d-%H%M%S}-{settings.port}.jsonl"
    if settings.die_with_parent:
        die_with_parent(signal.SIGTERM)
    fork_and_supervise(allowed=settings.engine_restarts)
    signal.signal(signal.SIGTERM, _end)
    if asyncio.run(_run(settings, extra_args, listener, calls)):
        raise SystemExit(EXIT_CODE)


def _end(signum: int, frame: object) -> None:
    # Who ends a whole family of processes sends it twice; the clean-up must not be cut short.
    signal.signal(signum, signal.SIG_IGN)
    sys.exit(128 + signum)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; a ServerError, with the OSError as its cause, where that is
    impossible.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle off; without it every small answer waits 40 ms
    # for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Of every connection: a machine that vanishes says no goodbye, and its games would be played
    # for nobody.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for option, value in (
            (socket.TCP_KEEPIDLE, 30),
            (socket.TCP_KEEPINTVL, 10),
            (socket.TCP_KEEPCNT, 3),
        ):
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ServerError(
            f"PORT={port}: cannot listen on {host}:{port} ({error.strerror}). Stop what runs "
            "there, or choose another "
            f"port here and the same in the other terminal: PORT={port + 1} and "
            f"VLLM_SERVER_PORT={port + 1}."
        ) from error
    return listener


async def _run(
    settings: Settings, extra_args: list[str], listener: socket.socket, calls: Path
) -> bool:
    from hanabi_grpo.server.assembly import prepare_environment, rollout_server
    from hanabi_grpo.server.serving import serve_until_dead, starting_server

    ring = LineRing()
    set_up_logging(ring=ring)
    prepare_environment(settings.device == "cpu")
    with contextlib.ExitStack() as stack:
        with importing(), starting_server(listener):
            server = stack.enter_context(rollout_server(settings, ring, extra_args, calls))
        logger.info(
            "ready on http://%s:%d (instance %s)",
            settings.host,
            settings.port,
            server.identity.instance_id,
        )
        return await serve_until_dead(
            server.app,
            listener,
            lambda: server.engine.is_dead,
            # The kernel ends the process then, and the parent starts the next one.
            on_death=lambda: signal.alarm(_CLEAN_UP_SECONDS),
        )


def fork_and_supervise(*, allowed: int, healthy_seconds: float = 600.0) -> None:
    """Return in each serving process; the parent stays here and ends with it. Call it before any
    thread starts.

    The serving process is killed when its parent is, and its engine with it (Linux only). `allowed`
    are restarts after an engine's death or a kill, counted anew after `healthy_seconds`. The parent
    raises SystemExit with the code of a serving process that ended otherwise, or `EXIT_CODE` when
    it died too often."""
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
                "%s after %.0f s, and HANABI_ENGINE_RESTARTS=%d is used up: the server ends (exit "
                "code %d). Look for "
                "the engine's error above, then start the server again.",
                *(reason, lived, allowed, EXIT_CODE),
            )
            raise SystemExit(EXIT_CODE)
        logger.error(
            "%s after %.0f s: the server starts again (%d of %d)", reason, lived, restarts, allowed
        )


def _reason_to_restart(code: int, *, is_first: bool) -> str | None:
    if code in (
        EXIT_CODE,
        -signal.SIGALRM,
    ):  # the alarm ends a clean-up that hangs on the dead engine
        return "engine dead"
    if code < 0 and -code not in (signal.SIGINT, signal.SIGTERM):
        return f"server process killed by {signal.Signals(-code).name}"
    if code == 1 and not is_first:
        # It started before with the same settings: what the dead one held may not be free yet.
        return "the server did not start again and ended"
    return None


def _wait_for(child: int) -> tuple[int, bool]:
    """Hand signals on until a child ends; return its exit code, or minus a signal, and whether it
    was told to end.
    """
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
    """Collect every process that has ended; return the exit code of `child` when it is among
    them.
    """
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def _end_left_behind() -> None:
    left = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # a zombie, or gone meanwhile
            # Python's resource tracker removes the shared memory of the dead, and ends when they
            # are gone.
            if "multiprocessing.resource_tracker" not in " ".join(process.cmdline()):
                process.kill()
                left.append(process)
    if stay := psutil.wait_procs(left, timeout=_END_SECONDS)[1]:
        logger.error(
            "killed processes that do not end: %s", ", ".join(str(process.pid) for process in stay)
        )
