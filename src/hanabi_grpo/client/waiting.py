"""Waiting for a rollout server: bounded, and always with a message that names the server."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import httpx

from hanabi_grpo.client.calls import bounded_client, detail_of
from hanabi_grpo.client.fleet import each_server, server_name, server_url
from hanabi_grpo.errors import ServerError, ServerGoneError
from hanabi_grpo.rollout.handshake import STARTING
from hanabi_grpo.runs.history import number
from hanabi_grpo.settings import LoadedSettings, Settings
from hanabi_grpo.settings.shell import server_command

_ASK_SECONDS = 5.0
"""Time limit of one health check."""
_MIN_ASK_SECONDS = 1.0
"""Minimum time limit of the last check: a shorter one would fail on a slow machine."""
_MAX_REMINDER_SECONDS = 60.0
_MAX_QUOTED = 200
"""Characters of an answer that a message quotes."""
_MAX_QUOTED_STRANGER = 80
"""The same for the answer of something that is not a rollout server."""


class NotReady(NamedTuple):
    """Why there is no healthy server yet."""

    reason: str
    is_there: bool = False
    """Whether a server listens on the port, so that it need not be started."""


Health = dict[str, Any] | NotReady | ServerError
"""The identity of a healthy server, or the reason why there is none, or why it refuses."""


def wait_for_server(
    settings: Settings,
    say: Callable[[str], None],
    *,
    server_command: str | None,
    instead: str = "",
    remind: float = 30.0,
    poll: float = 1.0,
    look: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Wait until the server is healthy, and report progress.

    Args:
        settings: Settings with the server's address and key, and the time limit
            (HANABI_SERVER_TIMEOUT).
        say: Shows a line to the user.
        server_command: Command that starts the server in another terminal; None: this process
            started the server.
        instead: A sentence on what the user can do instead, for the lines about a missing server;
            "": none.
        remind: Seconds before the first reminder; the intervals after it double, up to a minute.
        poll: Seconds between two health checks.
        look: Called after each health check while there is no server; an exception that it raises
            ends the wait.

    Returns:
        The server's identity.

    Raises:
        ServerGoneError: The server was not healthy in time.
        ServerError: The server refuses the key, or the address is invalid.
    """
    url = server_url(settings)
    limit = settings.server_timeout
    start = time.monotonic()
    next_reminder = start
    was_there: bool | None = None
    """Whether the last line said that a server is there; None: no line was shown."""
    with _client(settings) as client:
        while True:
            left = start + limit - time.monotonic()
            timeout = max(_MIN_ASK_SECONDS, min(_ASK_SECONDS, left))
            answer = _ask(client, url, timeout)
            waited = time.monotonic() - start
            if isinstance(answer, dict):
                if was_there is not None or server_command is None:
                    say(f"the rollout server at {url} is ready.")
                return answer
            if server_command is None and not answer.is_there:
                answer = NotReady(f"is starting, {waited:.0f} s", is_there=True)
            if waited >= limit:
                raise _too_late(url, limit, answer, server_command, instead)
            if answer.is_there is not was_there or start + waited >= next_reminder:
                if answer.is_there:
                    say(f"the rollout server at {url} {answer.reason}")
                elif was_there is False:
                    say(f"still no rollout server at {url}, {waited:.0f} of {limit:g} s")
                else:
                    say(
                        f"waiting for the rollout server at {url} ({answer.reason}; {waited:.0f} "
                        f"of {limit:g} s). Type in another terminal:\n    {server_command}"
                        + (f"\n{instead}" if instead else "")
                    )
                was_there = answer.is_there
                next_reminder = start + waited + remind
                remind = min(2 * remind, _MAX_REMINDER_SECONDS)
            before_look = time.monotonic()
            look()
            spent_looking = time.monotonic() - before_look
            time.sleep(max(0.0, min(poll, limit - waited) - spent_looking))


