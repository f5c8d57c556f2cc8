"""Waiting for a rollout server, bounded, and never without saying for whom."""

import time
from collections.abc import Callable
from typing import Any

import httpx

from hanabi_grpo.client import server_url
from hanabi_grpo.errors import ServerError, ServerGoneError
from hanabi_grpo.http_bounds import bounded_client
from hanabi_grpo.settings import Settings

_ASK_SECONDS = 5.0


def wait_for_server(
    settings: Settings, say: Callable[[str], None], *, server_command: str, remind: float = 10.0, poll: float = 1.0
) -> dict[str, Any]:
    """Return once the server answers that it is healthy; remind of the command that starts it meanwhile.

    Args:
        settings: VLLM_SERVER_HOST, VLLM_SERVER_PORT, HANABI_SERVER_TIMEOUT and the key.
        say: Where reminders go.
        server_command: What starts the server, as typed in another terminal.
        remind: Seconds between reminders.
        poll: Seconds between questions.

    Returns:
        The server's answer: its instance_id, versions and counts.

    Raises:
        ServerGoneError: The time is up.
        ServerError: The server refuses the key, or the address is none.
    """
    base, limit = server_url(settings), settings.server_timeout
    headers = {"authorization": f"Bearer {settings.api_key.get_secret_value()}"} if settings.api_key else {}
    start = time.monotonic()
    next_reminder = start
    with bounded_client(headers=headers, timeout=_ASK_SECONDS) as client:
        while True:
            left = start + limit - time.monotonic()
            answer = _ask(client, base, max(0.1, min(_ASK_SECONDS, left)))
            if not isinstance(answer, str):
                return answer
            waited = time.monotonic() - start
            if waited >= limit:
                raise ServerGoneError(
                    f"no rollout server at {base} after {limit:g} s ({answer}). Start it in another "
                    f"terminal: {server_command} — or allow more time: HANABI_SERVER_TIMEOUT."
                )
            if start + waited >= next_reminder:
                say(
                    f"waiting for the rollout server at {base} ({answer}; {waited:.0f} of {limit:g} s). "
                    f"Type in another terminal:\n    {server_command}"
                )
                next_reminder = start + waited + remind
            time.sleep(min(poll, limit - waited))


def _ask(client: httpx.Client, base: str, timeout: float) -> dict[str, Any] | str:
    """Return the health of the server, or why it has none."""
    try:
        answer = client.get(f"{base}/health/", timeout=timeout)
    except httpx.InvalidURL as error:
        raise ServerError(f"{base}: not an address ({error}); set VLLM_SERVER_HOST to a host name.") from error
    except httpx.RequestError as error:
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if answer.status_code in (401, 403):
        raise ServerError(
            f"{base} refuses this key ({answer.status_code}): set the same HANABI_API_KEY in both terminals."
        )
    if not answer.is_success:
        return f"it answers {answer.status_code}: {answer.text[:200]}"
    try:
        health = answer.json()
    except (ValueError, RecursionError):
        health = None
    if not isinstance(health, dict) or "instance_id" not in health:
        return f"what answers there is no rollout server: {answer.text[:80]!r}"
    return health
