"""Waiting for a rollout server, bounded, and never without saying for whom."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx

from hanabi_grpo.client.calls import bounded_client, detail_of
from hanabi_grpo.client.fleet import server_url
from hanabi_grpo.errors import ServerError, ServerGoneError
from hanabi_grpo.rollout.handshake import STARTING
from hanabi_grpo.settings import Settings

_ASK_SECONDS = 5.0


class NotReady(NamedTuple):
    """Why there is no healthy server yet."""

    reason: str
    is_there: bool = False
    """A server has the port, so nobody needs to start one."""


Health = dict[str, Any] | NotReady | ServerError
"""What a rollout server says of itself, or why there is no healthy one, or why it refuses."""


def wait_for_server(
    settings: Settings,
    say: Callable[[str], None],
    *,
    server_command: str | None,
    remind: float = 10.0,
    poll: float = 1.0,
    look: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Return once the server answers that it is healthy; say meanwhile what is waited for, less and
    less often.

    `server_command` starts the server, as typed in another terminal; None: it was started for this
    wait. The first reminder comes after `remind` seconds, and the times after it double, up to a
    minute. Every `poll` seconds the server is asked; while there is none, `look` is called after
    it, and what that raises ends the wait.

    Raises:
        ServerGoneError: The time is up.
        ServerError: The server refuses the key, or the address is none.
    """
    base, limit = server_url(settings), settings.server_timeout
    start = next_reminder = time.monotonic()
    said: bool | None = None
    with _client(settings) as client:
        while True:
            left = start + limit - time.monotonic()
            answer = _ask(client, base, max(0.1, min(_ASK_SECONDS, left)))
            waited = time.monotonic() - start
            if isinstance(answer, dict):
                if said is not None or server_command is None:
                    say(f"the rollout server at {base} is ready.")
                return answer
            if server_command is None and not answer.is_there:
                answer = NotReady(f"is starting, {waited:.0f} s", is_there=True)
            if waited >= limit:
                raise ServerGoneError(
                    f"the rollout server at {base} is not ready after {limit:g} s: it "
                    f"{answer.reason}. Look at its "
                    "terminal or its log, or allow more time: HANABI_SERVER_TIMEOUT."
                    if answer.is_there
                    else f"no rollout server at {base} after {limit:g} s ({answer.reason}). Start "
                    "it in another "
                    f"terminal: {server_command} — or allow more time: HANABI_SERVER_TIMEOUT."
                )
            if answer.is_there is not said or start + waited >= next_reminder:
                say(
                    f"the rollout server at {base} {answer.reason}"
                    if answer.is_there
                    else f"waiting for the rollout server at {base} ({answer.reason}; "
                    f"{waited:.0f} of {limit:g} s). "
                    f"Type in another terminal:\n    {server_command}"
                )
                said = answer.is_there
                next_reminder = start + waited + remind
                remind = min(2 * remind, 60.0)
            looked = time.monotonic()
            look()
            time.sleep(max(0.0, min(poll, limit - waited) - (time.monotonic() - looked)))


def look_once(settings: Settings) -> Health:
    """Ask a server how it is, once."""
    try:
        with _client(settings) as client:
            return _ask(client, server_url(settings), _ASK_SECONDS)
    except ServerError as error:
        return error


def _client(settings: Settings) -> httpx.Client:
    headers = (
        {"authorization": f"Bearer {settings.api_key.get_secret_value()}"}
        if settings.api_key
        else {}
    )
    return bounded_client(headers=headers, timeout=_ASK_SECONDS)


def _ask(client: httpx.Client, base: str, timeout: float) -> dict[str, Any] | NotReady:
    """Return the health of the server, or why it has none."""
    try:
        answer = client.get(f"{base}/health/", timeout=timeout)
    except httpx.InvalidURL as error:
        raise ServerError(
            f"{base}: not an address ({error}); set VLLM_SERVER_HOST to a host name."
        ) from error
    except httpx.RequestError as error:
        problem = f"{type(error).__name__}: {error}".removesuffix(": ")
        hung_up = isinstance(error, httpx.RemoteProtocolError) and "disconnected" in str(error)
        if hung_up or isinstance(error, httpx.ReadTimeout | httpx.ReadError):
            # Also where the one that says "starting" has just made way for the one that serves.
            return NotReady(
                f"accepts connections and does not answer yet ({problem})", is_there=True
            )
        return NotReady(problem)
    try:
        health = dict(answer.json())
    except (ValueError, TypeError, RecursionError):
        health = {}
    if answer.status_code == 401:
        raise ServerError(
            f"{base} refuses this key (401): set the same HANABI_API_KEY in both terminals."
        )
    if answer.status_code == 403:
        raise ServerError(f"{base} answers 403: {detail_of(answer)}")
    if health.get("status") == STARTING:
        seconds = health.get("seconds")
        so_far = f", {seconds:.0f} s" if isinstance(seconds, int | float) else ""
        return NotReady(f"is starting{so_far}", is_there=True)
    if not answer.is_success:
        return NotReady(f"it answers {answer.status_code}: {answer.text[:200]}")
    if "instance_id" not in health:
        return NotReady(f"what answers there is no rollout server: {answer.text[:80]!r}")
    return health
