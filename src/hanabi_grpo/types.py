"""What a game leaves behind: replies, turns, trajectories and episodes.

An *episode* is one game by all players. A *trajectory* is what one player saw and said in it. Token
ids and logprobs travel with every reply, so that nothing is ever encoded a second time.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MAX_PLAYERS = 8
"""Players that an environment can have at most."""
SEEDS_APART = 2**32
"""Distance of the first fresh tasks of two values of HANABI_TASK_SEED.

So many tasks a run can have before it meets those of the next value."""


def task_name(suite: str, seed: int) -> str:
    """Return what logs call a task.

    Example:
        task_name("eval", 5) == "eval 5"
        task_name("train", 42 * SEEDS_APART) == "train 42:0"  # the first of HANABI_TASK_SEED=42
    """
    task_seed, number = divmod(seed, SEEDS_APART)
    if task_seed:
        return f"{suite} {task_seed}:{number}"
    return f"{suite} {number}"


def player_name(index: int) -> str:
    """Return the one name that a seat has everywhere, e.g. "player_0".

    It names the env's agent, the adapter, the LoRA, the folder and the prefix of metrics.
    """
    return f"player_{index}"


def player_names(num_players: int) -> tuple[str, ...]:
    """Return the names of all seats, in turn order."""
    return tuple(player_name(index) for index in range(num_players))


ALL_STARTS = "eval-all-starts"
"""Split in which a game with few starts has each of them equally often.

See `Environment.num_starts`."""
SHARED_ADAPTER = "shared"
"""The one adapter of a run whose players share it."""
HUMAN = "human"
"""Policy spec of a person, in lineups and in the seats of recorded games."""


def adapter_of(player: str, adapters: Container[str]) -> str:
    """Return the adapter that a player uses: its own where there is one, else the shared one."""
    return player if player in adapters else SHARED_ADAPTER


REPLY_PARTS = frozenset({"illegal", "unparsable", "out_of_tokens", "length"})
"""Reward parts that belong to a reply, whatever the game; they go to the player who made it.

`length` is only found in old records."""

JUDGE_PART = "judge"
"""The reward part of HANABI_JUDGE."""
JUDGE_MEAN_PART = "judge_mean"
"""What takes its place in a game without a score, with HANABI_JUDGE_FAILURE=mean."""
JUDGE_PARTS = frozenset({JUDGE_PART, JUDGE_MEAN_PART})
KL_PART = "kl"
"""The reward part of HANABI_KL_IN=reward, only in what is learned from, see `training.kl`."""
TURN_PARTS = REPLY_PARTS | {"later_rounds", KL_PART}
"""`REPLY_PARTS`, and parts that already count a turn's later worth (see `envs.workflows`), or that
are of a reply's own tokens."""


class ReplyKind(StrEnum):
    """What became of a reply."""

    LEGAL = "legal"
    ILLEGAL = "illegal"
    """An action, but not one that the rules allow here."""
    UNPARSABLE = "unparsable"
    """No action could be read from the text."""


class CallError(StrEnum):
    """Why a call of a tool brought no result."""

    UNKNOWN_TOOL = "unknown_tool"
    BAD_CALL = "bad_call"
    """The call is no JSON, is not one call alone, or has arguments that the tool does not take."""
    USED_UP = "used_up"
    """The tool's own limit is reached, see `envs.tools.Tool`."""
    TIMEOUT = "timeout"
    FAILED = "failed"
    """The tool raised."""
    OVER_LIMIT = "over_limit"
    """A call after the last one that the turn allows, or whose result would not fit the player's
    conversation. It is no call, but a reply that names no action."""


class EpisodeStatus(StrEnum):
    """How an episode ended."""

    FINISHED = "finished"
    TRUNCATED_TURNS = "truncated_turns"
    TRUNCATED_TOKENS = "truncated_tokens"
    """A conversation would have outgrown the model's context."""

    @property
    def is_truncated(self) -> bool:
        """True when a limit of ours, not the rules, ended the game."""
        return self in (EpisodeStatus.TRUNCATED_TURNS, EpisodeStatus.TRUNCATED_TOKENS)


