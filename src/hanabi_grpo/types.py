"""What a game leaves behind: replies, turns, trajectories and episodes.

An *episode* is one game by all players. A *trajectory* is what one player saw and said in it. Token
ids and logprobs travel with every reply, so that nothing is ever encoded a second time."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MAX_PLAYERS = 8
SEEDS_APART = 2**32
"""Distance of the first fresh tasks of two values of HANABI_TASK_SEED: as many a run has."""


def task_name(suite: str, seed: int) -> str:
    """Return what logs call a task: "train 42:0" for the first of HANABI_TASK_SEED=42, "eval 5"
    below `SEEDS_APART`.
    """
    first, number = divmod(seed, SEEDS_APART)
    return f"{suite} {first}:{number}" if first else f"{suite} {number}"


def player_name(index: int) -> str:
    """Return the one name that a seat has everywhere: env agent, adapter, LoRA, folder, metric
    prefix.
    """
    return f"player_{index}"


def player_names(num_players: int) -> tuple[str, ...]:
    """Return the names of all seats, in turn order."""
    return tuple(player_name(index) for index in range(num_players))


SHARED_ADAPTER = "shared"
"""The one adapter of a run whose players share it."""


def adapter_of(player: str, adapters: Container[str]) -> str:
    """Return the adapter that a player uses: its own where there is one, else the shared one."""
    return player if player in adapters else SHARED_ADAPTER


REPLY_PARTS = frozenset({"illegal", "unparsable", "out_of_tokens", "length"})
"""Reward parts that belong to a reply, whatever the game (`length` in old records); they go to who
made it.
"""

TURN_PARTS = REPLY_PARTS | {"later_rounds"}
"""Those, and parts of a game in which a turn's later worth is counted already, see
`envs.workflows`.
"""


class ReplyKind(StrEnum):
    """What became of a reply."""

    LEGAL = "legal"
    ILLEGAL = "illegal"
    """An action, but not one that the rules allow here."""
    UNPARSABLE = "unparsable"
    """No action could be read from the text."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a policy answers on its turn. Scripted policies fill only `text`."""

    text: str
    prompt: str = ""
    """The text that the player was shown on this turn."""
    prompt_ids: tuple[int, ...] = ()
    """Tokens that this turn added to the player's private conversation before the reply."""
    reply_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Of each id in `reply_ids`, in nats, under the distribution that was sampled from."""
    version: int | None = None
    """Policy version (optimizer steps) of the adapter that sampled; None: base model or script."""
    fresh: bool = False
    """True when this turn is a conversation of its own, see `EnvConfig.memory`."""
    out_of_tokens: bool = False
    """True when no reply could be made because the conversation would outgrow its budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One action of one player, as data."""

    player: int
    step: int
    """Number of the game's step; players who answer at the same time share it."""
    prompt: str
    reply: str
    action: str
    """What was applied; it stands in place of a reply that was not legal."""
    kind: ReplyKind
    rewards: tuple[Mapping[str, float], ...]
    """Per player of the game its named reward parts, e.g. ({"score": 1.0, "illegal": -0.5},
    {"score": 1.0}). What a step pays a player stands in that player's turn of the step, or in the
    step's last turn when it has none."""
    prompt_ids: tuple[int, ...] = ()
    reply_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    version: int | None = None
    fresh: bool = False
    """See `Reply`; such a turn is a sequence of its own in training."""

    def reward(self, player: int) -> float:
        """Return what a player gets in this turn."""
        return sum(self.rewards[player].values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One game by all players.

    Example: Episode(env="hanabi", preset="laptop", spec_hash="9f3c…", num_players=2, suite="train",
        seed=17, game=3, status=EpisodeStatus.FINISHED, result={"score": 3, "bombed": 0},
        turns=(Turn(...), ...))
    """

    env: str
    preset: str
    spec_hash: str
    num_players: int
    suite: str
    seed: int
    """(suite, seed) name the task; `game` is the number of this game within the task's group."""
    game: int = 0
    status: EpisodeStatus
    result: Mapping[str, float]
    """Figures of the game by name, see `envs.base.Game.result`."""
    turns: tuple[Turn, ...] = field(default=())
    seats: tuple[str, ...] = ()
    """Who sat in each seat, see `refs`; empty in records that do not say."""
    instance_id: str = ""
    """Which server process played it."""

    def trajectory(self, player: int) -> tuple[Turn, ...]:
        """Return the turns of one player, oldest first; empty when the game ended before its
        turn.
        """
        return tuple(turn for turn in self.turns if turn.player == player)

    def reward(self, player: int, *parts: str) -> float:
        """Return one player's undiscounted return, or the sum of the named parts only."""
        if not parts:
            return sum(turn.reward(player) for turn in self.turns)
        return sum(turn.rewards[player].get(part, 0.0) for turn in self.turns for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedGame:
    """A game that was dropped: nothing of it enters a baseline, a loss or a figure except their
    counts.

    Example: DroppedGame(suite="train", seed=17, game=3, reason="NonFiniteError: player_0, turn 2:
        logprob 0 …")
    """

    suite: str
    seed: int
    game: int
    """Number within the task's group, as in `Episode`."""
    reason: str


def is_trained(episode: Episode, player: int, own: Sequence[str]) -> bool:
    """Tell whether a player's turns carry loss: its seat was held by the adapter that is trained,
    at this version.

    Args: episode: A record that does not name its seats is self-play. player: Number of the seat.
        own: Per seat the word of the trained adapter at this version, see
        `settings.partners.own_seats`.
    """
    return not episode.seats or episode.seats[player] == own[player]
