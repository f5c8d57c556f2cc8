"""Every deal of a board with few decks, played at once.

NumPy arrays have a row for each game, and all games are at the same turn. In shapes, n is the
number of games. Cards are numbers, colour * ranks + rank; moves have OpenSpiel's numbers, see
`rules.game.load_rules`. What a player has seen is stored as a 64-bit hash, because the search for a
best response only needs to know which games look alike to a player.
"""

import itertools
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.envs.hanabi.rules.beliefs import known_deck
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Card, Event, PlayerView

Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Flags = NDArray[np.bool_]
Values = NDArray[np.float64]

NO_CARD = -1
"""Instead of a card's number: an empty slot, no card shown or drawn, or a hidden card."""
NO_LIMIT = -1
"""Instead of the turns left, while cards are left in the deck."""

_FIELD_BITS = 8
"""Bits of each part of a turn in a hash: no board has more moves, kinds of cards, sets of slots."""

# Constants of the finalizer of SplitMix64.
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_INCREMENT = np.uint64(0xD1B54A32D192ED03)
_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)


@dataclass(slots=True, kw_only=True)
class Games:
    """Games in progress, n of them."""

    decks: Numbers
    """(n, cards), first dealt first."""
    hands: Numbers
    """(n, players, slots), oldest card first, `NO_CARD` in empty slots, which come last."""
    heights: Numbers
    """(n, colours): cards on each stack."""
    hints: Numbers
    """(n,): hint tokens left."""
    lives: Numbers
    """(n,): lives left."""
    num_dealt: Numbers
    """(n,): cards that have left the deck."""
    turns_left: Numbers
    """(n,): moves left in the game once the deck is empty, else `NO_LIMIT`."""
    seen: Hashes
    """(n, players): equal if a player has seen the same.

    That is all moves, and the others' cards since the deal."""

    def __len__(self) -> int:
        return len(self.decks)

    def take(self, rows: Numbers) -> "Games":
        """Return copies of these games."""
        taken = {field.name: getattr(self, field.name)[rows] for field in fields(self)}
        return Games(**taken)


class _Turn(NamedTuple):
    """What one turn shows to one player. Arrays are (n,)."""

    moves: Numbers
    """OpenSpiel's number of each game's move."""
    shown: Numbers
    """The card that was played or discarded; `NO_CARD` for hints."""
    touched: Numbers
    """The slots that a hint touched, bit i for slot i; 0 for plays and discards."""
    drawn: Numbers
    """The card that was drawn; `NO_CARD` if none was, and for the player who draws it."""


def all_games(spec: GameSpec) -> Games:
    """Return one game of every deck, dealt."""
    cards = [card_number(spec, card) for card in sorted_deck(spec.num_colors, spec.num_ranks)]
    decks = np.array(sorted(set(itertools.permutations(cards))))
    num_games = len(decks)
    num_dealt = spec.num_players * spec.hand_size
    hands = decks[:, :num_dealt].reshape(num_games, spec.num_players, spec.hand_size)
    seen = []
    for player in range(spec.num_players):
        others_hands = np.delete(hands, player, axis=1)
        seen.append(_hash_deal(others_hands))
    is_deck_empty = num_dealt == spec.deck_size
    return Games(
        decks=decks,
        hands=hands,
        heights=np.zeros((num_games, spec.num_colors), int),
        hints=np.full(num_games, spec.max_hints),
        lives=np.full(num_games, spec.max_lives),
        num_dealt=np.full(num_games, num_dealt),
        turns_left=np.full(num_games, spec.num_players if is_deck_empty else NO_LIMIT),
        seen=np.stack(seen, axis=1),
    )


def legal(spec: GameSpec, games: Games, player: int) -> Flags:
    """Return which moves a player may make.

    Args:
        spec: The board.
        games: n games in which it is this player's turn.
        player: The seat that moves.

    Returns:
        (n, moves), by OpenSpiel's number of the move.
    """
    plays = games.hands[:, player] != NO_CARD
    discards = plays & (games.hints < spec.max_hints)[:, None]
    touches = []
    for hint in hints_of(spec, player):
        is_named = np.isin(games.hands[:, hint.target], hint.cards)
        touches.append(is_named.any(axis=1))
    hints = np.stack(touches, axis=1) & (games.hints > 0)[:, None]
    return np.concatenate([discards, plays, hints], axis=1)