MAX_WEIGHTED_REPLIES = 64
"""Replies of a teacher that draws; of one that draws among more, a turn has the drawn one."""
CHANCES_TOLERANCE = 1e-6
"""How far from 1 the chances of a teacher's replies may be together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedReply:
    """One of the replies among which a teacher draws."""

    action: str
    """What it would do, worded as `Turn.action`."""
    chance: float
    """How likely it is, above 0."""
    reply_ids: tuple[int, ...] = ()
    """See `Lesson.reply_ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a turn brings beside its player's reply: what the player's teacher says to it.

    A script says what it would do, and where it draws, how likely each reply is; a model how likely
    it finds what the player said.

    Example:
        Lesson(action="Play 0", reply_ids=(14, 22, 2))
        Lesson(logprobs=(-0.7, -0.01, 0.0))
    """

    action: str = ""
    """What the teacher would do in the same position, worded as `Turn.action`; "": not known."""
    reply_ids: tuple[int, ...] = ()
    """The player's reply with this action as tokens, the one that ends a reply among them."""
    plays: bool = False
    """Whether the teacher's reply was said in the place of the player's (HANABI_TEACHER_PLAYS).

    Such a turn has no reply ids, since nobody sampled any: what was said is the end of its prompt
    ids, as the conversation goes on with it."""
    logprobs: tuple[float, ...] = ()
    """Of each of the player's own reply ids, in nats, by the teacher; empty: not known."""
    replies: tuple[WeightedReply, ...] = ()
    """Where a script draws, all that it may say, the likeliest first; together their chances are 1.

    `action` is the one that it has drawn. Empty: it says `action` for sure, or not how likely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A player's call of a tool, and what the player was told.

    Example:
        ToolCall(tool="calculator", argument="3 + 4 - 2", result="result 5")
    """

    tool: str
    """Name of the tool, as the player wrote it."""
    argument: str = ""
    result: str = ""
    """The message that the player got, word for word; "" where it got none."""
    error: CallError | None = None
    """None: the tool has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a policy answers on its turn. Scripted policies fill only `text`."""

    text: str
    """All that was written, thoughts among it."""
    prompt: str = ""
    """The text that the player was shown on this turn."""
    prompt_ids: tuple[int, ...] = ()
    """Tokens that this turn added to the player's private conversation before the reply."""
    reply_ids: tuple[int, ...] = ()
    """Tokens of the reply itself."""
    logprobs: tuple[float, ...] = ()
    """Of each id in `reply_ids`, in nats, under the distribution that was sampled from."""
    version: int | None = None
    """Policy version (optimizer steps) of the adapter that sampled; None: base model or script."""
    fresh: bool = False
    """True when this turn is a conversation of its own, see `EnvConfig.memory`."""
    out_of_tokens: bool = False
    """True when no reply could be made because the conversation would outgrow its budget."""
    lesson: Lesson | None = None
    """Of the player's teacher (HANABI_TEACHER); None: nobody teaches it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One action of one player, as data, or a call of a tool before it.

    A player that calls tools has several of these in one step of the game: one per call, in order,
    and last the one with its action. Each has its own prompt and reply, so that what is true of the
    tokens of a turn is true of those of a call; no call has rewards.
    """

    player: int
    step: int
    """Number of the game's step; players who answer at the same time share it."""
    prompt: str
    reply: str
    action: str
    """What was applied; it stands in place of a reply that was not legal."""
    kind: ReplyKind
    rewards: tuple[Mapping[str, float], ...]
    """Per player of the game its named reward parts.

    Example: ({"score": 1.0, "illegal": -0.5}, {"score": 1.0}). What a step pays a player stands in
    that player's turn of the step, or in the step's last turn when it has none."""
    prompt_ids: tuple[int, ...] = ()
    reply_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    version: int | None = None
    fresh: bool = False
    """See `Reply`; such a turn is a sequence of its own in training."""
    lesson: Lesson | None = None
    """See `Reply`."""
    call: ToolCall | None = None
    """The call of a tool that the reply is; None: the reply is none."""
    follows_call: bool = False
    """Whether the prompt is the result of the call before it."""

    @property
    def is_call(self) -> bool:
        """Whether this is a call of a tool, which the game sees nothing of, and no action."""
        return self.call is not None and self.call.error is not CallError.OVER_LIMIT

    def reward(self, player: int) -> float:
        """Return what a player gets in this turn."""
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
    """(suite, seed) name the task."""
    game: int = 0
    """Number of this game within the task's group."""
    status: EpisodeStatus
    result: Mapping[str, float]
    """Figures of the game by name, see `envs.base.Game.result`."""
    turns: tuple[Turn, ...] = field(default=())
    seats: tuple[str, ...] = ()
    """Per seat the reference of its policy, see `settings.refs`; empty in records without it."""
    instance_id: str = ""
    """Which server process played it."""

    @property
    def moves(self) -> tuple[Turn, ...]:
        """The turns with an action, without calls of tools."""
        return tuple(turn for turn in self.turns if not turn.is_call)

    def trajectory(self, player: int) -> tuple[Turn, ...]:
        """Return the turns of one player, oldest first, calls of tools among them.

        It is empty when the game ended before the player's first turn.
        """
        return tuple(turn for turn in self.turns if turn.player == player)

    def reward(self, player: int, *parts: str) -> float:
        """Return one player's undiscounted return, or the sum of the named parts only."""
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

    Nothing of it enters a baseline, a loss or a metric, except for the counts of dropped games.

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
    """Whether it was ended by HANABI_GAME_TIMEOUT."""
    num_turns: int = 0
    """Turns that were taken by then."""
    rewards: tuple[float, ...] = ()
    """What each player had got by then; empty: nothing is known."""


def is_trained(episode: Episode, player: int, trained: Sequence[str]) -> bool:
    """Tell whether a player's turns carry loss.

    They do when the adapter that is trained played the seat, at this version.

    Args:
        episode: The game; one that does not name its seats is self-play.
        player: Number of the seat.
        trained: Per seat the reference of the trained adapter at this version, see
            `settings.partners`.
    """
    if not episode.seats:
        return True
    return episode.seats[player] == trained[player]
