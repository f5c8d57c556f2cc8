"""One game, move by move, into counters.

A set of cards with their numbers is one integer with two bits for each kind of card, since no kind has more than
three (as in `policies.beliefs`); what hints tell about a card is the set of kinds that they leave possible.
"""

import functools
import math

from hanabi_grpo.envs.hanabi.conventions.layout import MICRO, GameCount, HintCount, Layout, SeatCount
from hanabi_grpo.envs.hanabi.rules import Card, Game
from hanabi_grpo.envs.hanabi.rules.presets import MAX_COLORS, MAX_RANKS, num_copies

_ONES = sum(1 << 2 * kind for kind in range(MAX_COLORS * MAX_RANKS))
_TWOS = _ONES << 1
_OF_COLOR = tuple(sum(3 << 2 * (MAX_RANKS * color + rank) for rank in range(MAX_RANKS)) for color in range(MAX_COLORS))
_OF_RANK = tuple(sum(3 << 2 * (MAX_RANKS * color + rank) for color in range(MAX_COLORS)) for rank in range(MAX_RANKS))
_MICROBITS = (0, *(round(MICRO * math.log2(number)) for number in range(1, 1 + 10 * MAX_COLORS)))


def count_game(game: Game, layout: Layout, row: list[int]) -> None:
    """Add one game to a row of counters.

    - The seat after the mover answers each move; the last move of a game has no answer.
    - A hint is answered by the receiver's next turn, whatever happens in between. Its hand, and so the touched slots,
      are still the same then. Several hints before one turn are each answered by it.
    - A hint is wasted when it makes no card's set of possible kinds smaller.
    - A discard is critical when the card could still score and no other copy of it was left.
    - The information that hints gave about a played card is log2(U / H) bits: U cards are unseen by the player (its
      own hand and the deck), H of them are what hints allow. It is the divergence of what the player knows from what
      it would know without hints, 0 when nothing was told.

    Args:
        game: A game at any point, its end as a rule.
        layout: Of the game's board.
        row: `layout.size` counters.
    """
    spec = game.spec
    num_players, hand_size, num_values = spec.num_players, spec.hand_size, layout.num_values
    num_actions = layout.num_actions
    num_kinds = len(HintCount)
    seat_rows = [layout.seats_start + seat * len(SeatCount) for seat in range(num_players)]
    deck = [MAX_RANKS * card.color + card.rank for card in game.deck]
    drawn = num_players * hand_size
    hands = [deck[seat * hand_size : (seat + 1) * hand_size] for seat in range(num_players)]
    anything = _board(spec.num_colors, spec.num_ranks)
    allowed = [[anything] * hand_size for _ in range(num_players)]
    held = [sum(1 << 2 * kind for kind in hand) for hand in hands]
    undealt = sum(1 << 2 * kind for kind in deck[drawn:])
    fits = sum(3 << 2 * MAX_RANKS * color for color in range(spec.num_colors))
    heights = [0] * spec.num_colors
    gone = [0] * (MAX_COLORS * MAX_RANKS)
    pending: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in range(num_players)]
    before = -1
    for player, action, card, scored, touched in game.events:
        seat_row = seat_rows[player]
        row[seat_row + SeatCount.TURNS] += 1
        slot = action.slot
        plays = action.kind == "play"
        move = slot if plays else hand_size + slot
        if slot < 0:
            target, value = action.target, action.value
            is_color = action.kind == "hint_color"
            kind = value if is_color else spec.num_colors + value
            move = 2 * hand_size + ((target - player) % num_players - 1) * num_values + kind
        if before >= 0:
            row[layout.pairs_start + before * num_actions + move] += 1
        before = player * num_actions + move
        _count_answer(row, pending[player], seat_row, slot, plays, scored)
        pending[player] = []
        if slot < 0:
            hint_row = layout.hints_start + (target * num_values + kind) * num_kinds
            pending[target].append((hint_row, touched))
            row[seat_row + SeatCount.HINTS] += 1
            row[hint_row + HintCount.HINTS] += 1
            row[hint_row + HintCount.TOUCHED] += len(touched)
            hand = hands[target]
            for index in touched:
                if fits >> 2 * hand[index] & 1:
                    row[hint_row + HintCount.TOUCHED_PLAYABLE] += 1
            named = (_OF_COLOR if is_color else _OF_RANK)[value]
            known = [one & ~named for one in allowed[target]]
            for index in touched:
                known[index] = allowed[target][index] & named
            if known == allowed[target]:
                row[seat_row + SeatCount.WASTED_HINTS] += 1
            allowed[target] = known
            continue
        assert card is not None  # every play and discard shows its card
        kind = hands[player].pop(slot)
        possible = allowed[player].pop(slot)
        if plays:
            _count_play(row, seat_row, card, scored, possible, undealt + held[player], fits)
        else:
            row[seat_row + SeatCount.DISCARDS] += 1
            if _is_critical(card, heights, gone, spec.num_ranks):
                row[seat_row + SeatCount.CRITICAL_DISCARDS] += 1
        if scored:
            heights[card.color] += 1
            fits ^= 3 << 2 * kind
            if card.rank + 1 < spec.num_ranks:
                fits |= 3 << 2 * (kind + 1)
        else:
            gone[kind] += 1
        held[player] -= 1 << 2 * kind
        if drawn < len(deck):
            new = deck[drawn]
            drawn += 1
            hands[player].append(new)
            allowed[player].append(anything)
            held[player] += 1 << 2 * new
            undealt -= 1 << 2 * new
    row[GameCount.GAMES] += 1
    row[GameCount.UNFINISHED] += not game.is_over
    row[GameCount.BOMBS] += game.is_bombed
    row[GameCount.SCORE] += game.score
    row[GameCount.SCORE_KEPT] += game.score_kept