def wait_for_first_server(
    loaded: LoadedSettings,
    say: Callable[[str], None],
    *,
    instead: str = "",
    remind: float = 30.0,
    poll: float = 1.0,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Return once the server reports that it is healthy; see `wait_for_server`.

    If VLLM_SERVER_HOST lists several servers, this waits only for the first: commands that only
    play use that one, and print a line about it.

    Args:
        loaded: The settings.
        say: Shows a line to the user.
        instead: See `wait_for_server`.
        remind: Seconds until the first reminder.
        poll: Seconds between two health checks.
        look: See `wait_for_server`.
    """
    first, *others = each_server(loaded.settings)
    if others:
        say(
            f"VLLM_SERVER_HOST lists {1 + len(others)} servers; this command uses the first, "
            f"{server_name(first)}"
        )
    command = server_command(replace(loaded, settings=first))
    wait_for_server(
        first,
        say,
        server_command=command,
        instead=instead,
        remind=remind,
        poll=poll,
        look=look,
    )


def _too_late(
    url: str, limit: float, answer: NotReady, server_command: str | None, instead: str
) -> ServerGoneError:
    if answer.is_there:
        return ServerGoneError(
            f"the rollout server at {url} is not ready after {limit:g} s: it {answer.reason}. "
            "Look at its terminal or its log, or allow more time: HANABI_SERVER_TIMEOUT."
        )
    return ServerGoneError(
        f"no rollout server at {url} after {limit:g} s ({answer.reason}). Start it in another "
        f"terminal: {server_command}, or allow more time: HANABI_SERVER_TIMEOUT."
        + (f" {instead}" if instead else "")
    )


def look_once(settings: Settings) -> Health:
    """Return the result of a single health check."""
    try:
        with _client(settings) as client:
            return _ask(client, server_url(settings), _ASK_SECONDS)
    except ServerError as error:
        return error


def _client(settings: Settings) -> httpx.Client:
    headers = {}
    if settings.api_key:
        headers["authorization"] = f"Bearer {settings.api_key.get_secret_value()}"
    return bounded_client(headers=headers, timeout=_ASK_SECONDS)


def _ask(client: httpx.Client, url: str, timeout: float) -> dict[str, Any] | NotReady:
    """Return the server's identity, or why it is not ready."""
    try:
        answer = client.get(f"{url}/health/", timeout=timeout)
    except httpx.InvalidURL as error:
        raise ServerError(
            f"{url}: not an address ({error}); set VLLM_SERVER_HOST to a host name."
        ) from error
    except httpx.RequestError as error:
        return _not_reached(error)
    try:
        health = dict(answer.json())
    except (ValueError, TypeError, RecursionError):
        health = {}
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise ServerError(
            f"{url} refuses this key (401): set the same HANABI_API_KEY in both terminals."
        )
    if answer.status_code == httpx.codes.FORBIDDEN:
        raise ServerError(f"{url} answers 403: {detail_of(answer)}")
    if health.get("status") == STARTING:
        seconds = number(health.get("seconds"))
        so_far = "" if seconds is None else f", {seconds:.0f} s"
        return NotReady(f"is starting{so_far}", is_there=True)
    if not answer.is_success:
        return NotReady(f"it answers {answer.status_code}: {answer.text[:_MAX_QUOTED]}")
    if "instance_id" not in health:
        quoted = answer.text[:_MAX_QUOTED_STRANGER]
        return NotReady(f"what answers there is not a rollout server: {quoted!r}")
    return health


def _not_reached(error: httpx.RequestError) -> NotReady:
    problem = f"{type(error).__name__}: {error}".removesuffix(": ")
    is_closed = isinstance(error, httpx.RemoteProtocolError) and "disconnected" in str(error)
    if is_closed or isinstance(error, httpx.ReadTimeout | httpx.ReadError):
        # This also happens while the server replaces the placeholder that answers "starting".
        return NotReady(f"accepts connections but does not answer yet ({problem})", is_there=True)
    return NotReady(problem)
