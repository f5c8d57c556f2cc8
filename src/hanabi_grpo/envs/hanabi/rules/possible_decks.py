"""Decks that a player cannot tell apart: what shows that nothing it is shown depends on cards that it must not see."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from hanabi_grpo.envs.hanabi.rules.game import Game
from hanabi_grpo.envs.hanabi.rules.view import Card


def with_other_cards(game: Game, player: int, rng: random.Random) -> Game:
    """Return a game in which a player has lived through the same, with other cards in its hand and in the deck.

    Its cards are exchanged among themselves and with those still in the deck, as far as the hints that it was given
    stay true; then the same moves are replayed. What the hints allow is read from the public moves, never from a view,
    so that a view that leaks a card cannot hide it. The new hand is the old one only when no other is possible.
    """
    held, own = game.hand_positions[player], game.hands[player]
    num_dealt = len(game.deck) - game.view(player).deck_size
    pool = Counter(game.deck[position] for position in (*held, *range(num_dealt, len(game.deck))))
    hands = _hands(_allowed(game, player), pool, rng)
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


def _allowed(game: Game, player: int) -> list[set[Card]]:
    """Return per card that the player holds, oldest first, the cards about which all hints would have said the same."""
    table, kinds = Game(game.spec, game.deck), set(game.deck)
    allowed = [kinds for _ in table.hands[player]]
    for event in game.events:
        table.apply(event.action)
        action = event.action
        if action.target == player:
            is_color = action.kind == "hint_color"
            named = {card for card in kinds if (card.color if is_color else card.rank) == action.value}
            told = [named if slot in event.touched else kinds - named for slot in range(len(allowed))]
            allowed = [before & now for before, now in zip(allowed, told, strict=True)]
        elif event.player == player and action.slot >= 0:
            del allowed[action.slot]
            allowed += [kinds] * (len(table.hands[player]) - len(allowed))
    return allowed


def _hands(
    allowed: Sequence[set[Card]], pool: Counter[Card], rng: random.Random, hand: tuple[Card, ...] = ()
) -> Iterator[tuple[Card, ...]]:
    """Yield every allowed hand from the pool that begins with `hand`, each once, in random order."""
    if len(hand) == len(allowed):
        yield hand
        return
    cards = sorted((card for card in pool if card in allowed[len(hand)]), key=str)
    for card in rng.sample(cards, len(cards)):
        yield from _hands(allowed, pool - Counter([card]), rng, (*hand, card))
