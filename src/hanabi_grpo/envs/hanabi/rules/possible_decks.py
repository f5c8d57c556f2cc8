"""Decks that a player cannot tell apart: what shows that nothing it is shown depends on cards that it must not see."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hanabi_grpo.envs.hanabi.rules.game import Game
from hanabi_grpo.envs.hanabi.rules.view import Card


class Hint(NamedTuple):
    """What one hint said about one card."""

    is_color: bool
    value: int
    touched: bool

    def allows(self, card: Card) -> bool:
        """Return True when the hint would have said the same about this card."""
        return ((card.color if self.is_color else card.rank) == self.value) is self.touched


def with_other_cards(game: Game, player: int, rng: random.Random) -> Game:
    """Return a game in which a player has lived through the same, with other cards in its hand and in the deck.

    Its cards are exchanged among themselves and with those still in the deck, as far as the hints that it was given
    stay true; then the same moves are replayed. What the hints allow is read from the public moves, never from a view,
    so that a view that leaks a card cannot hide it.

    Args:
        game: A game at any point.
        player: The seat whose hidden cards change.
        rng: Chooses among the possible hands.

    Returns:
        Another game; its hand of the player is the same only when no other hand is possible.
    """
    held, own = game.hand_positions[player], game.hands[player]
    num_dealt = len(game.deck) - game.view(player).deck_size
    pool = Counter(game.deck[position] for position in (*held, *range(num_dealt, len(game.deck))))
    hands = _fitting_hands(_hints_on(game, player), pool, rng)
    new_hand = next((hand for hand in hands if hand != own), own)
    rest = list((pool - Counter(new_hand)).elements())
    rng.shuffle(rest)
    deck = list(game.deck)
    for position, card in zip(held, new_hand, strict=True):
        deck[position] = card
    deck[num_dealt:] = rest
    other = Game(game.spec, deck)
    for event in game.events:
        other.apply(event.action)
    return other


def _hints_on(game: Game, player: int) -> list[list[Hint]]:
    """Return per card that the player holds, oldest first, every hint that was given while it held the card."""
    undealt = len(game.deck) - game.spec.num_players * game.spec.hand_size
    hints: list[list[Hint]] = [[] for _ in range(game.spec.hand_size)]
    for event in game.events:
        action = event.action
        if action.slot < 0 and action.target == player:
            for slot, told in enumerate(hints):
                told.append(Hint(action.kind == "hint_color", action.value, slot in event.touched))
        if action.slot >= 0 and event.player == player:
            del hints[action.slot]
            if undealt:
                hints.append([])
        if action.slot >= 0 and undealt:
            undealt -= 1
    # Nothing is drawn after the move that ends the game.
    return hints[: len(game.hands[player])]


def _fitting_hands(hints: Sequence[list[Hint]], pool: Counter[Card], rng: random.Random) -> Iterator[tuple[Card, ...]]:
    """Yield every hand from the pool that fits the hints, each once, in random order."""

    def extend(hand: tuple[Card, ...], left: Counter[Card]) -> Iterator[tuple[Card, ...]]:
        if len(hand) == len(hints):
            yield hand
            return
        cards = sorted((card for card in left if all(hint.allows(card) for hint in hints[len(hand)])), key=str)
        rng.shuffle(cards)
        for card in cards:
            yield from extend((*hand, card), left - Counter([card]))

    yield from extend((), pool)
