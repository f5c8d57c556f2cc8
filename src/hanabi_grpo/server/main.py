"""Start the rollout server: port first, then the process that serves, in it engine and routes.

The parent serves nothing itself: it starts the process that does, forwards signals, and starts it
again. A dead engine does not come back, and a killed process cannot help itself. The parent holds
the listening socket, so the port stays and clients wait in its queue meanwhile. Whatever a dead
process left behind (engine core, workers) is handed to the parent by the kernel and ended before
the next process starts: a new engine needs their memory.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from hanabi_grpo.errors import ServerError
from hanabi_grpo.logs import LineRing, set_up_logging
from hanabi_grpo.processes import (
    adopt_orphans,
    die_with_parent,
    importing,
    raise_descriptor_limit,
    wait_for_debugger,
)
from hanabi_grpo.settings import Settings

logger = logging.getLogger(__name__)

EXIT_CODE = 70
"""The engine died (EX_SOFTWARE): of the serving process each time, of the parent once too often."""

_CALLS = Path("outputs")
"""Where calls of models behind URLs are recorded."""
_END_SECONDS = 20.0
"""For killed processes to be gone; one that holds a GPU gives its memory back first."""
_CLEAN_UP_SECONDS = 20
"""From the engine's death to the process's end, at most: a clean-up may hang on what is dead."""
_HEALTHY_SECONDS = 600.0
"""A process that lived so long resets the count of restarts."""
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
_FROM_TERMINAL = 0x80
"""Linux's SI_KERNEL: Ctrl-C, which the terminal sends to the serving process too."""
_BY_SIGNAL = 128
"""Added to a signal's number in the exit code of a process that the signal ended."""

