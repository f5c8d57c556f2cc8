"""Requests to play games or to sample a reply, as they come from a client: checked before anything is sampled."""

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.messages import ReplyRequest, RolloutRequest
from hanabi_grpo.rollout.tasks import RequestedTask, read_tasks
from hanabi_grpo.runs.structs import read_struct
from hanabi_grpo.server.engine import SamplingConfig
from hanabi_grpo.settings.refs import BASE, check_seat, is_scripted


def parse_rollout_request(body: bytes) -> tuple[list[RequestedTask], SamplingConfig]:
    """Return the tasks of a rollout request, and how replies are sampled.

    Raises:
        SettingsError: The body is no such request, or a task cannot be played; says where.
    """
    try:
        wanted = read_struct(RolloutRequest, body)
    except ValueError as error:
        raise SettingsError(f"rollout request: {error}.") from None
    return read_tasks(wanted), SamplingConfig(max_tokens=wanted.max_tokens, temperature=wanted.temperature)


def parse_reply_request(body: bytes, *, vocab_size: int) -> ReplyRequest:
    """Return a request for one reply, of a model whose token embedding has `vocab_size` rows.

    Raises:
        SettingsError: The body is no such request; says where.
    """
    try:
        wanted = read_struct(ReplyRequest, body)
    except ValueError as error:
        raise SettingsError(f"reply request: {error}.") from None
    if is_scripted(check_seat(wanted.seat)):
        raise SettingsError(
            f"reply request: seat {wanted.seat!r} is a script, which needs no server; play it where the game is, or "
            f"ask for adapter@version (player_0@7) or {BASE}."
        )
    for number, turn in enumerate(wanted.turns):
        highest = max(turn.reply_ids)
        if highest >= vocab_size:
            raise SettingsError(
                f"reply request: turns.{number}.reply_ids holds {highest}; this model has ids 0 to {vocab_size - 1}. "
                "Send the ids that this server sampled."
            )
    return wanted
