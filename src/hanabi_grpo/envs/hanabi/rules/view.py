"""What one player may see: the only input of prompts and of every policy."""

from dataclasses import dataclass
from typing import NamedTuple

COLOR_LETTERS = "RYGWB"
COLOR_NAMES = ("red", "yellow", "green", "white", "blue")


@dataclass(frozen=True, slots=True)
class Card:
    """A card's identity; both from 0, as OpenSpiel counts (rank 0 is printed as 1)."""

    color: int
    rank: int

    def __str__(self) -> str:
        """Return e.g. "R1"."""
        return f"{COLOR_LETTERS[self.color]}{self.rank + 1}"


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What hints have told about one card, positive and negative."""

    colors: tuple[int, ...]
    """Possible colours, ascending, from 0."""
    ranks: tuple[int, ...]
    """Possible ranks, ascending, from 0."""
    color_hinted: bool
    """True when a colour hint touched this card."""
    rank_hinted: bool


@dataclass(frozen=True, slots=True)
class Action:
    """One move.

    `kind` is "play", "discard", "hint_color" or "hint_rank"; `slot` counts from the oldest card, 0;
    `target` is the absolute seat that is hinted; `value` the colour or rank, from 0.
    """

    kind: str
    slot: int = -1
    target: int = -1
    value: int = -1


class Event(NamedTuple):
    """A past move as every player saw it; a named tuple, since every turn makes one (see
    `PlayerView`).
    """

    player: int
    action: Action
    card: Card | None = None
    """The card played or discarded."""
    scored: bool = False
    """True when a play was correct."""
    touched: tuple[int, ...] = ()
    """Slots that a hint touched, in the hand as it was then."""


class PlayerView(NamedTuple):
    """Everything that `player` may know, and nothing of its own cards beyond the hints; hands are
    oldest card first.

    A named tuple, since every turn makes one and a frozen dataclass of this size takes three times
    as long."""

    player: int
    num_players: int
    num_colors: int
    num_ranks: int
    max_lives: int
    max_hints: int
    lives: int
    hints: int
    deck_size: int
    """Cards still to be drawn."""
    turns_left: int | None
    """Moves left in the game (all players together) once the deck is empty, else None."""
    fireworks: tuple[int, ...]
    """Per colour: cards on the stack, so also the next rank that fits, from 0."""
    discards: tuple[Card, ...]
    """In the order they were discarded; a misplayed card is among them."""
    own_hand: tuple[Knowledge, ...]
    hands: tuple[tuple[Card, ...], ...]
    """Per seat; the player's own entry is empty."""
    knowledge: tuple[tuple[Knowledge, ...], ...]
    """Per seat, what hints have told that seat (public); the player's own entry equals
    `own_hand`.
    """
    legal_actions: tuple[Action, ...]
    """Only when it is this player's turn, else empty."""
    events: tuple[Event, ...]
    """Every past move, oldest first."""
