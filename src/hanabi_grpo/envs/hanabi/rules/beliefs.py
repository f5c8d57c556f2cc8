"""What the mover can work out: which cards its own may be, which of them fit, which can no longer
be played.

A set of cards with their numbers is one integer with two bits for each kind of card, since no kind
has more than three. Adding cards is adding integers, and picking kinds is a bitwise and."""

import functools
from itertools import chain, islice
from typing import NamedTuple

from hanabi_grpo.envs.hanabi.rules.presets import MAX_COLORS, MAX_RANKS, GameSpec, num_copies
from hanabi_grpo.envs.hanabi.rules.view import Card, Knowledge, PlayerView

_LOW = sum(1 << 2 * kind for kind in range(MAX_COLORS * MAX_RANKS))
_HIGH = _LOW << 1


class Beliefs:
    """The cards of one view, counted when asked for."""

    def __init__(self, view: PlayerView) -> None:
        self.view = view

    @functools.cached_property
    def fits(self) -> int:
        """Both bits of every kind that fits on its stack now."""
        stacks, num_ranks = enumerate(self.view.fireworks), self.view.num_ranks
        return sum(
            3 << 2 * (MAX_RANKS * color + height) for color, height in stacks if height < num_ranks
        )

    @functools.cached_property
    def unseen(self) -> int:
        """The cards that are neither on the table nor in another player's hand: the player's own
        and the deck's.
        """
        view = self.view
        unseen = _deck(view.num_colors, view.num_ranks)
        for color, height in enumerate(view.fireworks):
            unseen -= _LOW & _kinds((color,), tuple(range(height)))
        for card in chain(view.discards, *view.hands):
            unseen -= 1 << 2 * (MAX_RANKS * card.color + card.rank)
        return unseen

    def is_unseen(self, card: Card) -> bool:
        """Return whether a card of this kind may still be in the player's own hand."""
        return bool(self.unseen & 3 << 2 * (MAX_RANKS * card.color + card.rank))

    def surely_fits(self, known: Knowledge) -> bool:
        """Return True when every unseen card that the hints allow fits."""
        return not self.unseen & _kinds(known.colors, known.ranks) & ~self.fits

    def chance_to_fit(self, known: Knowledge) -> float:
        """Return the share, within [0, 1], of the unseen cards allowed by the hints that fit."""
        possible = self.unseen & _kinds(known.colors, known.ranks)
        return _num_cards(possible & self.fits) / _num_cards(possible)


def reachable_heights(view: PlayerView) -> tuple[int, ...]:
    """Return per colour the height that its stack can still reach: up to the first kind that is all
    discarded.
    """
    gone = [0] * (MAX_COLORS * MAX_RANKS)
    for card in view.discards:
        gone[MAX_RANKS * card.color + card.rank] += 1
    heights = []
    for color, height in enumerate(view.fireworks):
        while height < view.num_ranks and gone[MAX_RANKS * color + height] < num_copies(
            height, view.num_ranks
        ):
            height += 1
        heights.append(height)
    return tuple(heights)


class KnownDeck(NamedTuple):
    """The order of the deck, as far as a player knows it."""

    cards: tuple[Card | None, ...]
    """First dealt first; None for a card in the player's own hand and for one still to be drawn."""
    own: tuple[int, ...]
    """Where in it the cards of the player's hand lie, oldest first."""


def known_deck(spec: GameSpec, view: PlayerView) -> KnownDeck:
    """Return what is known of the deck, from the moves and the others' hands."""
    size = spec.hand_size
    places = [list(range(seat * size, (seat + 1) * size)) for seat in range(spec.num_players)]
    cards: list[Card | None] = [None] * spec.deck_size
    undealt = iter(range(spec.num_players * size, spec.deck_size))
    for event in view.events:
        if event.card is not None:
            held = places[event.player]
            cards[held.pop(event.action.slot)] = event.card
            held.extend(islice(undealt, 1))
    for held, hand in zip(places, view.hands, strict=True):
        for place, card in zip(held, hand, strict=False):  # the player's own is not shown
            cards[place] = card
    return KnownDeck(tuple(cards), tuple(places[view.player]))


def _num_cards(cards: int) -> int:
    return (cards & _LOW).bit_count() + 2 * (cards & _HIGH).bit_count()


@functools.cache
def _deck(num_colors: int, num_ranks: int) -> int:
    return sum(
        num_copies(rank, num_ranks) << 2 * (MAX_RANKS * color + rank)
        for color in range(num_colors)
        for rank in range(num_ranks)
    )


@functools.cache  # at most 1024 pairs of subsets
def _kinds(colors: tuple[int, ...], ranks: tuple[int, ...]) -> int:
    return sum(3 << 2 * (MAX_RANKS * color + rank) for color in colors for rank in ranks)
