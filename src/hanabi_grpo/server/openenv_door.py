"""The rollout server's access checks for an OpenEnv server, and its uvicorn configuration.

`hanabi-grpo openenv` and the package in integrations/openenv add the checks, since environments
have none.
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
"""Maximum bytes of an upload; OpenEnv has no limit."""
_QUEUED_MESSAGES = 2
"""Unread messages of a session; clients wait for each answer."""
_OTHER_CONNECTIONS = 128
"""Connections besides sessions: requests, and rejected sessions."""
_KEEP_ALIVE_SECONDS = 35
"""Seconds after which an idle connection is closed."""
_GRACEFUL_SECONDS = 5
"""Seconds for sessions that are still open at the end."""
_REFUSED = "ASGI callable returned without completing handshake."
"""uvicorn's log line for a session rejected with a status, which it takes for an app error."""


def behind_door(app: ASGIApp, *, api_key: str | None, host: str) -> ASGIApp:
    """Add the rollout server's access checks to an OpenEnv server.

    Args:
        app: The app of `openenv_server.openenv_app`.
        api_key: The key that every request needs; None or "": only programs on this machine are
            admitted.
        host: Address that the server listens on.
    """
    checked = KeyCheck(_BodyCheck(app), api_key=api_key, host=host)
    return _KeyInAddress(checked) if api_key else _ThisMachine(checked)


def check_host(option: str, host: str, api_key: str | None) -> None:
    """Reject an address at which other machines could reach the server without a key.

    Args:
        option: Name of the option with the address, e.g. "--host".
        host: The address.
        api_key: The key, if there is one.

    Raises:
        SettingsError: The address needs a key, or a longer one.
    """
    reason = why_key_is_needed(host, api_key or "")
    if reason is not None:
        raise SettingsError(
            f"{option}={host!r}: {reason}. Set it here, e.g. export "
            'HANABI_API_KEY="$(openssl rand -hex 16)", and in the clients\' URL, '
            f"http://key:KEY@{host}; or listen on 127.0.0.1."
        )


def uvicorn_config(
    app: ASGIApp, *, host: str, port: int, sessions: int, **options: Any
) -> uvicorn.Config:
    """Return the uvicorn configuration of the server.

    Args:
        app: The app returned by `behind_door`.
        host: Address to listen on.
        port: Port to listen on.
        sessions: Number of sessions that may be open at once.
        **options: Further uvicorn options.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        # The strict parser, as in the rollout server.
        http="h11",
        server_header=False,
        # The client is the connecting address, whatever a header claims.
        proxy_headers=False,
        limit_concurrency=sessions + _OTHER_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACEFUL_SECONDS,
        ws_max_size=MAX_MESSAGE,
        ws_max_queue=_QUEUED_MESSAGES,
        **options,
    )
    # Rejected strangers must not flood the log.
    logging.getLogger("uvicorn.error").addFilter(_is_no_refusal)
    return config


def _is_no_refusal(record: logging.LogRecord) -> bool:
    return record.msg != _REFUSED


class _BodyCheck:
    """The rollout server's body limits, which do not apply to WebSockets."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._checked = BodyCheck(app, upload_bytes=MAX_BODY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._checked if scope["type"] == "http" else self._app
        await app(scope, receive, send)


class _ThisMachine:
    """Admits only clients on this machine.

    Another program that serves this app may listen on every address without a key, and the Host
    header is not reliable.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # None: a Unix socket.
        client = scope.get("client")
        if client is None or is_loopback(client[0]):
            await self._app(scope, receive, send)
            return
        refusal = problem(
            FORBIDDEN,
            f"client {shown(client[0])}: a server without a key accepts only this machine. Start "
            "it with HANABI_API_KEY, and use http://key:KEY@host:port in the client.",
        )
        await refusal(scope, receive, send)


class _KeyInAddress:
    """Also accepts the key in the URL, as http://key:KEY@host:port.

    OpenEnv's own client cannot send a header; its libraries turn such a URL into `Authorization:
    Basic`. Browsers are excluded, since they would send it for any page once it was entered.
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
