"""What a player can work out: what its own cards may be, and which of them fit or are dead.

A multiset of cards, called a *card set* below, is one integer with two bits for each kind of card,
since no kind has more than three copies. Adding cards is adding integers, and selecting kinds is a
bitwise and. Bits 2k and 2k + 1 count the cards of kind k = 5 * colour + rank. For example, three
red 1s and two red 2s are 0b1011.
"""

import functools
from itertools import chain, islice
from typing import NamedTuple

from hanabi_grpo.envs.hanabi.rules.presets import MAX_COLORS, MAX_RANKS, GameSpec, num_copies
from hanabi_grpo.envs.hanabi.rules.view import Card, Knowledge, PlayerView

_BITS_PER_KIND = 2
_ALL_COPIES = 0b11
"""Both bits of kind 0."""
_LOW_BITS = sum(1 << _BITS_PER_KIND * kind for kind in range(MAX_COLORS * MAX_RANKS))
"""The lower bit of every kind: one card of each."""
_HIGH_BITS = _LOW_BITS << 1
"""The upper bit of every kind: two cards of each."""


class Beliefs:
    """The cards of one view, counted on first use."""

    def __init__(self, view: PlayerView) -> None:
        self.view = view

    @functools.cached_property
    def fits(self) -> int:
        """Both bits of every kind that fits on its stack now."""
        kinds = 0
        for color, height in enumerate(self.view.fireworks):
            if height < self.view.num_ranks:
                kinds |= _ALL_COPIES << _shift(color, height)
        return kinds

    @functools.cached_property
    def unseen(self) -> int:
        """The cards that are neither on the table nor in another hand: own cards and the deck."""
        view = self.view
        unseen = _whole_deck(view.num_colors, view.num_ranks)
        for color, height in enumerate(view.fireworks):
            played_ranks = tuple(range(height))
            unseen -= _LOW_BITS & _kinds((color,), played_ranks)
        for card in chain(view.discards, *view.hands):
            unseen -= 1 << _shift(card.color, card.rank)
        return unseen

    def is_unseen(self, card: Card) -> bool:
        """Return whether a card of this kind may still be in the player's own hand."""
        return self.num_unseen(card) > 0

    def num_unseen(self, card: Card) -> int:
        """Return how many cards of this kind are neither on the table nor in another hand."""
        return self.unseen >> _shift(card.color, card.rank) & _ALL_COPIES

    def surely_fits(self, known: Knowledge) -> bool:
        """Return whether every unseen card that the hints allow fits."""
        possible = self.unseen & _kinds(known.colors, known.ranks)
        return not possible & ~self.fits

    def chance_to_fit(self, known: Knowledge) -> float:
        """Return the share, within [0, 1], of the unseen cards allowed by the hints that fit."""
        possible = self.unseen & _kinds(known.colors, known.ranks)
        return _num_cards(possible & self.fits) / _num_cards(possible)


def reachable_heights(view: PlayerView) -> tuple[int, ...]:
    """Return per colour the height that its stack can still reach.

    A stack ends below the first kind whose copies are all discarded.
    """
    num_discarded = [0] * (MAX_COLORS * MAX_RANKS)
    for card in view.discards:
        num_discarded[MAX_RANKS * card.color + card.rank] += 1
    heights = []
    for color, height in enumerate(view.fireworks):
        while height < view.num_ranks:
            copies = num_copies(height, view.num_ranks)
            if num_discarded[MAX_RANKS * color + height] == copies:
                break
            height += 1
        heights.append(height)
    return tuple(heights)


class KnownDeck(NamedTuple):
    """The order of the deck as far as a player knows it."""

    cards: tuple[Card | None, ...]
    """First dealt first; None for a card in the player's own hand and for one still to be drawn."""
    own_positions: tuple[int, ...]
    """Positions in `cards` of the cards in the player's hand, oldest first."""


def known_deck(spec: GameSpec, view: PlayerView) -> KnownDeck:
    """Return what a player knows about the deck's order from the moves and the others' hands."""
    size = spec.hand_size
    num_dealt = spec.num_players * size
    hand_positions = [list(range(first, first + size)) for first in range(0, num_dealt, size)]
    cards: list[Card | None] = [None] * spec.deck_size
    undealt = iter(range(num_dealt, spec.deck_size))
    for event in view.events:
        if event.card is not None:
            positions = hand_positions[event.player]
            position = positions.pop(event.action.slot)
            cards[position] = event.card
            drawn = islice(undealt, 1)  # nothing once the deck is empty
            positions.extend(drawn)
    for positions, hand in zip(hand_positions, view.hands, strict=True):
        # The player's own hand is not shown, so its positions have no cards.
        for position, card in zip(positions, hand, strict=False):
            cards[position] = card
    return KnownDeck(tuple(cards), tuple(hand_positions[view.player]))


def _shift(color: int, rank: int) -> int:
    """Return the position of a kind's lower bit."""
    return _BITS_PER_KIND * (MAX_RANKS * color + rank)


def _num_cards(cards: int) -> int:
    """Return the number of cards in a card set."""
    return (cards & _LOW_BITS).bit_count() + 2 * (cards & _HIGH_BITS).bit_count()


@functools.cache
def _whole_deck(num_colors: int, num_ranks: int) -> int:
    """Return the card set of a board's deck."""
    cards = 0
    for color in range(num_colors):
        for rank in range(num_ranks):
            cards += num_copies(rank, num_ranks) << _shift(color, rank)
    return cards


@functools.cache  # at most 1024 pairs of subsets
def _kinds(colors: tuple[int, ...], ranks: tuple[int, ...]) -> int:
    """Return both bits of every kind with one of the colours and one of the ranks."""
    kinds = 0
    for color in colors:
        for rank in ranks:
            kinds |= _ALL_COPIES << _shift(color, rank)
    return kinds
