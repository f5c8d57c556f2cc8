"""Messages between client and rollout server: requests for games, replies or scores, and answers.

Both sides use these structs, and derive the games of a request by the same rule. An unknown field
is rejected in a request and ignored in an answer; no value may nest deeper than its type allows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup, Task
from hanabi_grpo.errors import GameParameterError, SettingsError, shown
from hanabi_grpo.rollout.seeds import SEED_LIMIT
from hanabi_grpo.rollout.wire import TokenId
from hanabi_grpo.settings.refs import AdapterRef, ScriptRef, SeatRef, UrlRef, parse_seat
from hanabi_grpo.settings.teachers import SeatTeacher
from hanabi_grpo.types import MAX_PLAYERS, Episode, task_name

MAX_TASKS = 16384
MAX_GAMES = 32768
"""Total games of all tasks in a request."""
MAX_TEMPERATURE = 2.0
"""Highest sampling temperature that vLLM accepts."""
MAX_TEXT = 64 << 10
"""Characters of one system message or prompt."""
MAX_TURNS = 512
"""Past turns of a conversation."""
MAX_SCORED = 8192
"""Prompts of one request for scores."""
MAX_REPLIES = 64
"""Replies to one of these prompts."""
MAX_SCORES = 65536
"""Total replies to all prompts of a request for scores."""
MAX_REPLY_IDS = 65536
"""Token ids of one past reply; the model's own limit is far lower."""
MAX_PROBED = 16
"""Token sequences of one probe."""
MAX_PROBED_IDS = 256
"""Token ids of one of these sequences."""
SPLIT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z"
"""Names of splits, which are also called suites."""
_MAX_CONFIG_FIELDS = 32
_MAX_CONFIG_NAME = 100
_MAX_SEAT = 80
_MAX_TOKENS = 2**31 - 1
_MAX_SEED = SEED_LIMIT - 1

_ConfigName = Annotated[str, Meta(max_length=_MAX_CONFIG_NAME)]
_ConfigValue = str | int | float | bool | None
_Config = Annotated[dict[_ConfigName, _ConfigValue], Meta(max_length=_MAX_CONFIG_FIELDS)]
_Seat = Annotated[str, Meta(max_length=_MAX_SEAT)]
_Seats = Annotated[tuple[_Seat, ...], Meta(min_length=1, max_length=MAX_PLAYERS)]
_Teachers = Annotated[tuple[SeatTeacher | None, ...], Meta(max_length=MAX_PLAYERS)]
_Text = Annotated[str, Meta(max_length=MAX_TEXT)]
_MaxTokens = Annotated[int, Meta(ge=1, le=_MAX_TOKENS)]
_Temperature = Annotated[float, Meta(ge=0.0, le=MAX_TEMPERATURE)]
_TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
_TopK = Annotated[int, Meta(ge=0, le=_MAX_TOKENS)]
_Seed = Annotated[int, Meta(ge=0, le=_MAX_SEED)]


ProbedIds = Annotated[
    list[Annotated[list[TokenId], Meta(min_length=2, max_length=MAX_PROBED_IDS)]],
    Meta(min_length=1, max_length=MAX_PROBED),
]
"""Token sequences of one probe; each is scored from its second id on."""


class TaskRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One task to be played."""

    env: Annotated[str, Meta(max_length=64)] = "hanabi"
    """Name of the environment, see `envs.registry`."""
    env_config: _Config
    """Fields of the environment's Config."""
    suite: Annotated[str, Meta(pattern=SPLIT_PATTERN)]
    """Split that the task is drawn from."""
    seed: _Seed
    """Number of the task in its split."""
    seats: _Seats | None = None
    """The policy of each seat, see `settings.refs`, e.g. ("player_0@7", "iggi").

    None: the seats of the request.
    """


class RolloutRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks, each to be played `num_games` times."""

    tasks: Annotated[tuple[TaskRequest, ...], Meta(min_length=1, max_length=MAX_TASKS)]
    num_games: Annotated[int, Meta(ge=1, le=MAX_GAMES)]
    """Games of each task."""
    max_tokens: _MaxTokens
    """Longest reply, in tokens."""
    temperature: _Temperature
    top_p: _TopP = 1.0
    """See `token_filter`, also for `top_k`."""
    top_k: _TopK = 0
    sampling_seed: _Seed | None = None
    """Determines every sampled reply, see `rollout.seeds`; None: replies differ each time."""
    seats: _Seats | None = None
    """Default seats of the tasks; a task with fewer players uses the first ones."""
    teachers: _Teachers | None = None
    """The teacher of each seat (HANABI_TEACHER), None for none.

    A teacher labels the turns of the session's own adapters; partners in its seat are not taught. A
    task with fewer players uses the first ones. None: no seat has a teacher.
    """


class DroppedRow(Struct, frozen=True, kw_only=True):
    """A game that was dropped; `task` is its number in the request."""

    task: Annotated[int, Meta(ge=0)]
    game: Annotated[int, Meta(ge=0)]
    reason: Annotated[str, Meta(min_length=1)]
    is_late: bool = False
    """See `DroppedGame`, also for the next fields."""
    num_turns: Annotated[int, Meta(ge=0)] = 0
    rewards: Annotated[tuple[float, ...], Meta(max_length=MAX_PLAYERS)] = ()


class RolloutAnswer(Struct, frozen=True, kw_only=True):
    """The games of a request: one object per game, ordered by task and then by number."""

    episodes: tuple[Episode, ...]
    dropped: tuple[DroppedRow, ...]
    prompt_tokens: Annotated[int, Meta(ge=0)] = 0
    """Tokens of all prompts that the engine received.

    A growing conversation is counted again at each turn.
    """
    cached_tokens: Annotated[int, Meta(ge=0)] = 0
    """How many of the prompt tokens were in the engine's prefix cache."""


class EarlierTurn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One past turn of a conversation."""

    prompt: _Text
    """The player's message."""
    reply_ids: Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_REPLY_IDS)]
    follows_call: bool = False
    """Whether the message is the result of a tool that the previous reply called."""


class ReplyRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a reply depends on; the server keeps no state between requests."""

    seat: _Seat
    """The policy that replies: "base" or an adapter at a version, see `settings.refs`."""
    system: _Text
    """First message of the conversation; "" for none."""
    turns: Annotated[tuple[EarlierTurn, ...], Meta(max_length=MAX_TURNS)]
    """Past turns, oldest first."""
    fresh: bool = False
    """Whether the player remembers only some turns, see `agents.conversation`.

    If so, `turns` are all the turns that it remembers.
    """
    prompt: _Text
    """Message to reply to."""
    follows_call: bool = False
    """See `EarlierTurn`."""
    max_tokens: _MaxTokens
    temperature: _Temperature
    seed: _Seed | None = None
    """Determines the reply; None: replies differ each time."""


class ChatMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message in the format of OpenAI's API."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]


class ChatRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation as texts, in the format of OpenAI's API.

    It has at most one system message, then user and assistant messages in turn. Other fields of
    OpenAI's API, and other values of `top_logprobs`, `n` and `top_p`, are rejected as unsupported.
    """

    model: Annotated[str, Meta(max_length=512)]
    """An adapter at a version, "base", or the name of the base model."""
    messages: Annotated[tuple[ChatMessage, ...], Meta(min_length=1, max_length=2 * MAX_TURNS + 2)]
    max_tokens: _MaxTokens | None = None
    max_completion_tokens: _MaxTokens | None = None
    """The newer name of `max_tokens`; one of them is required."""
    temperature: _Temperature = 1.0
    seed: _Seed | None = None
    """Determines the reply; None: replies differ each time."""
    logprobs: bool = True
    """Ignored: the answer always has logprobs."""
    top_logprobs: Annotated[int, Meta(ge=0, le=0)] | None = None
    n: Annotated[int, Meta(ge=1, le=1)] = 1
    top_p: Annotated[float, Meta(ge=1.0, le=1.0)] = 1.0
    stream: bool = False
    """True: the answer is sent as server-sent events, with the whole reply in one event."""
    stream_options: dict[Literal["include_usage"], bool] | None = None
    """Ignored: the events always end with the usage."""


