"""What a prompt works out for its reader: HANABI_DEDUCTIONS.

`none`: a card's colour and rank where a hint named them. `possible`: what all hints leave possible,
those that did not touch a card included. `counted`: that, and what the cards in sight say of each
card, and the others' last moves."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Literal

from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs, reachable_heights
from hanabi_grpo.envs.hanabi.rules.presets import num_copies
from hanabi_grpo.envs.hanabi.rules.view import Card, Event, Knowledge, PlayerView

Deductions = Literal["none", "possible", "counted"]
STEPS = 5
"""Into which a chance below 1 is sorted."""
SURE, DEAD, FITS, LATER, ONLY = "sure", "dead", "fits", "later", "only"
OWN = (SURE, DEAD, *(f"fit{step}" for step in range(STEPS)))
"""What `own_word` says."""
OTHERS = (FITS, LATER, ONLY, DEAD)
"""What `Counted.card` says."""


class Counted:
    """What the cards in sight say of the cards of one view."""

    def __init__(self, view: PlayerView) -> None:
        self.view, self.beliefs, self.reachable = view, Beliefs(view), reachable_heights(view)

    def card(self, card: Card) -> str:
        """Return of a card in sight: it fits now, later, later and no other of its kind is left, or
        never again.
        """
        view = self.view
        if card.rank == view.fireworks[card.color]:
            return FITS
        if not view.fireworks[card.color] < card.rank < self.reachable[card.color]:
            return DEAD
        return (
            ONLY
            if num_copies(card.rank, view.num_ranks) - view.discards.count(card) == 1
            else LATER
        )

    def is_dead(self, known: Knowledge) -> bool:
        """Return whether an own card can never fit again, whatever the unseen cards that hints
        allow are.
        """
        kinds = (Card(color, rank) for color, rank in product(known.colors, known.ranks))
        return all(self.card(kind) == DEAD for kind in kinds if self.beliefs.is_unseen(kind))


def own_word(counted: Counted, known: Knowledge) -> str:
    """Return "sure", "dead", or "fit0" to "fit4" for a chance of so many fifths, rounded down."""
    if counted.is_dead(known):
        return DEAD
    chance = counted.beliefs.chance_to_fit(known)
    return SURE if chance == 1 else f"fit{int(STEPS * chance)}"


def others_moves(view: PlayerView) -> Iterator[Event]:
    """Yield what the others have done since the player's own last move, oldest first."""
    own = [number for number, event in enumerate(view.events) if event.player == view.player]
    yield from view.events[own[-1] + 1 if own else 0 :]


def seen_with(view: PlayerView, deductions: Deductions) -> PlayerView:
    """Return the view as its prompt may use it: without deductions a card is what hints named, or
    anything.
    """
    if deductions != "none":
        return view
    every = range(view.num_colors), range(view.num_ranks)

    def told(known: Knowledge) -> Knowledge:
        colors, ranks = (tuple(one) for one in every)
        return replace(
            known,
            colors=known.colors if known.color_hinted else colors,
            ranks=known.ranks if known.rank_hinted else ranks,
        )

    knowledge = tuple(tuple(map(told, hand)) for hand in view.knowledge)
    return view._replace(own_hand=tuple(map(told, view.own_hand)), knowledge=knowledge)
