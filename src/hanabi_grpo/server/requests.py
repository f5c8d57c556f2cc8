"""Requests to play games or to sample a reply, as they come from a client: checked before anything is sampled."""

from hanabi_grpo.errors import SettingsError, shown
from hanabi_grpo.rollout.messages import MAX_TEXT_BYTES, ReplyRequest, RolloutRequest
from hanabi_grpo.rollout.tasks import RequestedTask, read_tasks
from hanabi_grpo.runs.structs import read_struct
from hanabi_grpo.server.engine import SamplingConfig
from hanabi_grpo.settings.refs import BASE, check_seat, is_frozen, is_scripted, seat_adapter

MAX_REWARD = 1e6
"""Largest reward weight: sums of it stay far from infinity."""


def is_session_adapter(seat: str) -> bool:
    """Tell whether an adapter of the session sits there: its name says nothing of whose weights it is."""
    return seat_adapter(seat) is not None and not is_frozen(seat)


def parse_rollout_request(body: bytes) -> tuple[list[RequestedTask], SamplingConfig]:
    """Read the body of a rollout request.

    Returns:
        (the tasks, how replies are sampled)

    Raises:
        SettingsError: The body is no such request, or a task cannot be played; says where.
    """
    try:
        wanted = read_struct(RolloutRequest, body)
        for number, asked in enumerate(wanted.tasks):
            for name, weight in asked.env_config.items():
                if name.startswith("reward_") and isinstance(weight, int | float) and abs(weight) > MAX_REWARD:
                    raise ValueError(f"tasks.{number}.env_config.{name[:40]}={shown(weight)}: allowed are -1e6 to 1e6")
    except ValueError as error:
        raise SettingsError(f"rollout request: {error}.") from None
    return read_tasks(wanted), SamplingConfig(max_tokens=wanted.max_tokens, temperature=wanted.temperature)


def parse_reply_request(body: bytes, *, vocab_size: int | None) -> ReplyRequest:
    """Read the body of a request for one reply.

    Args:
        body: JSON.
        vocab_size: Rows of the model's token embedding; None leaves the upper bound of ids unchecked.

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
    texts = {"system": wanted.system, "prompt": wanted.prompt}
    for number, turn in enumerate(wanted.turns):
        texts[f"turns.{number}.prompt"] = turn.prompt
        highest = max(turn.reply_ids)
        if vocab_size is not None and highest >= vocab_size:
            raise SettingsError(
                f"reply request: turns.{number}.reply_ids holds {highest}; this model has ids 0 to {vocab_size - 1}. "
                "Send the ids that this server sampled."
            )
    for name, text in texts.items():
        size = len(text.encode("utf-8"))
        if size > MAX_TEXT_BYTES:
            raise SettingsError(f"reply request: {name}: {size} bytes; allowed are at most {MAX_TEXT_BYTES}.")
    return wanted
