"""Client for an OpenEnv server on this machine whose calls always end, whatever the server does.

OpenEnv's own client has no deadline for what it sends, follows redirects to anywhere, and accepts
100 MB. Here, each call has one deadline for its complete response, responses have a maximum size,
redirects are not followed, and proxies are not used, because proxy variables are meant for the
internet. Each session has an event loop in its own thread, so that a call can be interrupted from
any thread, including one that runs an event loop.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import httpx
import msgspec
from anyio.from_thread import BlockingPortal, start_blocking_portal
from websockets.asyncio.client import ClientConnection, connect

from hanabi_grpo.errors import ServerError, shown

DEADLINE = 30.0
"""Maximum number of seconds until a call has its complete response."""
MAX_ANSWER = 4 << 20
"""Maximum size of a response in bytes."""
_CLOSE_SECONDS = 1.0
"""Time limit for closing the connection to a server that may be gone."""
_OK = 200
_UNAUTHORIZED = 401

_Answer = TypeVar("_Answer")


class _AnswerError(Exception):
    """Describes a response that cannot be used."""


class _StatusError(_AnswerError):
    """The server does not have what was asked for."""


class _Field(msgspec.Struct):
    """A field in a JSON schema."""

    type: Any = None


class _Action(msgspec.Struct):
    """The JSON schema of actions."""

    properties: dict[str, _Field]


class _Schema(msgspec.Struct):
    """The response to `GET /schema`."""

    action: _Action


class Metadata(msgspec.Struct, frozen=True):
    """The response to `GET /metadata`: which game the server plays."""

    name: str = ""
    version: str | None = None
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a server says about itself."""

    text_fields: tuple[str, ...]
    """The text fields of its actions."""
    metadata: Metadata
    """Empty if the server has none."""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a reset or a step."""

    observation: dict[str, Any]
    reward: bool | float | None = None
    done: bool = False


class _ObservationMessage(msgspec.Struct, tag_field="type", tag="observation"):
    """The message that contains it."""

    data: Observed


class _Refusal(msgspec.Struct):
    """The error reported for a failed reset or step."""

    message: str = ""
    code: str = ""


class _ErrorMessage(msgspec.Struct, tag_field="type", tag="error"):
    """The message that contains it."""

    data: _Refusal


def describe(url: str) -> Described:
    """Return what a server says about itself.

    Args:
        url: E.g. "http://localhost:8100".

    Raises:
        ServerError: There is no OpenEnv server, or its response was too late or too large.
    """
    with start_blocking_portal(name=f"openenv {url}") as portal:
        path = "/schema"
        try:
            schema = _ask(portal, lambda: _fetch(f"{url}/schema", _Schema))
            path = "/metadata"
            metadata = _ask(portal, lambda: _fetch_metadata(url))
        except _AnswerError as error:
            raise ServerError(f"{url}{path} is not an OpenEnv server ({error})") from error
    text_fields = []
    for name, field in schema.action.properties.items():
        if field.type == "string":
            text_fields.append(name)
    return Described(text_fields=tuple(text_fields), metadata=metadata)


async def _fetch_metadata(url: str) -> Metadata:
    """Return a server's metadata; empty if it has none, as in early versions of OpenEnv."""
    try:
        return await _fetch(f"{url}/metadata", Metadata)
    except _StatusError:
        return Metadata()


async def _fetch(address: str, kind: type[_Answer]) -> _Answer:
    """Return the JSON response to a GET request.

    Args:
        address: The address.
        kind: Type of the response.
    """
    body = bytearray()
    async with (
        httpx.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            # `_ask` sets the deadline for the whole call; this one would apply to each read.
            timeout=None,
            headers={"accept-encoding": "identity"},
        ) as http,
        http.stream("GET", address) as answer,
    ):
        if answer.status_code == _UNAUTHORIZED:
            raise _AnswerError(
                f"status {_UNAUTHORIZED}: it requires a key, but this client sends none; a server "
                "that only listens on this machine needs no key"
            )
        if answer.status_code != _OK:
            raise _StatusError(
                f"status {answer.status_code}; expected {_OK}, and redirects are not followed"
            )
        encoding = answer.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise _AnswerError(f"content-encoding {encoding[:20]}; only identity is allowed")
        async for part in answer.aiter_raw():
            body += part
            if len(body) > MAX_ANSWER:
                raise _AnswerError(f"more than the maximum of {MAX_ANSWER} bytes")
    return msgspec.json.decode(body, type=kind)


