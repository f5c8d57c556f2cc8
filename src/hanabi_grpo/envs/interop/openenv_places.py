"""What one client of an OpenEnv server may hold: a place for as long as it plays, and no more.

OpenEnv itself says 1000, "OK", to one session too many, writes a traceback when a client leaves
while it is answered, and has no end for an idle session. Its `POST /mcp` opens sessions that no
connection holds.
"""

import asyncio
import contextlib

from openenv.core.env_server.mcp_types import JsonRpcErrorCode, JsonRpcResponse
from openenv.core.env_server.types import WSErrorCode, WSErrorResponse
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

IDLE_SECONDS = 1800
"""After which a session that asks nothing is ended; a trainer may learn between two steps."""
MAX_MESSAGE = 1 << 20
"""Characters of a client's message; the longest is a reply."""
_TRY_AGAIN_LATER = 1013
_POLICY_VIOLATION = 1008
_MESSAGE_TOO_BIG = 1009


class Places:
    """ASGI middleware that counts sessions, and ends those that are idle or too talkative."""

    def __init__(self, app: ASGIApp, *, sessions: int, idle_seconds: float) -> None:
        """Wrap an app whose every WebSocket is a session.

        Args:
            app: OpenEnv's app.
            sessions: Sessions that may be open at once.
            idle_seconds: After which a session that asks nothing is ended.
        """
        self.sessions = sessions
        """Sessions that may be open at once."""
        self._app = app
        self._idle_seconds = idle_seconds
        self._num_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse one session too many."""
        if scope["type"] != "websocket":
            is_mcp = scope["type"] == "http" and scope["path"].rstrip("/") == "/mcp"
            app = _no_mcp() if is_mcp else self._app
            await app(scope, receive, send)
            return
        if self._num_open >= self.sessions:
            await self._refuse(receive, send)
            return
        session = _Session(receive, send, self._idle_seconds)
        self._num_open += 1
        try:
            await self._app(scope, session.receive, session.send)
        finally:
            self._num_open -= 1

    async def _refuse(self, receive: Receive, send: Send) -> None:
        """Say that there is no place: in OpenEnv's words, and in the code of the end."""
        reason = f"all {self.sessions} sessions are in use; try again later"
        refusal = WSErrorResponse(
            data={
                "message": reason,
                "code": WSErrorCode.CAPACITY_REACHED,
                "active_sessions": self._num_open,
                "max_sessions": self.sessions,
            }
        )
        await receive()
        # The client has left already; a RuntimeError is uvicorn's where that was just now.
        with contextlib.suppress(OSError, RuntimeError):
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": refusal.model_dump_json()})
            await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": reason})


def _no_mcp() -> JSONResponse:
    """Return the answer to any question by MCP's HTTP, of which these environments have none."""
    answer = JsonRpcResponse.error_response(
        JsonRpcErrorCode.METHOD_NOT_FOUND, "no MCP here: play by the WebSocket /ws."
    )
    return JSONResponse(answer.model_dump())


class _Session:
    """The messages of one session, until it is ended."""

    def __init__(self, receive: Receive, send: Send, idle_seconds: float) -> None:
        self._receive = receive
        self._send = send
        self._idle_seconds = idle_seconds
        self._is_ended = False

    async def receive(self) -> Message:
        """Return the next message; where it is not to be had, that the client has left."""
        try:
            async with asyncio.timeout(self._idle_seconds):
                message = await self._receive()
        except TimeoutError:
            reason = f"nothing was asked for {self._idle_seconds:g} s; connect again to play on"
            return await self._end(_POLICY_VIOLATION, reason)
        length = len(message.get("text") or message.get("bytes") or "")
        if length > MAX_MESSAGE:
            reason = f"a message of {length} characters; {MAX_MESSAGE} are allowed"
            return await self._end(_MESSAGE_TOO_BIG, reason)
        return message

    async def send(self, message: Message) -> None:
        """Send a message; nothing after the end.

        A client that left is no error of the app, which is told by the next `receive`.
        """
        if self._is_ended:
            return
        try:
            await self._send(message)
        except OSError:
            self._is_ended = True

    async def _end(self, code: int, reason: str) -> Message:
        self._is_ended = True
        with contextlib.suppress(OSError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        return {"type": "websocket.disconnect", "code": code, "reason": reason}
