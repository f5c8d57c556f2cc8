"""What the port answers until the engine is up: that the server is starting, and since when."""

import socket
import threading
import time
from types import TracebackType
from typing import Self

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from hanabi_grpo.rollout.handshake import STARTING
from hanabi_grpo.server.connections import server_config
from hanabi_grpo.server.limits import Limits

_STOP_SECONDS = 5.0


class StartingServer:
    """Answers every request on a listening socket with 503 `{"status": "starting", "seconds": …}`.

    An engine takes minutes to start, on the main thread; without an answer a client cannot tell a server that is
    starting from one that hangs. This one works in a thread and says nothing that a key protects.

    Example:
        with StartingServer(listener) as starting, rollout_server(…) as server:
            starting.stop()
    """

    def __init__(self, listener: socket.socket) -> None:
        """Prepare; the socket stays open for who serves next."""
        began = time.monotonic()

        # No method: uvicorn takes a bound one for an application of ASGI 2.
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            seconds = round(time.monotonic() - began, 1)
            body = {
                "status": STARTING,
                "seconds": seconds,
                "detail": f"the server is starting, {seconds:.0f} s so far; ask again.",
            }
            headers = {"retry-after": "2", "connection": "close"}
            await JSONResponse(body, status_code=503, headers=headers)(scope, receive, send)

        self._server = uvicorn.Server(server_config(answer, Limits(), graceful_seconds=1))
        self._thread = threading.Thread(target=self._server.run, args=([listener.dup()],), name="starting", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self.stop()

    def stop(self) -> None:
        """End; requests from now on wait for who serves next."""
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
