"""What a client sends to have games played or a reply sampled, and what the server answers.

Both sides use these structs, and read the games that a request asks for by the same rule. A field
that is none of them is refused in a request and left alone in an answer; no value may nest deeper
than its type says."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hanabi_grpo.envs.base import Setup, Task
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.errors import GameParameterError, SettingsError, shown
from hanabi_grpo.rollout.loop import check_script
from hanabi_grpo.rollout.wire import TokenId
from hanabi_grpo.settings.refs import check_seat, is_scripted
from hanabi_grpo.types import MAX_PLAYERS, Episode, task_name

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
    """One task that is to be played."""

    env: Annotated[str, Meta(max_length=64)] = "hanabi"
    """Name of the environment, see `envs.registry`."""
    env_config: _Config
    suite: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")]
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    seats: _Seats | None = None
    """Who sits in each seat: a script, "base" or an adapter with its version, see `refs`; None: as
    the request says.
    """


class RolloutRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks, each to be played `num_games` times."""

    tasks: Annotated[tuple[TaskRequest, ...], Meta(min_length=1, max_length=MAX_TASKS)]
    num_games: Annotated[int, Meta(ge=1, le=MAX_GAMES)]
    max_tokens: _MaxTokens
    """Per reply."""
    temperature: _Temperature
    seats: _Seats | None = None
    """Who sits where in tasks that do not say; a task for fewer players takes the first of them."""


class DroppedRow(Struct, frozen=True, kw_only=True):
    """A game that was dropped; `task` is its number in the request."""

    task: Annotated[int, Meta(ge=0)]
    game: Annotated[int, Meta(ge=0)]
    reason: Annotated[str, Meta(min_length=1)]


class RolloutAnswer(Struct, frozen=True, kw_only=True):
    """One object per game: by task, then by number, played or dropped."""

    episodes: tuple[Episode, ...]
    dropped: tuple[DroppedRow, ...]
    prompt_tokens: Annotated[int, Meta(ge=0)] = 0
    """Of all prompts that the engine was given; a conversation that grows is given anew at each
    turn.
    """
    cached_tokens: Annotated[int, Meta(ge=0)] = 0
    """Those of them that it had in its prefix cache."""


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
    fresh: bool = False
    """True: the conversation is one of a window, see `rollout.chat`; `turns` are all that it
    holds.
    """
    prompt: _Text
    max_tokens: _MaxTokens
    temperature: _Temperature


class ChatMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message as OpenAI's API has it."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]


class ChatRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation as texts, in OpenAI's words: at most one system message, then user and
    assistant in turn.

    Other fields of OpenAI's, and other values of `top_logprobs`, `n` and `top_p`, ask for what is
    not given here: they are refused."""

    model: Annotated[str, Meta(max_length=512)]
    """An adapter at a version, "base", or the name of the base model."""
    messages: Annotated[tuple[ChatMessage, ...], Meta(min_length=1, max_length=2 * MAX_TURNS + 2)]
    max_tokens: _MaxTokens | None = None
    max_completion_tokens: _MaxTokens | None = None
    """The newer name of `max_tokens`; one of them is needed."""
    temperature: _Temperature = 1.0
    logprobs: bool = True
    """Whatever it says, the answer has them."""
    top_logprobs: Annotated[int, Meta(ge=0, le=0)] | None = None
    n: Annotated[int, Meta(ge=1, le=1)] = 1
    top_p: Annotated[float, Meta(ge=1.0, le=1.0)] = 1.0
    stream: bool = False
    """True: the answer comes as events, the whole reply in one of them."""
    stream_options: dict[Literal["include_usage"], bool] | None = None
    """Whatever it says, the events end with the usage."""


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
    """Per prompt and reply the log-probability of the whole reply, its end token included, in
    nats.
    """

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
            raise ValueError(
                f"out_of_tokens={self.out_of_tokens}, but {len(self.reply_ids)} reply_ids"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTask:
    """One task, who plays it and the numbers of its games."""

    task: Task[Any]
    seats: tuple[str, ...]
    """Who sits in each seat."""
    games: range

    @property
    def where(self) -> str:
        """What errors and logs call it, e.g. "hanabi train 42:17"."""
        return f"{self.task.environment.name} {task_name(self.task.split, self.task.seed)}"


def read_tasks(request: RolloutRequest) -> list[RequestedTask]:
    """Return the tasks of a request, in order.

    A task that a request names twice goes on counting: its second group of 16 holds games 16 to 31.
    The same task with other seats is a task of its own.

    Raises: SettingsError: A task that cannot be played, by its number; or more games than a request
        may ask for.
    """
    if len(request.tasks) * request.num_games > MAX_GAMES:
        raise SettingsError(
            f"{len(request.tasks)} tasks, num_games={request.num_games}: a request may ask for "
            f"{MAX_GAMES} games. "
            "Ask for fewer at once."
        )
    setups: dict[str, Setup[Any]] = {}
    seen: dict[tuple[Task[Any], tuple[str, ...]], int] = {}
    tasks = []
    for number, task in enumerate(request.tasks):
        try:
            # Most tasks of a request have the same.
            given = repr((task.env, task.env_config))
            if given not in setups:
                setups[given] = setup(task.env, task.env_config)
            seats = _seats(task, request.seats, setups[given])
        except (SettingsError, GameParameterError) as error:
            raise SettingsError(f"tasks.{number}: {error}") from error
        start_of = setups[given].task(task.suite, task.seed)
        first = seen.get((start_of, seats), 0)
        seen[start_of, seats] = first + request.num_games
        tasks.append(
            RequestedTask(task=start_of, seats=seats, games=range(first, first + request.num_games))
        )
    return tasks


def _seats(
    task: TaskRequest, default: tuple[str, ...] | None, found: Setup[Any]
) -> tuple[str, ...]:
    num_players = found.spec.num_players
    if task.seats is None:
        if default is None:
            raise SettingsError(
                f"{num_players} players, and seats names nobody; say who sits in each."
            )
        if len(default) < num_players:
            raise SettingsError(
                f"{num_players} players, but seats={shown(default)} names {len(default)}; name all."
            )
        words = default[:num_players]
    else:
        words = task.seats
        if len(words) != num_players:
            raise SettingsError(f"seats={shown(words)}: give a list of {num_players} seats.")
    for word in words:
        if is_scripted(check_seat(word)):
            check_script(found, word)
    return tuple(words)