class OpenEnvSession:
    """One session of a server: a reset, and steps until the episode is over."""

    def __init__(self, host: str, port: int) -> None:
        """Prepare a session; `reset` connects.

        Args:
            host: "localhost" or "127.0.0.1".
            port: The server's port.
        """
        self._host = host
        self._port = port
        self._name = f"http://{host}:{port}"
        self._stack = contextlib.ExitStack()
        self._portal: BlockingPortal | None = None
        self._connection: ClientConnection | None = None

    def reset(self, seed: int) -> Observed:
        """Connect and start the episode with a seed.

        Raises:
            ServerError: The server was unreachable, refused, or sent no valid response in time.
        """
        portal = start_blocking_portal(name=f"openenv {self._name}")
        self._portal = self._stack.enter_context(portal)

        async def reset() -> Observed:
            self._connection = await connect(
                f"ws://{self._host}:{self._port}/ws",
                # Given explicitly, so that a redirect to another address is refused.
                host=self._host,
                port=self._port,
                proxy=None,
                compression=None,
                max_size=MAX_ANSWER,
                max_queue=1,
                open_timeout=None,
                ping_interval=None,
                close_timeout=_CLOSE_SECONDS,
            )
            return await self._exchange("reset", {"seed": seed})

        return self._call("reset", reset)

    def step(self, action: Mapping[str, str]) -> Observed:
        """Send an action.

        Raises:
            ServerError: See `reset`; the session is then over.
        """
        return self._call("step", lambda: self._exchange("step", action))

    def close(self) -> None:
        """End the session, without waiting long for a server that does not close it."""
        portal = self._portal
        self._portal = None
        if portal is None:
            return
        with self._stack:
            portal.call(self._hang_up)

    def _call(self, what: str, send: Callable[[], Awaitable[Observed]]) -> Observed:
        if self._portal is None:
            raise ServerError(f"{self._name}: {what} failed (its session is over). Start another.")
        try:
            return _ask(self._portal, send)
        except BaseException as error:
            # A late response would be mistaken for the response to the next call.
            self.close()
            if not isinstance(error, _AnswerError):
                raise
            raise ServerError(
                f"{self._name}: {what} failed ({error}). Is the server running, with a free "
                "session?"
            ) from error

    async def _exchange(self, kind: Literal["reset", "step"], data: Mapping[str, Any]) -> Observed:
        assert self._connection is not None
        await self._connection.send(msgspec.json.encode({"type": kind, "data": data}).decode())
        answer = msgspec.json.decode(
            await self._connection.recv(), type=_ObservationMessage | _ErrorMessage
        )
        if isinstance(answer, _ErrorMessage):
            refusal = answer.data
            raise _AnswerError(f"it reports {shown(refusal.message)} ({shown(refusal.code)})")
        return answer.data

    async def _hang_up(self) -> None:
        connection = self._connection
        if connection is None:
            return
        # Errors do not matter: the connection is being abandoned.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await connection.send(b'{"type":"close"}'.decode())
                await connection.close()
        connection.transport.abort()


def _ask(portal: BlockingPortal, send: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Return the response to one call, which must arrive by the deadline.

    Args:
        portal: The event loop that makes the call.
        send: Makes the call.

    Raises:
        _AnswerError: The call failed in any way.
    """

    async def ask() -> _Answer:
        async with asyncio.timeout(DEADLINE):
            return await send()

    try:
        return portal.call(ask)
    except _AnswerError:
        raise
    except TimeoutError as error:
        raise _AnswerError(
            f"no complete response within {DEADLINE:g} s, the limit for one call"
        ) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise _AnswerError(f"the response is invalid: {error}") from error
    except Exception as error:  # from sockets, HTTP or websockets
        raise _AnswerError(f"{type(error).__name__}: {error}") from error
