"""The hidden-card property: what a player is shown must not depend on the cards it cannot see."""

import random
from collections import Counter
from collections.abc import Iterator

from hanabi_grpo.envs.hanabi.rules import Card, Game


def swap_own_cards(game: Game, player: int, rng: random.Random) -> Game | None:
    """Return another game in which `player` has lived through the same, with other cards in its hand.

    The cards in the hand are exchanged among themselves and with cards still in the deck, as far as the hints
    that were given stay true; then the same moves are replayed on the new deck.

    Args:
        game: A game at any point.
        player: The seat whose hidden cards change.
        rng: Chooses among the possible hands.

    Returns:
        The replayed game, or None when no other hand fits what the player knows.
    """
    held = game.hand_positions[player]
    num_dealt = len(game.deck) - game.view(player).deck_size
    pool = [game.deck[position] for position in (*held, *range(num_dealt, len(game.deck)))]
    own = tuple(game.deck[position] for position in held)
    hands = _fitting_hands(game, player, Counter(pool), rng)
    new_hand = next((hand for hand in hands if hand != own), None)
    if new_hand is None:
        return None
    rest = list((Counter(pool) - Counter(new_hand)).elements())
    rng.shuffle(rest)
    deck = list(game.deck)
    for position, card in zip(held, new_hand, strict=True):
        deck[position] = card
    deck[num_dealt:] = rest
    other = Game(game.spec, deck)
    for event in game.events:
        other.apply(event.action)
    return other


def _fitting_hands(game: Game, player: int, pool: Counter[Card], rng: random.Random) -> Iterator[tuple[Card, ...]]:
    """Yield every hand from the pool that fits the hints, each once, in random order."""
    known = game.view(player).own_hand
    held = game.hands[player]

    def extend(hand: tuple[Card, ...], left: Counter[Card]) -> Iterator[tuple[Card, ...]]:
        if len(hand) == len(held):
            yield hand
            return
        slot = known[len(hand)]
        cards = sorted((c for c in left if c.color in slot.colors and c.rank in slot.ranks), key=str)
        rng.shuffle(cards)
        for card in cards:
            yield from extend((*hand, card), left - Counter([card]))

    yield from extend((), pool)
