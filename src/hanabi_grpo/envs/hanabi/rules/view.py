"""What one player may see: the only input of prompts and of every policy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

COLOR_LETTERS = "RYGWB"
COLOR_NAMES = ("red", "yellow", "green", "white", "blue")


@dataclass(frozen=True, slots=True)
class Card:
    """A card's identity; colour and rank count from 0, as in OpenSpiel (rank 0 is printed as 1)."""

    color: int
    rank: int

    def __str__(self) -> str:
        """Return e.g. "R1"."""
        return f"{COLOR_LETTERS[self.color]}{self.rank + 1}"


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What positive and negative hints say about one card."""

    colors: tuple[int, ...]
    """Possible colours, ascending, from 0."""
    ranks: tuple[int, ...]
    """Possible ranks, ascending, from 0."""
    color_hinted: bool
    """True when a colour hint touched this card."""
    rank_hinted: bool
    """True when a rank hint touched this card."""


@dataclass(frozen=True, slots=True)
class Action:
    """One move.

    Examples:
        `Action("play", slot=0)` plays the oldest card;
        `Action("hint_rank", target=1, value=2)` tells player_1 about its 3s.
    """

    kind: str
    """One of "play", "discard", "hint_color" and "hint_rank"."""
    slot: int = -1
    """Slot of the card that is played or discarded, from the oldest, 0; -1 for a hint."""
    target: int = -1
    """Absolute seat that is hinted; -1 for a play or a discard."""
    value: int = -1
    """Colour or rank that is hinted, from 0; -1 for a play or a discard."""


class Event(NamedTuple):
    """A past move as every player saw it.

    A named tuple, since every turn makes one (see `PlayerView`).
    """

    player: int
    """Seat that moved."""
    action: Action
    """The move."""
    card: Card | None = None
    """The card that was played or discarded; None for a hint."""
    scored: bool = False
    """True when a play was correct."""
    touched: tuple[int, ...] = ()
    """Slots that a hint touched, in the hand at that time."""


class PlayerView(NamedTuple):
    """Everything that `player` may know, and nothing of its own cards beyond the hints.

    Hands are oldest card first. A named tuple, since every turn makes one and a frozen dataclass of
    this size takes three times as long.
    """

    player: int
    """Seat of the viewing player."""
    num_players: int
    """Players of the game."""
    num_colors: int
    """Colours of the board."""
    num_ranks: int
    """Ranks of the board."""
    max_lives: int
    """Lives at the start."""
    max_hints: int
    """Hint tokens at the start, which is also the maximum."""
    lives: int
    """Lives left."""
    hints: int
    """Hint tokens left."""
    deck_size: int
    """Cards still to be drawn."""
    turns_left: int | None
    """Moves left in the game (all players together) once the deck is empty, else None."""
    fireworks: tuple[int, ...]
    """Per colour: cards on the stack, so also the next rank that fits, from 0."""
    discards: tuple[Card, ...]
    """In the order they were discarded; a misplayed card is among them."""
    own_hand: tuple[Knowledge, ...]
    """What hints say about each of the player's own cards."""
    hands: tuple[tuple[Card, ...], ...]
    """Per seat; the player's own entry is empty."""
    knowledge: tuple[tuple[Knowledge, ...], ...]
    """Per seat, what hints say to that seat (public); the own entry equals `own_hand`."""
    legal_actions: tuple[Action, ...]
    """Empty unless it is this player's turn."""
    events: tuple[Event, ...]
    """Every past move, oldest first."""


def other_seats(view: PlayerView) -> Iterator[int]:
    """Yield the seats of the other players, in the order of turns."""
    for offset in range(1, view.num_players):
        yield (view.player + offset) % view.num_players
