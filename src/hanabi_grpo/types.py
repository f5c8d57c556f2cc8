"""What a game leaves behind: replies, turns, trajectories and episodes.

An *episode* is one game by all players. A *trajectory* is what one player saw and said in it. Token ids
and logprobs travel with every reply, so that nothing is ever encoded a second time.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MAX_PLAYERS = 5
TEAM_PARTS = frozenset({"score", "bomb"})
"""Reward parts that every player of the team receives; the others belong to the player who moved."""


def player_name(index: int) -> str:
    """Return the one name that a seat has everywhere: env agent, adapter, LoRA, folder, metric prefix."""
    return f"player_{index}"


def player_names(num_players: int) -> tuple[str, ...]:
    """Return the names of all seats, in turn order."""
    return tuple(player_name(index) for index in range(num_players))


SHARED_ADAPTER = "shared"
"""The one adapter of a run whose players share it."""


def adapter_of(player: str, adapters: Container[str]) -> str:
    """Return the adapter that a player uses: its own where there is one, else the shared one."""
    return player if player in adapters else SHARED_ADAPTER


class ReplyKind(StrEnum):
    """What became of a reply."""

    LEGAL = "legal"
    ILLEGAL = "illegal"
    """A move, but not one that the rules allow here."""
    UNPARSABLE = "unparsable"
    """No move could be read from the text."""


class EpisodeStatus(StrEnum):
    """How an episode ended."""

    FINISHED = "finished"
    BOMBED = "bombed"
    """The last life was lost."""
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
    out_of_tokens: bool = False
    """True when no reply could be made because the conversation would outgrow its budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One move of one player, as data."""

    player: int
    prompt: str
    reply: str
    action: str
    """The action that was applied; the fallback when the reply was not legal."""
    kind: ReplyKind
    rewards: Mapping[str, float]
    """Weighted reward parts of this move, e.g. {"score": 1.0} or {"illegal": -0.5}."""
    prompt_ids: tuple[int, ...] = ()
    reply_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    version: int | None = None

    @property
    def team_reward(self) -> float:
        """Sum of the parts that every player receives."""
        return sum(value for part, value in self.rewards.items() if part in TEAM_PARTS)

    @property
    def own_reward(self) -> float:
        """Sum of the parts that only the mover receives."""
        return sum(value for part, value in self.rewards.items() if part not in TEAM_PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One game by all players.

    Example:
        Episode(preset="laptop", spec_hash="9f3c…", num_players=2, suite="train", seed=17, game=3,
                status=EpisodeStatus.FINISHED, score=3, score_kept=3, turns=(Turn(...), ...))
    """

    preset: str
    spec_hash: str
    num_players: int
    suite: str
    seed: int
    """(suite, seed) name the deal; `game` is the number of this game within the deal's group."""
    game: int = 0
    status: EpisodeStatus
    score: int
    """OpenSpiel's scoring: 0 when the team bombed."""
    score_kept: int
    """Points on the table at the end, kept on a bomb."""
    turns: tuple[Turn, ...] = field(default=())
    seats: tuple[str, ...] = ()
    """Who sat in each seat, see `refs`; empty in records that do not say."""
    instance_id: str = ""
    """Which server process played it."""

    def trajectory(self, player: int) -> tuple[Turn, ...]:
        """Return the turns of one player, oldest first; empty when the game ended before its turn."""
        return tuple(turn for turn in self.turns if turn.player == player)

    def reward(self, player: int) -> float:
        """Return one player's undiscounted return: every team part and its own parts."""
        return sum(turn.team_reward + (turn.own_reward if turn.player == player else 0.0) for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedGame:
    """A game that was given up: nothing of it enters a baseline, a loss or a figure except their counts.

    Example:
        DroppedGame(suite="train", seed=17, game=3, reason="NonFiniteError: player_0, turn 2: logprob 0 …")
    """

    suite: str
    seed: int
    game: int
    """Number within the deal's group, as in `Episode`."""
    reason: str


def is_trained(episode: Episode, player: int, own: Sequence[str]) -> bool:
    """Tell whether a player's turns carry loss: its seat was held by the adapter that is trained, at this version.

    Args:
        episode: A record that does not name its seats is self-play.
        player: Number of the seat.
        own: Per seat the word of the trained adapter at this version, see `settings.partners.own_seats`.
    """
    return not episode.seats or episode.seats[player] == own[player]