def legal_move(options: Flags, draws: Numbers) -> Numbers:
    """Return a uniformly random legal move for each game.

    Args:
        options: (n, moves), see `legal`.
        draws: (n,), large random numbers.
    """
    is_past_drawn = options.cumsum(axis=1) > (draws % options.sum(axis=1))[:, None]
    return is_past_drawn.argmax(axis=1)


def final_scores(games: Games, keeps: bool) -> Values:
    """Return the points on each table, 0 on a bomb unless it keeps them."""
    points = games.heights.sum(axis=1).astype(float)
    if keeps:
        return points
    return np.where(games.lives == 0, 0.0, points)


def step(spec: GameSpec, games: Games, player: int, moves: Numbers) -> tuple[Games, Flags]:
    """Make one legal move in each of n games.

    Args:
        spec: The board.
        games: n games in which it is this player's turn; they are not changed.
        player: The seat that moves.
        moves: (n,), OpenSpiel's number of each game's move.

    Returns:
        The games after the moves, and (n,) whether each game is over.
    """
    rows = np.arange(len(games))
    hand_size = spec.hand_size

    # The numbers of moves: discards of each slot, plays of each slot, then hints.
    gives_up_card = moves < 2 * hand_size
    is_play = gives_up_card & (moves >= hand_size)
    is_discard = gives_up_card & ~is_play
    # A hint gets the slot past the last one, which no card leaves. Its card is arbitrary, unused.
    slots = np.where(gives_up_card, moves % hand_size, hand_size)
    cards = np.where(gives_up_card, games.hands[rows, player, slots % hand_size], 0)
    colors = cards // spec.num_ranks
    ranks = cards % spec.num_ranks

    scored = is_play & (games.heights[rows, colors] == ranks)
    heights = games.heights.copy()
    heights[rows, colors] += scored
    lives = games.lives - (is_play & ~scored)

    # A discard and a complete colour return a hint token.
    completes_color = scored & (ranks == spec.num_ranks - 1)
    pays_hint = is_discard | (completes_color & (games.hints < spec.max_hints))
    hints = games.hints + pays_hint - ~gives_up_card

    draws = gives_up_card & (games.num_dealt < spec.deck_size)
    next_cards = games.decks[rows, games.num_dealt % spec.deck_size]
    drawn = np.where(draws, next_cards, NO_CARD)
    num_dealt = games.num_dealt + draws
    draws_last_card = draws & (num_dealt == spec.deck_size)
    is_counting_down = games.turns_left > 0
    turns_left = np.where(draws_last_card, spec.num_players, games.turns_left - is_counting_down)

    hands = games.hands.copy()
    hands[:, player] = hands_after(games.hands[:, player], slots, drawn)
    touched = touched_slots(spec, games, player, moves)
    shown = np.where(gives_up_card, cards, NO_CARD)
    seen = []
    for seat in range(spec.num_players):
        drawn_in_sight = np.full(len(games), NO_CARD) if seat == player else drawn
        turn = _Turn(moves, shown, touched, drawn_in_sight)
        seen.append(_hash_turn(games.seen[:, seat], turn))

    after = Games(
        decks=games.decks,
        hands=hands,
        heights=heights,
        hints=hints,
        lives=lives,
        num_dealt=num_dealt,
        turns_left=turns_left,
        seen=np.stack(seen, axis=1),
    )
    is_complete = heights.sum(axis=1) == spec.max_score
    is_over = (lives == 0) | (turns_left == 0) | is_complete
    return after, is_over


def seen_by(spec: GameSpec, view: PlayerView) -> np.uint64:
    """Return what `Games.seen` holds for the player of a view."""
    cards = []
    for card in known_deck(spec, view).cards:
        cards.append(NO_CARD if card is None else card_number(spec, card))
    num_dealt = spec.num_players * spec.hand_size
    hands = np.array(cards[:num_dealt]).reshape(1, spec.num_players, spec.hand_size)
    others_hands = np.delete(hands, view.player, axis=1)
    seen = _hash_deal(others_hands)
    for event in view.events:
        drawn = NO_CARD
        draws = event.card is not None and num_dealt < spec.deck_size
        if draws:
            # A card that the player itself drew is no longer hidden once it is played, but at this
            # turn it was.
            if event.player != view.player:
                drawn = cards[num_dealt]
            num_dealt += 1
        seen = _hash_turn(seen, _public_turn(spec, event, drawn))
    return seen[0]


