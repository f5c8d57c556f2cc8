"""The process from which workers are forked, with the workers' modules already imported.

A worker started from scratch spends a third of a second of CPU time on imports. If an environment
hangs now and then, each new worker would cost that in the middle of a step.

Started by `forking` as `python -m hanabi_grpo.server.workers.fork_server FD` with one end of a
connected SOCK_SEQPACKET socket. It does not run an environment's code, has a single thread, and
ends with the connection, together with its workers. A worker is killed when the process that forked
it ends.
"""

import contextlib
import importlib
import os
import selectors
import signal
import socket
import sys
from io import FileIO
from types import FrameType

from hanabi_grpo.logs import set_up_logging
from hanabi_grpo.processes import die_with_parent, importing
from hanabi_grpo.server.workers import process
from hanabi_grpo.server.workers.messages import (
    MAX_FORK_MESSAGE,
    Exited,
    Fork,
    Forked,
    Kill,
    decode_to_fork_server,
    encode,
)

_PRELOADED = ("numpy", "pyspiel")
"""Modules that most environments import."""


class ForkServer:
    """Forks workers, kills them on request, and reports how they ended."""

    def __init__(self, control: socket.socket) -> None:
        """Listen for ended children.

        Args:
            control: The connection to the rollout server.
        """
        self._control = control
        self._pids: set[int] = set()
        """Children whose end has not been reported."""
        self._wakeups, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeups, self._wakeup_writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakeup_writer.fileno())
        signal.signal(signal.SIGCHLD, _do_nothing)

    def serve(self) -> tuple[socket.socket, FileIO] | None:
        """Handle the rollout server's messages until it closes the connection.

        Returns:
            In a child, the socket of the new worker and the memory of its `CurrentCall`; in the
            fork server None, at its end.
        """
        # A connection closed with unread messages raises an error, here or at the next send.
        with contextlib.suppress(ConnectionError):
            received = self._serve_connection()
            if received is not None:
                return received
        self._end_all()
        return None

    def _serve_connection(self) -> tuple[socket.socket, FileIO] | None:
        """Return as `serve`; raise a ConnectionError if the connection breaks."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wakeups, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wakeups in ready:
                    self._wakeups.recv(1 << 10)
                    self._report_exits()
                if self._control not in ready:
                    continue
                content, descriptors, _, _ = socket.recv_fds(self._control, MAX_FORK_MESSAGE, 2)
                if not content:
                    return None
                match decode_to_fork_server(content):
                    case Fork():
                        connection = socket.socket(fileno=descriptors[0])
                        memory = FileIO(descriptors[1], "r+")
                        if self._fork():
                            return connection, memory
                        connection.close()
                        memory.close()
                    case Kill(pid=pid):
                        # Only a child that has not been reaped: its number cannot be reused yet.
                        if pid in self._pids:
                            os.kill(pid, signal.SIGKILL)

    def _fork(self) -> bool:
        """Fork; return True in the child."""
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._control.send(encode(Forked(pid=0, problem=str(error))))
            return False
        if pid:
            self._pids.add(pid)
            self._control.send(encode(Forked(pid=pid)))
            return False
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for inherited in (self._control, self._wakeups, self._wakeup_writer):
            inherited.close()
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
        _reseed()
        return True

    def _report_exits(self) -> None:
        for pid in list(self._pids):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._pids.remove(pid)
                code = os.waitstatus_to_exitcode(status)
                self._control.send(encode(Exited(pid=pid, code=code)))

    def _end_all(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)


def _do_nothing(signum: int, frame: FrameType | None) -> None:
    """Handle SIGCHLD: Python writes to the wakeup descriptor only if there is a handler."""


def _reseed() -> None:
    """Reseed NumPy in a worker; Python's `random` reseeds itself after a fork."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def main() -> None:
    """Serve the connection whose descriptor is the first argument; in a child, be a worker."""
    die_with_parent(signal.SIGKILL)
    # Ctrl-C is sent to all processes of the terminal; the server ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_up_logging()
    # A process of several threads cannot be forked safely.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with importing():
        for name in _PRELOADED:
            importlib.import_module(name)
    received = ForkServer(socket.socket(fileno=int(sys.argv[1]))).serve()
    if received is not None:
        process.run(*received)


if __name__ == "__main__":
    main()
