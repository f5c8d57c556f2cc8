"""The record of a game: replies, turns, trajectories and episodes.

An *episode* is one game by all players. A *trajectory* is what one player saw and said in it. Every
reply carries its token ids and logprobs, so nothing is ever encoded a second time.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MAX_PLAYERS = 8
"""Maximum number of players of an environment."""
SEEDS_APART = 2**32
"""Distance between the first tasks of two consecutive values of HANABI_TASK_SEED.

A run can have this many tasks before it reaches those of the next value."""


def task_name(suite: str, seed: int) -> str:
    """Return the name of a task in logs.

    Example:
        task_name("eval", 5) == "eval 5"
        task_name("train", 42 * SEEDS_APART) == "train 42:0"  # the first of HANABI_TASK_SEED=42
    """
    task_seed, number = divmod(seed, SEEDS_APART)
    if task_seed:
        return f"{suite} {task_seed}:{number}"
    return f"{suite} {number}"


def player_name(index: int) -> str:
    """Return the name of a seat, which is the same everywhere, e.g. "player_0".

    It names the environment's agent, the adapter, the LoRA, the folder and the prefix of metrics.
    """
    return f"player_{index}"


def player_names(num_players: int) -> tuple[str, ...]:
    """Return the names of all seats, in turn order."""
    return tuple(player_name(index) for index in range(num_players))


ALL_STARTS = "eval-all-starts"
"""Split that has each start of a game with few starts equally often.

See `Environment.num_starts`."""
SHARED_ADAPTER = "shared"
"""The one adapter of a run whose players share it."""
HUMAN = "human"
"""Policy spec of a person, in lineups and in the seats of recorded games."""


def adapter_of(player: str, adapters: Container[str]) -> str:
    """Return the adapter that a player uses: its own if there is one, else the shared one."""
    return player if player in adapters else SHARED_ADAPTER


REPLY_PARTS = frozenset({"illegal", "unparsable", "out_of_tokens", "length"})
"""Reward parts that belong to a reply, whatever the game; they go to the player who made it.

`length` appears only in old records."""

JUDGE_PART = "judge"
"""The reward part of HANABI_JUDGE."""
JUDGE_MEAN_PART = "judge_mean"
"""The reward part of a game without a score, with HANABI_JUDGE_FAILURE=mean."""
JUDGE_PARTS = frozenset({JUDGE_PART, JUDGE_MEAN_PART})
KL_PART = "kl"
"""The reward part of HANABI_KL_IN=reward, only in training data, see `training.kl`."""
TURN_PARTS = REPLY_PARTS | {"later_rounds", KL_PART}
"""`REPLY_PARTS`, and parts that already include a turn's later value (see `envs.workflows`), or
that come from a reply's own tokens."""


class ReplyKind(StrEnum):
    """The outcome of a reply."""

    LEGAL = "legal"
    ILLEGAL = "illegal"
    """An action, but not one that the rules allow here."""
    UNPARSABLE = "unparsable"
    """No action could be read from the text."""


class CallError(StrEnum):
    """Why a tool call returned no result."""

    UNKNOWN_TOOL = "unknown_tool"
    BAD_CALL = "bad_call"
    """The call is not JSON, is not a single call, or has arguments that the tool refuses."""
    USED_UP = "used_up"
    """The tool's own limit is reached, see `envs.tools.Tool`."""
    TIMEOUT = "timeout"
    FAILED = "failed"
    """The tool raised."""
    OVER_LIMIT = "over_limit"
    """A call beyond the turn's limit, or one whose result would not fit into the player's
    conversation. It does not count as a call, but as a reply that names no action."""


class EpisodeStatus(StrEnum):
    """How an episode ended."""

    FINISHED = "finished"
    TRUNCATED_TURNS = "truncated_turns"
    TRUNCATED_TOKENS = "truncated_tokens"
    """A conversation would have outgrown the model's context."""

    @property
    def is_truncated(self) -> bool:
        """True if one of our limits, not the rules, ended the game."""
        return self in (EpisodeStatus.TRUNCATED_TURNS, EpisodeStatus.TRUNCATED_TOKENS)