def _count_answer(
    row: list[int],
    hints: list[tuple[int, tuple[int, ...]]],
    seat_row: int,
    slot: int,
    plays: bool,
    scored: bool,
) -> None:
    """Count a turn as the answer to the hints since the seat's turn before, or as one without a hint."""
    if not hints:
        row[seat_row + SeatCount.UNHINTED_TURNS] += 1
        row[seat_row + SeatCount.UNHINTED_PLAYS] += plays
    for hint_row, touched in hints:
        row[hint_row + HintCount.ANSWERED] += 1
        if slot < 0:
            row[hint_row + HintCount.HINTS_BACK] += 1
        elif not plays:
            row[hint_row + HintCount.DISCARDS] += 1
            row[hint_row + HintCount.DISCARDS_TOUCHED] += slot in touched
        else:
            row[hint_row + HintCount.PLAYS] += 1
            if slot in touched:
                row[hint_row + HintCount.PLAYS_TOUCHED] += 1
                row[hint_row + HintCount.PLAYS_TOUCHED_SCORED] += scored
                if len(touched) > 1:
                    row[hint_row + HintCount.CHOICES] += 1
                    row[hint_row + HintCount.OLDEST] += slot == touched[0]
                    row[hint_row + HintCount.NEWEST] += slot == touched[-1]


def _count_play(row: list[int], seat_row: int, card: Card, scored: bool, allowed: int, unseen: int, fits: int) -> None:
    """Count a play and what its player could know of the card.

    Args:
        row: The counters.
        seat_row: Where those of the player begin.
        card: The card played.
        scored: True when it fitted.
        allowed: Kinds that hints leave possible, both bits of each.
        unseen: Cards in the player's hand and the deck.
        fits: Kinds that fit, both bits of each.
    """
    possible = unseen & allowed
    num_possible = _num_cards(possible)
    row[seat_row + SeatCount.PLAYS] += 1
    row[seat_row + SeatCount.MICROBITS] += _MICROBITS[_num_cards(unseen)] - _MICROBITS[num_possible]
    row[seat_row + SeatCount.MICROCHANCE] += round(MICRO * _num_cards(possible & fits) / num_possible)
    if not possible & ~fits:
        row[seat_row + SeatCount.CERTAIN_PLAYS] += 1
    level = (not allowed & ~_OF_COLOR[card.color]) + 2 * (not allowed & ~_OF_RANK[card.rank])
    row[seat_row + SeatCount.PLAYS_NONE + level] += 1
    if not scored:
        row[seat_row + SeatCount.MISPLAYS] += 1
        row[seat_row + SeatCount.MISPLAYS_NONE + level] += 1


def _is_critical(card: Card, heights: list[int], gone: list[int], num_ranks: int) -> bool:
    """Return True for a card that can still score and of which no other copy is left."""
    lowest = MAX_RANKS * card.color
    if card.rank < heights[card.color] or gone[lowest + card.rank] + 1 < num_copies(card.rank, num_ranks):
        return False
    below = range(heights[card.color], card.rank)
    return all(gone[lowest + rank] < num_copies(rank, num_ranks) for rank in below)


def _num_cards(cards: int) -> int:
    return (cards & _ONES).bit_count() + 2 * (cards & _TWOS).bit_count()


@functools.cache  # at most 25 boards
def _board(num_colors: int, num_ranks: int) -> int:
    return sum(3 << 2 * (MAX_RANKS * color + rank) for color in range(num_colors) for rank in range(num_ranks))
