"""A game as a file holds it: an episode, and beside it what an episode cannot name.

An episode names its start by (suite, seed). A game from elsewhere has a start that no seed draws:
its line carries it as text in `start` (in Hanabi the deck, e.g. "R1 Y4 ..."), and in `names` the
players' own names.
"""

from dataclasses import dataclass

from hanabi_grpo.types import Episode, player_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One game of a file."""

    episode: Episode
    """The game."""
    number: int = 0
    """Number among the games that were read together, from 0; people choose a game by it."""
    source: str = ""
    """File it came from, without folder and suffix, e.g. "step_000030"."""
    start: str | None = None
    """The start of a game that no (suite, seed) draws, as its environment writes it."""
    names: tuple[str, ...] = ()
    """What the players are called elsewhere; empty: `player_0`, …"""

    @property
    def players(self) -> tuple[str, ...]:
        """Names of all players, in turn order."""
        return self.names or player_names(self.episode.num_players)

    @property
    def where(self) -> str:
        """What errors call this game."""
        source = self.source or "recording"
        return f"{source}, game {self.number}"