MAX_WEIGHTED_REPLIES = 64
"""Maximum replies of a teacher that samples; if it has more, a turn has only the sampled one."""
CHANCES_TOLERANCE = 1e-6
"""How far the probabilities of a teacher's replies may sum from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedReply:
    """One of the replies that a teacher samples from."""

    action: str
    """The action, worded like `Turn.action`."""
    thought: str = ""
    """See `Lesson.thought`."""
    chance: float
    """Its probability, above 0."""
    reply_ids: tuple[int, ...] = ()
    """See `Lesson.reply_ids`."""

    @property
    def text(self) -> str:
        """The whole reply."""
        return self.thought + self.action


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """The label that a player's teacher gives a turn.

    A script gives its own reply, and if it samples, the probability of each reply; a model gives
    its logprobs of the player's reply.

    Example:
        Lesson(action="Play 0", reply_ids=(14, 22, 2))
        Lesson(action="Play 0", thought="<think> fits </think> ", reply_ids=(4, 30, 5, 14, 22, 2))
        Lesson(logprobs=(-0.7, -0.01, 0.0))
    """

    action: str = ""
    """The teacher's action in the same position, worded like `Turn.action`; "": not known."""
    thought: str = ""
    """What a teacher that thinks aloud writes before its action, with the think tags."""
    reply_ids: tuple[int, ...] = ()
    """Tokens of the player's reply with this thought and action, including the token that ends a
    reply."""
    plays: bool = False
    """Whether the teacher's reply replaced the player's (HANABI_TEACHER_PLAYS).

    Such a turn has no reply ids, because none were sampled: the teacher's reply is the end of the
    turn's prompt ids, and the conversation continues with it."""
    logprobs: tuple[float, ...] = ()
    """The teacher's logprobs of the player's own reply ids, in nats; empty: not known."""
    replies: tuple[WeightedReply, ...] = ()
    """All replies that a script samples from, most likely first; their probabilities sum to 1.

    `action` is the sampled one. Empty: the script always replies `action`, or its probabilities are
    not known."""

    @property
    def text(self) -> str:
        """The teacher's whole reply."""
        return self.thought + self.action

    def action_chances(self) -> dict[str, float]:
        """Return the probability of each action; several replies may have one action."""
        if not self.replies:
            return {self.action: 1.0}
        chances: dict[str, float] = {}
        for reply in self.replies:
            chances[reply.action] = chances.get(reply.action, 0.0) + reply.chance
        return chances


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A player's call of a tool, and the message that the player got.

    Example:
        ToolCall(tool="calculator", argument="3 + 4 - 2", result="result 5")
    """

    tool: str
    """Name of the tool, as the player wrote it."""
    argument: str = ""
    result: str = ""
    """The message that the player got, word for word; "" if it got none."""
    error: CallError | None = None
    """None: the tool returned a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A policy's reply on its turn. Scripted policies fill only `text`."""

    text: str
    """The complete text, including thoughts."""
    prompt: str = ""
    """The text that the player was shown on this turn."""
    prompt_ids: tuple[int, ...] = ()
    """Tokens that this turn added to the player's private conversation before the reply."""
    reply_ids: tuple[int, ...] = ()
    """Tokens of the reply itself."""
    logprobs: tuple[float, ...] = ()
    """Logprobs of `reply_ids`, in nats, under the distribution that was sampled from."""
    version: int | None = None
    """Policy version (optimizer steps) of the adapter that sampled; None: base model or script."""
    fresh: bool = False
    """True if this turn is a separate conversation, see `EnvConfig.memory`."""
    out_of_tokens: bool = False
    """True if no reply was possible because the conversation would exceed its budget."""
    lesson: Lesson | None = None
    """Label of the player's teacher (HANABI_TEACHER); None: it has no teacher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One action of one player, as data, or a tool call before it.

    A player that calls tools has several of these in one step of the game: one per call, in order,
    and then the one with its action. Each has its own prompt and reply, so the tokens of a call are
    treated like those of any turn; calls have no rewards.
    """

    player: int
    step: int
    """Number of the game's step; players who act simultaneously share it."""
    prompt: str
    reply: str
    action: str
    """The action that was applied; if the reply was not legal, the action that replaced it."""
    kind: ReplyKind
    rewards: tuple[Mapping[str, float], ...]
    """Named reward parts of each player.

    Example: ({"score": 1.0, "illegal": -0.5}, {"score": 1.0}). A player's reward for a step is in
    that player's turn of the step, or in the step's last turn if the player has none."""
    prompt_ids: tuple[int, ...] = ()
    reply_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    version: int | None = None
    fresh: bool = False
    """See `Reply`; such a turn is a separate sequence in training."""
    lesson: Lesson | None = None
    """See `Reply`."""
    call: ToolCall | None = None
    """The tool call in the reply; None: the reply is not a call."""
    follows_call: bool = False
    """Whether the prompt is the result of the preceding call."""

    @property
    def is_call(self) -> bool:
        """Whether this is a tool call, which the game does not see, and not an action."""
        return self.call is not None and self.call.error is not CallError.OVER_LIMIT

    def reward(self, player: int) -> float:
        """Return a player's total reward in this turn."""
        return sum(self.rewards[player].values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One game by all players.

    Example:
        Episode(
            env="hanabi",
            preset="laptop",
            spec_hash="9f3c…",
            num_players=2,
            suite="train",
            seed=17,
            game=3,
            status=EpisodeStatus.FINISHED,
            result={"score": 3, "bombed": 0},
            turns=(Turn(...), ...),
        )
    """

    env: str
    preset: str
    spec_hash: str
    num_players: int
    suite: str
    seed: int
    """(suite, seed) identify the task."""
    game: int = 0
    """Number of this game within the task's group."""
    status: EpisodeStatus
    result: Mapping[str, float]
    """Results of the game by name, see `envs.base.Game.result`."""
    turns: tuple[Turn, ...] = field(default=())
    seats: tuple[str, ...] = ()
    """Policy spec of each seat, see `settings.refs`; empty in records without it."""
    instance_id: str = ""
    """The server process that played it."""

    @property
    def moves(self) -> tuple[Turn, ...]:
        """The turns with an action, without tool calls."""
        return tuple(turn for turn in self.turns if not turn.is_call)

    def trajectory(self, player: int) -> tuple[Turn, ...]:
        """Return the turns of one player, oldest first, including tool calls.

        It is empty if the game ended before the player's first turn.
        """
        return tuple(turn for turn in self.turns if turn.player == player)

    def reward(self, player: int, *parts: str) -> float:
        """Return one player's undiscounted return, or the sum of only the named parts."""
        if not parts:
            return sum(turn.reward(player) for turn in self.turns)
        total = 0.0
        for turn in self.turns:
            rewards = turn.rewards[player]
            for part in parts:
                total += rewards.get(part, 0.0)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedGame:
    """A game that was dropped.

    It does not enter any baseline, loss or metric, except the counts of dropped games.

    Example:
        DroppedGame(
            suite="train",
            seed=17,
            game=3,
            reason="NonFiniteError: player_0, turn 2: logprob 0 …",
        )
    """

    suite: str
    seed: int
    game: int
    """Number within the task's group, as in `Episode`."""
    reason: str
    """Class and text of the error."""
    is_late: bool = False
    """Whether HANABI_GAME_TIMEOUT ended it."""
    num_turns: int = 0
    """Number of turns until then."""
    rewards: tuple[float, ...] = ()
    """Rewards of each player until then; empty: not known."""


def is_trained(episode: Episode, player: int, trained: Sequence[str]) -> bool:
    """Tell whether a player's turns contribute to the loss.

    They do if the adapter that is trained played the seat, at this version.

    Args:
        episode: The game; one that does not name its seats is self-play.
        player: Number of the seat.
        trained: Policy spec of each seat's trained adapter at this version, see
            `settings.partners`.
    """
    if not episode.seats:
        return True
    return episode.seats[player] == trained[player]
