"""The rollout server's door before an OpenEnv server, and how uvicorn serves it.

`hanabi-grpo openenv` and the package in integrations/openenv put it there: environments know no
doors.
"""

import base64
import binascii
import logging
from typing import Any

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from hanabi_grpo.envs.interop.openenv_places import MAX_MESSAGE
from hanabi_grpo.errors import SettingsError, shown
from hanabi_grpo.server.door import FORBIDDEN, BodyCheck, KeyCheck, problem
from hanabi_grpo.settings.values import is_loopback, why_key_is_needed

MAX_BODY = 1 << 20
"""Bytes of an upload; OpenEnv has none."""
_QUEUED_MESSAGES = 2
"""Messages of a session that wait to be read; a client waits for each answer."""
_OTHER_CONNECTIONS = 128
"""Connections besides sessions: requests, and sessions that are refused."""
_KEEP_ALIVE_SECONDS = 35
"""After which an idle connection is closed."""
_GRACEFUL_SECONDS = 5
"""For sessions in play at the end."""
_REFUSED = "ASGI callable returned without completing handshake."
"""What uvicorn logs of a session that is refused with a status, as an error of the app."""


def behind_door(app: ASGIApp, *, api_key: str | None, host: str) -> ASGIApp:
    """Put an OpenEnv server behind the rollout server's door.

    Args:
        app: The app of `openenv_server.openenv_app`.
        api_key: The key that every request needs; None or "": only programs of this machine are
            let in.
        host: Address that it listens on.
    """
    checked = KeyCheck(_BodyCheck(app), api_key=api_key, host=host)
    return _KeyInAddress(checked) if api_key else _ThisMachine(checked)


def check_host(option: str, host: str, api_key: str | None) -> None:
    """Refuse to listen where other machines reach the server without a key.

    Args:
        option: Where the address was given, e.g. "--host".
        host: The address.
        api_key: The key, if there is one.

    Raises:
        SettingsError: It needs one, or a longer one.
    """
    reason = why_key_is_needed(host, api_key or "")
    if reason is not None:
        raise SettingsError(
            f"{option}={host!r}: {reason}. Set it here, e.g. export "
            'HANABI_API_KEY="$(openssl rand -hex 16)", and give it to clients in the address, '
            f"http://key:KEY@{host}; or listen on 127.0.0.1."
        )


def uvicorn_config(
    app: ASGIApp, *, host: str, port: int, sessions: int, **options: Any
) -> uvicorn.Config:
    """Return how uvicorn serves it.

    Args:
        app: What `behind_door` returned.
        host: Address to listen on.
        port: Port to listen on.
        sessions: Sessions that may be open at once.
        **options: More of uvicorn's options.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        # The strict parser, as of the rollout server.
        http="h11",
        server_header=False,
        # Who asks is who connects, whatever a header says.
        proxy_headers=False,
        limit_concurrency=sessions + _OTHER_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACEFUL_SECONDS,
        ws_max_size=MAX_MESSAGE,
        ws_max_queue=_QUEUED_MESSAGES,
        **options,
    )
    # Strangers may be refused as often as they like.
    logging.getLogger("uvicorn.error").addFilter(_is_no_refusal)
    return config


def _is_no_refusal(record: logging.LogRecord) -> bool:
    return record.msg != _REFUSED


class _BodyCheck:
    """The rollout server's limits of bodies; a WebSocket has none."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._checked = BodyCheck(app, upload_bytes=MAX_BODY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._checked if scope["type"] == "http" else self._app
        await app(scope, receive, send)


class _ThisMachine:
    """Lets in who connects from this machine.

    Other servers than ours may listen on every address, without a key, and a Host header can say
    anything.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # None: of a Unix socket.
        client = scope.get("client")
        if client is None or is_loopback(client[0]):
            await self._app(scope, receive, send)
            return
        refusal = problem(
            FORBIDDEN,
            f"client {shown(client[0])}: a server without a key accepts only this machine. Start "
            "it with HANABI_API_KEY, and call it by http://key:KEY@host:port.",
        )
        await refusal(scope, receive, send)


class _KeyInAddress:
    """Takes the key from an address too, as http://key:KEY@host:port.

    OpenEnv's own client has no way to send a header; its libraries make `Authorization: Basic` of
    the address. Not for browsers, which would send it for any page once it was typed in.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            key = _key_in_address(Headers(scope=scope))
            if key is not None:
                MutableHeaders(scope=scope)["authorization"] = f"Bearer {key}"
        await self._app(scope, receive, send)


def _key_in_address(headers: Headers) -> str | None:
    scheme, _, encoded = headers.get("authorization", "").partition(" ")
    is_browser = "origin" in headers or "sec-fetch-site" in headers
    if is_browser or scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
    _, _, key = decoded.partition(b":")
    return key.decode("latin-1")
