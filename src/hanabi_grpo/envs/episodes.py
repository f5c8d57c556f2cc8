"""A played episode as data: what `Environment.metrics` and `render` read. Tokens and versions are the loop's."""

from collections.abc import Mapping
from dataclasses import dataclass

from hanabi_grpo.types import EpisodeStatus, ReplyKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What became of one reply."""

    player: int
    reply: str
    action: str
    """What was applied in its place when the reply was bad."""
    kind: ReplyKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a game: the moves of all players who were to act."""

    moves: tuple[Move, ...]
    rewards: tuple[Mapping[str, float], ...]
    """Per player of the game, its named parts; what concerns a reply is among those of the player who made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisode:
    """One episode from its start to its end.

    Example:
        PlayedEpisode(split="eval", seed=17, steps=(Step(...), ...), result={"score": 3}, status=EpisodeStatus.FINISHED)
    """

    split: str
    seed: int
    game: int = 0
    """Number within the group of its task."""
    steps: tuple[Step, ...]
    result: Mapping[str, float]
    status: EpisodeStatus

    def reward(self, player: int, *parts: str) -> float:
        """Return a player's return, or the sum of the named parts only."""
        named = [item for step in self.steps for item in step.rewards[player].items()]
        return sum(value for part, value in named if not parts or part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One picture of a replay, as text."""

    title: str
    text: str
