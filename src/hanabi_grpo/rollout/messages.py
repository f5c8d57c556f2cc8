"""What a client sends to have games played or a reply sampled, and what the server answers.

Both sides use these structs. A field that is none of them is refused in a request and left alone in an answer; no value
may nest deeper than its type says.
"""

from typing import Annotated

from msgspec import Meta, Struct

from hanabi_grpo.runs.wire import EpisodeRow, TokenId
from hanabi_grpo.types import MAX_PLAYERS

MAX_TASKS = 16384
MAX_GAMES = 32768
"""Of all tasks of a request together."""
MAX_TEMPERATURE = 2.0
"""vLLM takes no more."""
MAX_TEXT = 64 << 10
"""Characters of one system message or prompt."""
MAX_TURNS = 512
MAX_SCORED = 8192
"""Prompts of one request."""
MAX_REPLIES = 64
"""Of one prompt."""
MAX_REPLY_IDS = 65536
"""Of one earlier reply; the model's own limit is far below."""

_Value = str | int | float | bool | None
_Config = Annotated[dict[Annotated[str, Meta(max_length=100)], _Value], Meta(max_length=32)]
_Seat = Annotated[str, Meta(max_length=80)]
_Seats = Annotated[tuple[_Seat, ...], Meta(min_length=1, max_length=MAX_PLAYERS)]
_Text = Annotated[str, Meta(max_length=MAX_TEXT)]
_MaxTokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Temperature = Annotated[float, Meta(ge=0.0, le=MAX_TEMPERATURE)]


class TaskRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One task that is to be played.

    Example:
        TaskRequest(env="hanabi", env_config={"preset": "laptop"}, suite="train", seed=17, seats=("player_0@7", "iggi"))
    """

    env: Annotated[str, Meta(max_length=64)] = "hanabi"
    """Name of the environment, see `envs.registry`."""
    env_config: _Config
    suite: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")]
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    seats: _Seats | None = None
    """Who sits in each seat (see `refs`); None: as the request says for all tasks."""


class RolloutRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks, each to be played `num_games` times."""

    tasks: Annotated[tuple[TaskRequest, ...], Meta(min_length=1, max_length=MAX_TASKS)]
    num_games: Annotated[int, Meta(ge=1, le=MAX_GAMES)]
    max_tokens: _MaxTokens
    """Per reply."""
    temperature: _Temperature
    seats: _Seats | None = None
    """Who sits where in tasks that do not say: a word names an adapter with the version that must be served. A task for
    fewer players takes the first of them. None: whatever is served now."""


class DroppedRow(Struct, frozen=True, kw_only=True):
    """A game that was given up; it has no episode."""

    task: Annotated[int, Meta(ge=0)]
    """Number in the request."""
    game: Annotated[int, Meta(ge=0)]
    reason: Annotated[str, Meta(min_length=1)]


class RolloutAnswer(Struct, frozen=True, kw_only=True):
    """One object per game: by task, then by number, played or dropped."""

    episodes: tuple[EpisodeRow, ...]
    dropped: tuple[DroppedRow, ...]


class EarlierTurn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn that was played: what the player was shown, and the ids that were sampled then."""

    prompt: _Text
    reply_ids: Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_REPLY_IDS)]


class ReplyRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a reply depends on; the server remembers nothing between two of them."""

    seat: _Seat
    """Who replies: "base" or an adapter at a version, see `refs`."""
    system: _Text
    """First message of the conversation; "" for none."""
    turns: Annotated[tuple[EarlierTurn, ...], Meta(max_length=MAX_TURNS)]
    """Oldest first."""
    prompt: _Text
    max_tokens: _MaxTokens
    temperature: _Temperature


class ScoredPrompt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first message of a conversation, and texts that might answer it."""

    system: _Text
    prompt: _Text
    replies: Annotated[tuple[_Text, ...], Meta(min_length=1, max_length=MAX_REPLIES)]


class ScoreRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replies whose chances are wanted: nothing is sampled."""

    seat: _Seat
    """Whose: "base" or an adapter at a version, see `refs`."""
    prompts: Annotated[tuple[ScoredPrompt, ...], Meta(min_length=1, max_length=MAX_SCORED)]


class ScoreAnswer(Struct, frozen=True, kw_only=True):
    """Per prompt and reply the log-probability of the whole reply, its end token included, in nats."""

    logprobs: tuple[tuple[float, ...], ...]
    version: int | None


class ReplyAnswer(Struct, frozen=True, kw_only=True):
    """One sampled reply, see `types.Reply`."""

    text: str
    prompt_ids: tuple[TokenId, ...]
    reply_ids: tuple[TokenId, ...]
    logprobs: tuple[float, ...]
    """Of each id in `reply_ids`, in nats."""
    version: int | None
    out_of_tokens: bool

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        if len(self.logprobs) != len(self.reply_ids):
            raise ValueError(f"{len(self.logprobs)} logprobs for {len(self.reply_ids)} reply_ids")
        if self.out_of_tokens == bool(self.reply_ids):
            raise ValueError(f"out_of_tokens={self.out_of_tokens}, but {len(self.reply_ids)} reply_ids")