_BACKLOG = 128
"""Connections that the kernel keeps waiting."""
_KEEPALIVE_IDLE = 30
"""Seconds of silence before the kernel asks whether the other machine is there."""
_KEEPALIVE_INTERVAL = 10
"""Seconds between such questions."""
_KEEPALIVE_COUNT = 3
"""Unanswered questions after which a connection is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChildEnd:
    """How a serving process ended."""

    code: int
    """Its exit code, or minus the number of the signal that ended it."""
    was_stopped: bool
    """Whether the parent had been told to stop."""


def serve(settings: Settings, extra_args: list[str]) -> None:
    """Run the server until SIGINT, SIGTERM or too many deaths of its process.

    Args:
        settings: The server's settings.
        extra_args: vLLM's own command line options.

    Raises:
        ServerError: The port is taken.
        SystemExit: The server ended; the code says how.
    """
    set_up_logging()
    raise_descriptor_limit()
    listener = listen(settings.host, settings.port)
    # Named before the fork, so that a process that takes a dead one's place writes on in it.
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}-{settings.port}"
    if settings.die_with_parent:
        die_with_parent(signal.SIGTERM)
    fork_and_supervise(allowed=settings.engine_restarts)
    signal.signal(signal.SIGTERM, _end)
    if settings.debug == "server":
        # In the process that serves, also in the one that takes a dead one's place.
        wait_for_debugger("server")
    engine_died = asyncio.run(_run(settings, extra_args, listener, stamp))
    if engine_died:
        raise SystemExit(EXIT_CODE)


def _end(signum: int, frame: object) -> None:
    # Whoever ends a whole process group sends the signal twice; the clean-up must not be cut
    # short.
    signal.signal(signum, signal.SIG_IGN)
    sys.exit(_BY_SIGNAL + signum)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ServerError: That is impossible; its cause is the OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches off Nagle's algorithm; without it every small
    # answer waits 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Inherited by every connection: a machine that vanishes closes nothing, and its games would be
    # played for nobody.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_COUNT)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ServerError(
            f"PORT={port}: cannot listen on {host}:{port} ({error.strerror}). Stop what runs "
            "there, or choose another port here and the same in the other terminal: "
            f"PORT={port + 1} and VLLM_SERVER_PORT={port + 1}."
        ) from error
    return listener


async def _run(
    settings: Settings, extra_args: list[str], listener: socket.socket, stamp: str
) -> bool:
    """Serve in this process; returns whether the engine died."""
    from hanabi_grpo.server.assembly import prepare_environment, rollout_server
    from hanabi_grpo.server.serving import serve_until_dead, starting_server

    ring = LineRing()
    set_up_logging(ring=ring)
    prepare_environment(settings.device == "cpu")
    with contextlib.ExitStack() as stack:
        with importing(), starting_server(listener):
            server = stack.enter_context(
                rollout_server(
                    settings,
                    ring,
                    extra_args,
                    partner_calls=_CALLS / f"partner_calls-{stamp}.jsonl",
                    judge_calls=_CALLS / f"judge_calls-{stamp}.jsonl",
                )
            )
        logger.info(
            "ready on http://%s:%d (instance %s)",
            settings.host,
            settings.port,
            server.identity.instance_id,
        )
        return await serve_until_dead(
            server.app,
            listener,
            lambda: server.health.is_dead,
            # If the clean-up hangs, the kernel ends the process, and the parent starts the next
            # one.
            on_death=lambda: signal.alarm(_CLEAN_UP_SECONDS),
        )


def fork_and_supervise(*, allowed: int, healthy_seconds: float = _HEALTHY_SECONDS) -> None:
    """Return in each serving process; the parent stays here and ends with it.

    Call it before any thread starts. The serving process is killed when its parent is, and its
    engine with it (Linux only).

    Args:
        allowed: Restarts after an engine's death or a kill.
        healthy_seconds: After a process that lived so long, restarts are counted anew.

    Raises:
        SystemExit: In the parent, with the code of a serving process that ended otherwise, or
            `EXIT_CODE` when it died too often.
    """
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    adopt_orphans()
    parent = os.getpid()
    restarts = 0
    is_first = True
    while True:
        # What is still in a buffer would be written by both.
        sys.stdout.flush()
        sys.stderr.flush()
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            die_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                # The parent died before the kernel was asked.
                os._exit(1)
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            return
        end = _wait_for(child)
        lifetime = time.monotonic() - started
        _kill_descendants()
        reason = None
        if not end.was_stopped:
            reason = _reason_to_restart(end.code, is_first=is_first)
        if reason is None:
            raise SystemExit(end.code if end.code >= 0 else _BY_SIGNAL - end.code)
        is_first = False
        restarts = 1 if lifetime >= healthy_seconds else restarts + 1
        if restarts > allowed:
            logger.error(
                "%s after %.0f s, and HANABI_ENGINE_RESTARTS=%d is used up: the server ends (exit "
                "code %d). Look for the engine's error above, then start the server again.",
                reason,
                lifetime,
                allowed,
                EXIT_CODE,
            )
            raise SystemExit(EXIT_CODE)
        logger.error(
            "%s after %.0f s: the server starts again (%d of %d)",
            reason,
            lifetime,
            restarts,
            allowed,
        )


def _reason_to_restart(code: int, *, is_first: bool) -> str | None:
    """Return why a serving process that ended is started again; None: it is not."""
    # The alarm ends a clean-up that hangs on the dead engine.
    if code in (EXIT_CODE, -signal.SIGALRM):
        return "engine dead"
    if code < 0 and -code not in (signal.SIGINT, signal.SIGTERM):
        return f"server process killed by {signal.Signals(-code).name}"
    if code == 1 and not is_first:
        # It started before with the same settings: what the dead one held may not be free yet.
        return "the server did not start again and ended"
    return None


def _wait_for(child: int) -> _ChildEnd:
    """Forward signals until a child ends."""
    was_stopped = False
    while True:
        received = signal.sigwaitinfo(_SIGNALS)
        if received.si_signo == signal.SIGCHLD:
            code = _reap(child)
            if code is not None:
                return _ChildEnd(code=code, was_stopped=was_stopped)
            continue
        was_stopped = True
        is_ctrl_c = received.si_signo == signal.SIGINT and received.si_code == _FROM_TERMINAL
        if not is_ctrl_c:
            os.kill(child, received.si_signo)


def _reap(child: int) -> int | None:
    """Collect every process that has ended; returns the exit code of `child` if it is one."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            if process == child:
                code = os.waitstatus_to_exitcode(status)
    return code


def _kill_descendants() -> None:
    """Kill what a dead serving process left behind."""
    killed = []
    for process in psutil.Process().children(recursive=True):
        # A psutil.Error: a zombie, or gone meanwhile.
        with contextlib.suppress(psutil.Error):
            # Python's resource tracker removes the shared memory of the dead, and ends when they
            # are gone.
            if "multiprocessing.resource_tracker" in " ".join(process.cmdline()):
                continue
            process.kill()
            killed.append(process)
    _, alive = psutil.wait_procs(killed, timeout=_END_SECONDS)
    if alive:
        ids = ", ".join(str(process.pid) for process in alive)
        logger.error("killed processes that do not end: %s", ids)
