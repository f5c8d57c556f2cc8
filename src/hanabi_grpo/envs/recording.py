"""A game as stored in a file: an episode, plus information that an episode does not hold.

An episode identifies its start by (suite, seed). A game from another source may have a start that
no seed produces. Its line then holds the start as text in `start` (in Hanabi the deck, e.g.
"R1 Y4 ..."), and the players' own names in `names`.
"""

from dataclasses import dataclass

from hanabi_grpo.types import Episode, player_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One game of a file."""

    episode: Episode
    """The episode itself."""
    number: int = 0
    """Index among the games that were read together, from 0; people select a game by it."""
    source: str = ""
    """File it came from, without folder and suffix, e.g. "step_000030"."""
    start: str | None = None
    """The start, in its environment's notation, of a game that no (suite, seed) produces."""
    names: tuple[str, ...] = ()
    """The players' names in the other source; empty: `player_0`, …"""

    @property
    def players(self) -> tuple[str, ...]:
        """Names of all players, in turn order."""
        return self.names or player_names(self.episode.num_players)

    @property
    def where(self) -> str:
        """Name of this game in error messages."""
        source = self.source or "recording"
        return f"{source}, game {self.number}"
