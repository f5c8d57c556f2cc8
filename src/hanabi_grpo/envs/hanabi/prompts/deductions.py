"""What a prompt works out for its reader: HANABI_DEDUCTIONS.

- `none`: a card's colour and rank if a hint named them.
- `possible`: what all hints leave possible, including those that did not touch a card.
- `counted`: like `possible`, plus what the visible cards imply for each card, and the others' last
  moves.
- `joined`: like `counted`; in the compact style, one word for a card and all that is known of it.
- `recalled`: like `joined`, plus the hands that the giver of the last hint and the reader both saw,
  as they were when the hint was given. What a convention means by a hint depends on them, and with
  three or more players others may have moved since.
"""

from dataclasses import replace
from typing import Literal, NamedTuple

from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs, reachable_heights
from hanabi_grpo.envs.hanabi.rules.history import last_hint_since, table_before
from hanabi_grpo.envs.hanabi.rules.presets import num_copies
from hanabi_grpo.envs.hanabi.rules.view import (
    Card,
    Event,
    Knowledge,
    PlayerView,
    other_seats,
)

Deductions = Literal["none", "possible", "counted", "joined", "recalled"]
"""The levels of `HANABI_DEDUCTIONS`."""
COUNTED_LEVELS = ("counted", "joined", "recalled")
"""Levels that include what the visible cards imply."""
JOINED_LEVELS = ("joined", "recalled")
"""Levels at which compact words that belong together are joined."""
RECALLED = "recalled"

SURE = "sure"
"""An own card fits, whatever it is."""
DEAD = "dead"
"""A card can never fit again."""
FITS = "fits"
"""A card in sight fits now."""
LATER = "later"
"""A card in sight can fit later, and there is another one of its kind."""
ONLY = "only"
"""A card in sight can fit later, and it is the last one of its kind."""

NUM_CHANCE_STEPS = 5
"""A chance below 1 is rounded down to a multiple of 1 / `NUM_CHANCE_STEPS`."""

OWN_CARD_WORDS = (SURE, DEAD, *(f"fit{step}" for step in range(NUM_CHANCE_STEPS)))
"""What `own_card_word` returns."""
CARD_WORDS = (FITS, LATER, ONLY, DEAD)
"""What `Counted.card_word` returns."""


class Counted:
    """What the visible cards imply for the cards of one view."""

    def __init__(self, view: PlayerView) -> None:
        self.view = view
        self.beliefs = Beliefs(view)
        self.reachable = reachable_heights(view)

    def card_word(self, card: Card) -> str:
        """Return the use of a visible card: `FITS`, `LATER`, `ONLY` or `DEAD`."""
        height = self.view.fireworks[card.color]
        if card.rank == height:
            return FITS
        is_reachable = height < card.rank < self.reachable[card.color]
        if not is_reachable:
            return DEAD
        num_left = num_copies(card.rank, self.view.num_ranks) - self.view.discards.count(card)
        return ONLY if num_left == 1 else LATER

    def is_dead(self, known: Knowledge) -> bool:
        """Return whether an own card can never fit again, whichever unseen card it may be."""
        for color in known.colors:
            for rank in known.ranks:
                card = Card(color, rank)
                if self.beliefs.is_unseen(card) and self.card_word(card) != DEAD:
                    return False
        return True


def own_card_word(counted: Counted, known: Knowledge) -> str:
    """Return "sure", "dead", or "fit0" to "fit4": the chance to fit in fifths, rounded down."""
    if counted.is_dead(known):
        return DEAD
    chance = counted.beliefs.chance_to_fit(known)
    if chance == 1:
        return SURE
    return f"fit{int(NUM_CHANCE_STEPS * chance)}"


def others_moves(view: PlayerView) -> list[Event]:
    """Return what the others have done since the player's own last move, oldest first."""
    moves: list[Event] = []
    for event in reversed(view.events):
        if event.player == view.player:
            break
        moves.append(event)
    moves.reverse()
    return moves


class RecalledHand(NamedTuple):
    """A hand at the time of the last hint."""

    seat: int
    cards: tuple[tuple[Card, str], ...]
    """Each card with its use at that time, as `Counted.card_word` names it; the oldest first."""


class Recalled(NamedTuple):
    """The last hint since the reader's own last move, and the hands that its giver saw."""

    giver: int
    hands: tuple[RecalledHand, ...]
    """In the order of turns, without those of the giver and the reader."""


def recalled_hint(view: PlayerView) -> Recalled | None:
    """Return the last hint since the player's own last move, or None if there is none."""
    index = last_hint_since(view, view.player)
    if index is None:
        return None
    giver = view.events[index].player
    then = table_before(view, index).view
    counted = Counted(then)
    hands = []
    for seat in other_seats(view):
        if seat != giver:
            cards = tuple((card, counted.card_word(card)) for card in then.hands[seat])
            hands.append(RecalledHand(seat, cards))
    return Recalled(giver, tuple(hands))


def view_with(view: PlayerView, deductions: Deductions) -> PlayerView:
    """Return the view as its prompt may use it.

    Without deductions, a card's colour and rank are what a hint named, or else unknown.
    """
    if deductions != "none":
        return view
    all_colors = tuple(range(view.num_colors))
    all_ranks = tuple(range(view.num_ranks))

    def named_by_hints(known: Knowledge) -> Knowledge:
        return replace(
            known,
            colors=known.colors if known.color_hinted else all_colors,
            ranks=known.ranks if known.rank_hinted else all_ranks,
        )

    own_hand = tuple(named_by_hints(known) for known in view.own_hand)
    knowledge = tuple(tuple(map(named_by_hints, hand)) for hand in view.knowledge)
    return view._replace(own_hand=own_hand, knowledge=knowledge)