def mixed(seen: Hashes, numbers: NDArray[np.generic]) -> Hashes:
    """Return 64-bit hashes of both.

    After Steele et al., "Fast splittable generators" (2014).
    """
    bits = (seen ^ numbers.astype(np.uint64)) * _GOLDEN_GAMMA + _INCREMENT
    bits = (bits ^ (bits >> np.uint64(32))) * _MULTIPLIER
    return bits ^ (bits >> np.uint64(29))


def hands_after(hands: Numbers, slots: Numbers, drawn: Numbers) -> Numbers:
    """Return hands after a card has left each and another one has been appended.

    Args:
        hands: (n, slots), the mover's.
        slots: (n,), of the card that leaves; the number of slots if none does.
        drawn: (n,), the card that is appended, or `NO_CARD`.
    """
    hand_size = hands.shape[1]
    with_drawn = np.c_[hands, drawn]
    # Cards shift left from the emptied slot on.
    order = np.arange(hand_size) + (np.arange(hand_size) >= slots[:, None])
    return np.take_along_axis(with_drawn, order, axis=1)


def touched_slots(spec: GameSpec, games: Games, player: int, moves: Numbers) -> Numbers:
    """Return the slots that each game's hint touches as bits, 0 if the move is not a hint.

    Args:
        spec: The board.
        games: n games before the move.
        player: The seat that moves.
        moves: (n,), OpenSpiel's number of each game's move.
    """
    slot_numbers = np.arange(spec.hand_size)
    first_hint = 2 * spec.hand_size
    touched = np.zeros(len(games), int)
    for number, hint in enumerate(hints_of(spec, player), first_hint):
        is_given = moves == number
        is_touched = np.isin(games.hands[is_given, hint.target], hint.cards)
        touched[is_given] = (is_touched << slot_numbers).sum(axis=1)
    return touched


def _hash_deal(others_hands: Numbers) -> Hashes:
    """Return what a player sees of the deal; others' hands are (n, players - 1, slots)."""
    num_games = len(others_hands)
    seen = np.zeros(num_games, np.uint64)
    for cards in others_hands.reshape(num_games, -1).T:
        seen = mixed(seen, cards + 1)
    return seen


def _hash_turn(seen: Hashes, turn: _Turn) -> Hashes:
    """Add a turn to what a player has seen, (n,)."""
    bits = turn.moves
    for part in (turn.shown + 1, turn.touched, turn.drawn + 1):
        bits = bits << _FIELD_BITS | part
    return mixed(seen, bits)


def _public_turn(spec: GameSpec, event: Event, drawn: int) -> _Turn:
    """Return one game's turn as arrays of length one, with the drawn card as the player sees it."""
    move = load_rules(spec).actions[event.player].index(event.action)
    shown = NO_CARD if event.card is None else card_number(spec, event.card)
    touched = sum(1 << slot for slot in event.touched)
    return _Turn(np.array([move]), np.array([shown]), np.array([touched]), np.array([drawn]))


class _Hint(NamedTuple):
    """A hint in terms of the cards that it names."""

    target: int
    """Absolute seat."""
    cards: list[int]
    """Numbers of the kinds of cards with the colour or rank."""


def hints_of(spec: GameSpec, player: int) -> list[_Hint]:
    """Return a player's hints in the order of the moves' numbers: all colours, then all ranks."""
    by_color = np.arange(spec.num_colors * spec.num_ranks).reshape(spec.num_colors, spec.num_ranks)
    by_rank = by_color.T
    seats = [(player + offset) % spec.num_players for offset in range(1, spec.num_players)]
    hints = []
    for table in (by_color, by_rank):
        for seat in seats:
            for cards in table.tolist():
                hints.append(_Hint(seat, cards))
    return hints


def card_number(spec: GameSpec, card: Card) -> int:
    """Return the number of a card, see the module's docstring."""
    return card.color * spec.num_ranks + card.rank
