"""A request for one reply as it comes from a client: a seat, its conversation so far, and the next prompt."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from hanabi_grpo.errors import SettingsError, shown
from hanabi_grpo.server.engine import SamplingConfig
from hanabi_grpo.server.rollout_request import MAX_TEMPERATURE
from hanabi_grpo.server.strict_json import strict_json
from hanabi_grpo.settings.refs import BASE, check_seat, is_scripted, seat_adapter

MAX_TEXT_BYTES = 64 << 10
"""Of one system message or prompt, as UTF-8."""
MAX_TURNS = 512
MAX_REPLY_IDS = 65536
"""Of one earlier reply; the model's own limit is far below."""

_Text = Annotated[str, Field(max_length=MAX_TEXT_BYTES)]
_Id = Annotated[int, Field(ge=0, lt=2**31)]


class EarlierTurn(BaseModel):
    """One turn that was played: what the player was shown, and the ids that were sampled then."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: _Text
    reply_ids: Annotated[list[_Id], FailFast()] = Field(min_length=1, max_length=MAX_REPLY_IDS)


class ReplyRequest(BaseModel):
    """Everything that a reply depends on; the server remembers nothing between two of them."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    seat: Annotated[str, Field(max_length=80)]
    """Who replies: "base" or an adapter at a version, see `seating`."""
    system: _Text
    """First message of the conversation; "" for none."""
    turns: Annotated[list[EarlierTurn], FailFast()] = Field(max_length=MAX_TURNS)
    """Oldest first."""
    prompt: _Text
    max_tokens: int = Field(ge=1)
    temperature: float = Field(ge=0, le=MAX_TEMPERATURE)

    @property
    def adapters(self) -> dict[str, int]:
        """The adapter that must be held and its version; empty for the base model."""
        named = seat_adapter(self.seat)
        return dict([named]) if named else {}

    @property
    def sampling(self) -> SamplingConfig:
        """How the reply is to be sampled."""
        return SamplingConfig(max_tokens=self.max_tokens, temperature=self.temperature)


def parse_reply_request(body: bytes, *, vocab_size: int | None) -> ReplyRequest:
    """Read the body of a request for one reply.

    Args:
        body: JSON.
        vocab_size: Rows of the model's token embedding; None leaves the upper bound of ids unchecked.

    Raises:
        SettingsError: The body is no such request; says where.
    """
    try:
        wanted = ReplyRequest.model_validate(strict_json(body))
    except ValidationError as error:
        raise SettingsError(f"reply request: {_first_problem(error)}.") from None
    except ValueError as error:
        raise SettingsError(f"reply request: {error}.") from error
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


def _first_problem(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False)
    first = found[0]
    place = ".".join(str(part)[:40] for part in first["loc"]) or "all of it"
    value = "" if first["type"] == "missing" else f"={shown(first['input'])}"
    return f"{place}{value}: {first['msg']}" + (f"; and {len(found) - 1} more" if len(found) > 1 else "")