class ScoredPrompt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first message of a conversation, and possible replies to it."""

    system: _Text
    prompt: _Text
    replies: Annotated[tuple[_Text, ...], Meta(min_length=1, max_length=MAX_REPLIES)]


class ScoreRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replies whose probabilities are requested; nothing is sampled."""

    seat: _Seat
    """The policy: "base" or an adapter at a version, see `settings.refs`."""
    prompts: Annotated[tuple[ScoredPrompt, ...], Meta(min_length=1, max_length=MAX_SCORED)]


class ScoreAnswer(Struct, frozen=True, kw_only=True):
    """Log-probabilities of given replies."""

    logprobs: tuple[tuple[float, ...], ...]
    """For each prompt and reply, the log-probability of the reply with its end token, in nats."""
    version: int | None
    """Version of the adapter; None: the base model."""


class ProbedCopy(Struct, frozen=True, kw_only=True):
    """Scores of a probe's token sequences from one copy of a base model."""

    without: tuple[tuple[float, ...], ...]
    """For each sequence, the base model's log-probability of every id but the first, in nats."""
    under: tuple[tuple[float, ...], ...]
    """The same with the uploaded adapter."""


class ProbeAnswer(Struct, frozen=True, kw_only=True):
    """The effect of an adapter that was uploaded for a probe, see `training.adapter_probe`."""

    instance_id: str
    copies: tuple[ProbedCopy, ...]
    """One for each copy of the adapter's base model on the server."""


