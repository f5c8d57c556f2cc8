"""The server's side of `fork_server`: starts it, and requests worker processes."""

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from dataclasses import dataclass
from io import FileIO

from hanabi_grpo.server.workers.messages import (
    MAX_FORK_MESSAGE,
    Exited,
    Fork,
    Forked,
    Kill,
    decode_from_fork_server,
    encode,
)

_MODULE = "hanabi_grpo.server.workers.fork_server"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Child:
    """A worker process."""

    pid: int
    server: "ForkServer"
    exit_code: "asyncio.Future[int]"
    """Negative: the number of the signal that ended it."""

    async def wait(self) -> int:
        """Wait for the end of the process and return its exit code."""
        return await asyncio.shield(self.exit_code)

    def kill(self) -> None:
        """Kill the process, if it is alive."""
        self.server.kill(self.pid)


class ForkServer:
    """A running fork server. Used from one event loop."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        """Connect to a running process.

        Args:
            process: The fork server.
            control: This end of the connection to it.
        """
        self.process = process
        self._control = control
        self._forks: deque[asyncio.Future[int]] = deque()
        """Pending requests, oldest first; the answer is a process id."""
        self._children: dict[int, Child] = {}
        """Children whose end has not been reported, by process id."""
        self.is_closed = False
        """Whether it has ended, or is being ended: it forks no more children."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(control, self._receive)

    @classmethod
    async def start(cls) -> "ForkServer":
        """Start the process without waiting for its imports; the first fork waits for them.

        Raises:
            OSError: The process cannot be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        # Everything that is importable here must be importable there.
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _MODULE,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                env=environ,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, ours)

    async def fork(self, connection: socket.socket, memory: FileIO) -> Child:
        """Return a new worker process.

        Args:
            connection: The worker's end of the connection to the pool. The caller closes it.
            memory: The memory of the worker's `CurrentCall`. The caller closes it.

        Raises:
            OSError: No further process can be created, or the fork server has ended.
        """
        if self.is_closed:
            raise ConnectionError("the fork server has ended")
        answer = self._loop.create_future()
        descriptors = [connection.fileno(), memory.fileno()]
        socket.send_fds(self._control, [encode(Fork())], descriptors)
        self._forks.append(answer)
        return self._children[await answer]

    def kill(self, pid: int) -> None:
        """Kill a child, if it is alive."""
        if pid not in self._children or self.is_closed:
            return
        try:
            self._control.send(encode(Kill(pid=pid)))
        except ConnectionError:
            # The fork server has died, and its children with it.
            self.close()

    def close(self) -> None:
        """End the process and all its children."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self._control)
        self._control.close()
        for answer in self._forks:
            if not answer.done():
                answer.set_exception(ConnectionError("the fork server has ended"))
        self._forks.clear()
        for child in self._children.values():
            if not child.exit_code.done():
                child.exit_code.set_result(-signal.SIGKILL)
        self._children.clear()

    def _receive(self) -> None:
        try:
            content = self._control.recv(MAX_FORK_MESSAGE)
        except BlockingIOError:
            return
        except ConnectionError:
            content = b""
        if not content:
            self.close()
            return
        match decode_from_fork_server(content):
            case Forked(pid=pid, problem=problem):
                answer = self._forks.popleft()
                if problem:
                    error: OSError | None = OSError(f"cannot fork a worker process: {problem}")
                else:
                    error = None
                    exit_code = self._loop.create_future()
                    self._children[pid] = Child(pid=pid, server=self, exit_code=exit_code)
                if answer.cancelled():
                    self.kill(pid)
                elif error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(pid)
            case Exited(pid=pid, code=code):
                child = self._children.pop(pid)
                if not child.exit_code.done():
                    child.exit_code.set_result(code)
