"""Start the rollout server: first the port, then the serving process with engine and routes.

The parent process does not serve requests: it starts the serving process, forwards signals, and
restarts it, since a dead engine or a killed process cannot recover. The parent holds the listening
socket, so the port stays open and clients wait in its queue during a restart. Processes that a dead
serving process leaves behind (engine core, workers) are reparented to the parent by the kernel and
ended before the next start, since a new engine needs their memory.
"""

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
    die_with_starter,
    importing,
    raise_descriptor_limit,
    wait_for_debugger,
)
from hanabi_grpo.settings import Settings

logger = logging.getLogger(__name__)

EXIT_CODE = 70
"""Exit code after the engine died (EX_SOFTWARE): of the serving process each time, and of the
parent when no restarts are left."""

_CALLS = Path("outputs")
"""Folder in which calls to models behind URLs are recorded."""
_END_SECONDS = 20.0
"""Time for killed processes to end; one that holds a GPU first frees its memory."""
_CLEAN_UP_SECONDS = 20
"""Maximum time from the engine's death to the end of the process, since cleanup may hang."""
_HEALTHY_SECONDS = 600.0
"""A process that lived this long resets the count of restarts."""
_STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_SIGNALS = {*_STOP_SIGNALS, signal.SIGCHLD}
_FROM_TERMINAL = 0x80
"""Linux's SI_KERNEL: Ctrl-C, which the terminal sends to the serving process too."""
_BY_SIGNAL = 128
"""Added to a signal's number in the exit code of a process that the signal ended."""

_BACKLOG = 128
"""Connections that may wait in the kernel's queue."""
_KEEPALIVE_IDLE = 30
"""Seconds of silence before the kernel probes whether the other machine is alive."""
_KEEPALIVE_INTERVAL = 10
"""Seconds between these probes."""
_KEEPALIVE_COUNT = 3
"""Unanswered probes after which a connection is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChildEnd:
    """How a serving process ended."""

    code: int
    """Its exit code, or minus the number of the signal that ended it."""
    was_stopped: bool
    """Whether the parent had been told to stop."""


def serve(settings: Settings, extra_args: list[str]) -> None:
    """Run the server until SIGINT, SIGTERM, or too many restarts of its process.

    Args:
        settings: The server's settings.
        extra_args: vLLM's own command line options.

    Raises:
        ServerError: The port is in use.
        SystemExit: The server ended; see its exit code.
    """
    set_up_logging()
    raise_descriptor_limit()
    listener = listen(settings.host, settings.port)
    # Chosen before the fork, so that a restarted process appends to the same files.
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}-{settings.port}"
    if settings.die_with_parent:
        die_with_starter(signal.SIGTERM)
    fork_and_supervise(allowed=settings.engine_restarts)
    signal.signal(signal.SIGTERM, _end)
    if settings.debug == "server":
        # In the serving process, also after a restart.
        wait_for_debugger("server")
    from hanabi_grpo.server.serving import run

    engine_died = run(_run(settings, extra_args, listener, stamp))
    if engine_died:
        raise SystemExit(EXIT_CODE)


def _end(signum: int, frame: object) -> None:
    # When a whole process group is ended, the signal arrives twice; it must not interrupt the
    # cleanup.
    signal.signal(signum, signal.SIG_IGN)
    sys.exit(_BY_SIGNAL + signum)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ServerError: The address cannot be used; its cause is the OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol, asyncio disables Nagle's algorithm; otherwise every small answer
    # would wait 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Inherited by every connection: a machine that vanishes does not close its connections, and its
    # games would be played for nobody.
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
            f"PORT={port}: cannot listen on {host}:{port} ({error.strerror}). Stop the process on "
            "that port, or choose another port in both terminals: "
            f"PORT={port + 1} and VLLM_SERVER_PORT={port + 1}."
        ) from error
    return listener


async def _run(
    settings: Settings, extra_args: list[str], listener: socket.socket, stamp: str
) -> bool:
    """Serve in this process; return whether the engine died."""
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
            # If cleanup hangs, the kernel ends the process, and the parent starts the next one.
            on_death=lambda: signal.alarm(_CLEAN_UP_SECONDS),
        )


def fork_and_supervise(*, allowed: int, healthy_seconds: float = _HEALTHY_SECONDS) -> None:
    """Return in each serving process; the parent stays in this function until the end.

    Call it before any thread starts. If the parent is killed, the serving process is killed too,
    together with its engine (Linux only).

    Args:
        allowed: Number of restarts after an engine's death or a kill.
        healthy_seconds: A process that lived this long resets the count of restarts.

    Raises:
        SystemExit: In the parent, with the code of a serving process that ended otherwise,
            `EXIT_CODE` if it died too often, or 128 plus the number of a signal to stop that
            arrived while there was no serving process.
    """
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    adopt_orphans()
    parent = os.getpid()
    restarts = 0
    is_first = True
    while True:
        # Otherwise both processes would write the buffered output.
        sys.stdout.flush()
        sys.stderr.flush()
        started = time.monotonic()
        stopped = signal.sigtimedwait(_STOP_SIGNALS, 0)
        if stopped is not None:
            raise SystemExit(_BY_SIGNAL + stopped.si_signo)
        child = os.fork()
        if child == 0:
            die_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                # The parent died before `die_with_parent` took effect.
                os._exit(1)
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            return
        for early in signal.sigpending() & _STOP_SIGNALS:
            # It may have come just before the fork, when the terminal sent it to the parent alone.
            os.kill(child, early)
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
    """Return why a serving process that ended is restarted; None: it is not."""
    # The alarm ends a cleanup that hangs on the dead engine.
    if code in (EXIT_CODE, -signal.SIGALRM):
        return "engine dead"
    if code < 0 and -code not in (signal.SIGINT, signal.SIGTERM):
        return f"server process killed by {signal.Signals(-code).name}"
    if code == 1 and not is_first:
        # It started before with the same settings, so resources of the dead process may not be free
        # yet.
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
    """Reap every process that has ended; return the exit code of `child` if it is among them."""
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
    """Kill the processes that a dead serving process left behind."""
    killed = []
    for process in psutil.Process().children(recursive=True):
        # A psutil.Error means a zombie, or a process that has just ended.
        with contextlib.suppress(psutil.Error):
            # Python's resource tracker removes the shared memory of dead processes, and ends after
            # them.
            if "multiprocessing.resource_tracker" in " ".join(process.cmdline()):
                continue
            process.kill()
            killed.append(process)
    _, alive = psutil.wait_procs(killed, timeout=_END_SECONDS)
    if alive:
        ids = ", ".join(str(process.pid) for process in alive)
        logger.error("processes still alive after being killed: %s", ids)