class ReplyAnswer(Struct, frozen=True, kw_only=True):
    """One sampled reply, see `types.Reply`."""

    text: str
    prompt_ids: tuple[TokenId, ...]
    reply_ids: tuple[TokenId, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each id in `reply_ids`, in nats."""
    version: int | None
    """Version of the adapter; None: the base model."""
    out_of_tokens: bool
    """True when there is no reply because the conversation would exceed its token budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTask:
    """One task, the policies in its seats, and the numbers of its games."""

    task: Task[Any]
    refs: tuple[SeatRef, ...]
    """The policy of each seat."""
    games: range
    """Numbers of the games within the task's group."""
    teachers: tuple[SeatTeacher | None, ...] = ()
    """The teacher of each seat, None for none; empty: no seat has a teacher."""

    @property
    def seats(self) -> tuple[str, ...]:
        """The policy of each seat in answers and records, e.g. ("player_0@7", "iggi")."""
        return tuple(map(str, self.refs))

    @property
    def where(self) -> str:
        """Name in errors and logs, e.g. "hanabi train 42:17"."""
        return f"{self.task.environment.name} {task_name(self.task.split, self.task.seed)}"


def read_tasks(
    request: RolloutRequest, make_setup: Callable[..., Setup[Any]] = registry.setup
) -> list[RequestedTask]:
    """Return the tasks of a request, in order.

    If a request names a task twice, the game numbers continue: the second group of 16 has games 16
    to 31. The same task with different seats counts as a different task.

    Args:
        request: The request.
        make_setup: Builds a game from an environment's name and config; for requests of other
            programs `access.GameAccess.setup`, which does not open files that they name.

    Raises:
        SettingsError: A task cannot be played (the message has its number), or the request has too
            many games.
    """
    if len(request.tasks) * request.num_games > MAX_GAMES:
        raise SettingsError(
            f"{len(request.tasks)} tasks, num_games={request.num_games}: a request may have at "
            f"most {MAX_GAMES} games. Split it into several requests."
        )
    setups: dict[str, Setup[Any]] = {}
    """Setups by environment and config, which most tasks of a request share."""
    num_games: dict[tuple[Task[Any], tuple[SeatRef, ...]], int] = {}
    """Number of games requested so far, by task and seats."""
    requested = []
    for number, row in enumerate(request.tasks):
        try:
            key = repr((row.env, row.env_config))
            if key not in setups:
                setups[key] = make_setup(row.env, row.env_config)
            refs = _read_seats(row, request.seats, setups[key])
            teachers = _read_teachers(request.teachers, refs, setups[key])
        except (SettingsError, GameParameterError) as error:
            raise SettingsError(f"tasks.{number}: {error}") from error
        task = setups[key].task(row.suite, row.seed)
        first = num_games.get((task, refs), 0)
        last = first + request.num_games
        num_games[task, refs] = last
        requested_task = RequestedTask(
            task=task, refs=refs, games=range(first, last), teachers=teachers
        )
        requested.append(requested_task)
    return requested


def _read_seats(
    row: TaskRequest, default: tuple[str, ...] | None, setup: Setup[Any]
) -> tuple[SeatRef, ...]:
    """Return the policy of each seat of a task; `default` are the seats of the request."""
    num_players = setup.spec.num_players
    if row.seats is not None:
        seats = row.seats
        if len(seats) != num_players:
            raise SettingsError(f"seats={shown(seats)}: give a list of {num_players} seats.")
    elif default is None:
        raise SettingsError(
            f"{num_players} players, but seats is empty; give the policy of each seat."
        )
    elif len(default) < num_players:
        raise SettingsError(
            f"{num_players} players, but seats={shown(default)} has {len(default)}; give one "
            "per player."
        )
    else:
        seats = default[:num_players]
    refs = tuple(map(parse_seat, seats))
    for ref in refs:
        if isinstance(ref, ScriptRef):
            check_script(setup, ref.name)
    return refs


def _read_teachers(
    teachers: tuple[SeatTeacher | None, ...] | None, refs: tuple[SeatRef, ...], setup: Setup[Any]
) -> tuple[SeatTeacher | None, ...]:
    """Return the teacher of each seat of a task; () if no seat has one."""
    if teachers is None:
        return ()
    if len(teachers) < len(refs):
        raise SettingsError(
            f"{len(refs)} players, but teachers has {len(teachers)} entries; give one per player, "
            "null for none."
        )
    of_seats = []
    for ref, teacher in zip(refs, teachers, strict=False):
        if teacher is not None:
            _check_teacher(setup, teacher)
            if not 0 <= teacher.plays <= 1:
                raise SettingsError(f"teachers: plays={teacher.plays}: give a share from 0 to 1.")
        is_own = isinstance(ref, AdapterRef) and not ref.is_guest
        of_seats.append(teacher if is_own else None)
    return tuple(of_seats) if any(of_seats) else ()


def _check_teacher(setup: Setup[Any], teacher: SeatTeacher) -> None:
    policy = parse_seat(teacher.policy)
    if isinstance(policy, ScriptRef):
        check_script(setup, policy.name)
    elif isinstance(policy, UrlRef) or teacher.plays:
        raise SettingsError(
            f"teachers: {policy} with plays={teacher.plays:g}: a model teacher can only score "
            "replies; name base or an adapter at a version with plays=0, or a script."
        )


def check_script(setup: Setup[Any], name: str) -> None:
    """Raise a SettingsError for a script that the environment lacks, or that cannot play here."""
    if name not in setup.environment.policies:
        known = ", ".join(setup.environment.policies) or "none"
        raise SettingsError(
            f"{shown(name)}: the environment {setup.env} has no such script; its scripts: {known}."
        )
    setup.environment.check_policy(setup.config, name)


def playable_scripts(setup: Setup[Any]) -> list[str]:
    """Return the names of the environment's scripts that can play this game."""
    names = []
    for name in setup.environment.policies:
        try:
            setup.environment.check_policy(setup.config, name)
        except SettingsError:
            continue
        names.append(name)
    return names
