"""Limits on the sessions of an OpenEnv server: a session lasts only while its client plays.

OpenEnv itself closes a session above the limit with code 1000, "OK", prints a traceback when a
client leaves during a response, and never ends idle sessions. Its `POST /mcp` opens sessions that
are not tied to any connection.
"""

import asyncio
import contextlib

from openenv.core.env_server.mcp_types import JsonRpcErrorCode, JsonRpcResponse
from openenv.core.env_server.types import WSErrorCode, WSErrorResponse
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

IDLE_SECONDS = 1800
"""Idle time after which a session is closed; a trainer may be training between two steps."""
MAX_MESSAGE = 1 << 20
"""Maximum length of a client message in characters; the longest messages are replies."""
_TRY_AGAIN_LATER = 1013
_POLICY_VIOLATION = 1008
_MESSAGE_TOO_BIG = 1009


class Places:
    """ASGI middleware that limits sessions, and ends sessions that are idle or send too much."""

    def __init__(self, app: ASGIApp, *, sessions: int, idle_seconds: float) -> None:
        """Wrap an app in which every WebSocket is a session.

        Args:
            app: OpenEnv's app.
            sessions: Maximum number of open sessions.
            idle_seconds: Idle time after which a session is closed.
        """
        self.sessions = sessions
        """Maximum number of open sessions."""
        self._app = app
        self._idle_seconds = idle_seconds
        self._num_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse a session above the limit."""
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
        """Refuse a session with OpenEnv's own error message and a matching close code."""
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
        # The client may have left already; if it left just now, uvicorn raises a RuntimeError.
        with contextlib.suppress(OSError, RuntimeError):
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": refusal.model_dump_json()})
            await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": reason})


def _no_mcp() -> JSONResponse:
    """Return the response to any request over MCP's HTTP, which is not supported here."""
    answer = JsonRpcResponse.error_response(
        JsonRpcErrorCode.METHOD_NOT_FOUND, "MCP is not supported: play over the WebSocket /ws."
    )
    return JSONResponse(answer.model_dump())


class _Session:
    """The messages of one session until it ends."""

    def __init__(self, receive: Receive, send: Send, idle_seconds: float) -> None:
        self._receive = receive
        self._send = send
        self._idle_seconds = idle_seconds
        self._is_ended = False

    async def receive(self) -> Message:
        """Return the next message, or a disconnect if the client left or exceeded a limit."""
        try:
            async with asyncio.timeout(self._idle_seconds):
                message = await self._receive()
        except TimeoutError:
            reason = f"no message for {self._idle_seconds:g} s; connect again to continue"
            return await self._end(_POLICY_VIOLATION, reason)
        length = len(message.get("text") or message.get("bytes") or "")
        if length > MAX_MESSAGE:
            reason = f"a message has {length} characters; at most {MAX_MESSAGE} are allowed"
            return await self._end(_MESSAGE_TOO_BIG, reason)
        return message

    async def send(self, message: Message) -> None:
        """Send a message, unless the session has ended.

        If the client has left, this is not an error; the app learns it from the next `receive`.
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
