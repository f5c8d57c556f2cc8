"""A rollout request as it comes from a client: every field checked before a game is set up."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from hanabi_grpo.errors import SettingsError, shown
from hanabi_grpo.server.engine import SamplingConfig
from hanabi_grpo.server.strict_json import strict_json
from hanabi_grpo.settings.refs import is_frozen, seat_adapter
from hanabi_grpo.types import MAX_PLAYERS

MAX_ROWS = 65536
MAX_DEALS = 16384
MAX_TEMPERATURE = 2.0
"""vLLM takes no more."""
MAX_REWARD = 1e6
"""Largest reward weight: sums of it stay far from infinity."""
_DEFAULT_MAX_TOKENS = 512

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "n": (None, 1),
    "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "stop": (None, []),
    "seed": (None,),
}
"""Fields of ms-swift's RequestConfig that change what is sampled, with the values that do not."""

_AdapterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,64}@[0-9]{1,12}$")]


class _Deal(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    env_config: dict[Annotated[str, Field(max_length=100)], Any] = Field(max_length=32)
    suite: str = Field(min_length=1, max_length=64)
    seed: int = Field(ge=0, lt=2**63)
    player: int = Field(ge=0, le=4)
    seats: list[Annotated[str, Field(max_length=80)]] | None = Field(default=None, max_length=MAX_PLAYERS)


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    data_dict: _Deal


class _RequestConfig(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=MAX_TEMPERATURE)


class RolloutRequest(BaseModel):
    """ms-swift's rollout request, and our `adapters`: per player "adapter@version" or null for the base model."""

    model_config = ConfigDict(extra="ignore", strict=True)

    infer_requests: Annotated[list[_Row], FailFast()] = Field(min_length=1, max_length=MAX_ROWS)
    """The first bad row is reported; an error for each of a million would take longer than playing them."""
    request_config: _RequestConfig | None = None
    adapters: Annotated[dict[Annotated[str, Field(pattern="^player_[0-4]$")], _AdapterName | None], Field()] | None = (
        None
    )

    @property
    def names_session_adapters(self) -> bool:
        """True when a seat, of one row or of all, is an adapter that a trainer pushed."""
        words = {seat for row in self.infer_requests for seat in row.data_dict.seats or ()}
        words.update(word for word in (self.adapters or {}).values() if word is not None)
        return any(is_session_adapter(word) for word in words)

    def sampling(self, max_model_len: int) -> SamplingConfig:
        """Return how replies are to be sampled.

        Args:
            max_model_len: Tokens that a conversation of this server can hold.

        Raises:
            SettingsError: A limit that leaves no room for a prompt, or a field that would change the distribution.
        """
        given = self.request_config or _RequestConfig()
        for name, neutral in _NEUTRAL.items():
            value = (given.model_extra or {}).get(name)
            if value not in neutral or isinstance(value, bool):
                raise SettingsError(
                    f"request_config.{name}={shown(value)}: only {neutral[-1]!r} keeps logprobs those of the policy; "
                    "leave it out."
                )
        max_tokens = _DEFAULT_MAX_TOKENS if given.max_tokens is None else given.max_tokens
        if max_tokens >= max_model_len:
            raise SettingsError(
                f"MAX_COMPLETION_LENGTH={max_tokens}: a reply must be shorter than the conversation that this "
                f"server can hold, HANABI_MAX_MODEL_LEN={max_model_len}."
            )
        return SamplingConfig(
            max_tokens=max_tokens, temperature=1.0 if given.temperature is None else given.temperature
        )


def is_session_adapter(seat: str) -> bool:
    """Tell whether an adapter of the session sits there: its name says nothing of whose weights it is."""
    return seat_adapter(seat) is not None and not is_frozen(seat)


def parse_rollout_request(body: bytes) -> tuple[RolloutRequest, list[dict[str, Any]]]:
    """Read the body of a rollout request.

    Returns:
        (the checked request, its rows as they were sent, with whatever else they hold)

    Raises:
        SettingsError: The body is no such request; says where.
    """
    try:
        value = strict_json(body)
    except ValueError as error:
        raise SettingsError(f"rollout request: {error}.") from error
    try:
        wanted = RolloutRequest.model_validate(value)
    except ValidationError as error:
        raise SettingsError(f"rollout request: {_problems(error)}.") from None
    deals = set()
    for position, row in enumerate(wanted.infer_requests):
        deals.add((row.data_dict.suite, row.data_dict.seed, tuple(row.data_dict.seats or ())))
        for name, weight in row.data_dict.env_config.items():
            if name.startswith("reward_") and isinstance(weight, int | float) and abs(weight) > MAX_REWARD:
                raise SettingsError(
                    f"request row {position}: env_config.{name[:40]}={weight}: allowed are -1e6 to 1e6."
                )
    if len(deals) > MAX_DEALS:
        raise SettingsError(f"rollout request: {len(deals)} deals; allowed are {MAX_DEALS}. Ask for fewer at once.")
    return wanted, value["infer_requests"]


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False)
    shown = [_problem(dict(item)) for item in found[:3]]
    return "; ".join(shown) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")


def _problem(item: dict[str, Any]) -> str:
    where = [str(part)[:40] for part in item["loc"]]
    if where[:1] == ["infer_requests"] and len(where) > 1:
        # The words that the scheduler uses of a row.
        place = f"request row {where[1]}: {'.'.join(where[2:]) or 'all of it'}"
    else:
        place = ".".join(where) or "all of it"
    value = "" if item["type"] == "missing" else f"={shown(item['input'])}"
    return f"{place}{value}: {item['msg']}"
