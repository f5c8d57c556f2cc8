"""Every deal of a board with few decks, played at once by players that read one message per turn.

A message contains what the compact style shows with counted cards (HANABI_MEMORY=turn,
HANABI_DEDUCTIONS=counted or joined): the table, what hints leave possible for each card, what the
visible cards imply for it (`prompts.deductions.Counted`), and the others' moves since the reader's
own last one. As in `all_deals`, NumPy arrays have a row for each of n games. A 64-bit hash stands
for a message; equal messages have equal hashes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hanabi_grpo.envs.hanabi.policies.all_deals import (
    NO_CARD,
    NO_LIMIT,
    Flags,
    Games,
    Hashes,
    Numbers,
    all_games,
    card_number,
    hands_after,
    hints_of,
    mixed,
    step,
    touched_slots,
)
from hanabi_grpo.envs.hanabi.prompts.deductions import NUM_CHANCE_STEPS, others_moves
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, num_copies
from hanabi_grpo.envs.hanabi.rules.view import Knowledge, PlayerView

# Words for another player's card and for an own card, see `deductions.CARD_WORDS` and
# `OWN_CARD_WORDS`. The word for an own card that may fit is its chance in fifths, 0 to 4.
FITS, LATER, ONLY, DEAD = range(4)
OWN_SURE = NUM_CHANCE_STEPS
OWN_DEAD = NUM_CHANCE_STEPS + 1
NO_WORD = NUM_CHANCE_STEPS + 2
"""Instead of a word: an empty slot."""

_FIELD_BITS = 8
"""Bits of each part that enters a hash."""


@dataclass(slots=True, kw_only=True)
class Tables:
    """n games in progress, with what hints and moves have shown in each."""

    games: Games
    colors: Numbers
    """(n, players, slots): the colours that hints leave possible, bit i for colour i; 0 in empty
    slots."""
    ranks: Numbers
    """(n, players, slots): the ranks, likewise."""
    discards: Numbers
    """(n, kinds): discarded and misplayed cards of each kind."""
    others_moves: Hashes
    """(n, players): equal if the others have made the same moves since the player's own last
    one."""

    def __len__(self) -> int:
        return len(self.games)

    def take(self, rows: Numbers) -> "Tables":
        """Return copies of these tables."""
        return Tables(
            games=self.games.take(rows),
            colors=self.colors[rows],
            ranks=self.ranks[rows],
            discards=self.discards[rows],
            others_moves=self.others_moves[rows],
        )


@dataclass(slots=True, kw_only=True)
class Words:
    """What follows from the visible cards, as one player's message says it."""

    kinds: Numbers
    """(n, kinds): `FITS`, `LATER`, `ONLY` or `DEAD` for a card of each kind in another hand."""
    own: Numbers
    """(n, slots): fifths of the chance to fit, `OWN_SURE`, `OWN_DEAD` or `NO_WORD`."""


def all_tables(spec: GameSpec) -> Tables:
    """Return one table of every deck, dealt."""
    games = all_games(spec)
    shape = games.hands.shape
    return Tables(
        games=games,
        colors=np.full(shape, _all_values(spec.num_colors)),
        ranks=np.full(shape, _all_values(spec.num_ranks)),
        discards=np.zeros((len(games), spec.num_colors * spec.num_ranks), int),
        others_moves=np.zeros(shape[:2], np.uint64),
    )


def move_on(spec: GameSpec, tables: Tables, player: int, moves: Numbers) -> tuple[Tables, Flags]:
    """Make one legal move on each of n tables, see `all_deals.step`."""
    games = tables.games
    after, is_over = step(spec, games, player, moves)
    rows = np.arange(len(games))
    gives_up_card = moves < 2 * spec.hand_size
    slots = np.where(gives_up_card, moves % spec.hand_size, spec.hand_size)
    cards = np.where(gives_up_card, games.hands[rows, player, slots % spec.hand_size], 0)
    scored = after.heights.sum(axis=1) > games.heights.sum(axis=1)

    discards = tables.discards.copy()
    discards[rows, cards] += gives_up_card & ~scored
    colors = tables.colors.copy()
    ranks = tables.ranks.copy()
    for values, count in ((colors, spec.num_colors), (ranks, spec.num_ranks)):
        unknown = np.full(len(games), _all_values(count))
        values[:, player] = hands_after(values[:, player], slots, unknown)
    touched = touched_slots(spec, games, player, moves)
    _learn(spec, colors, ranks, player, moves, touched)
    is_empty = after.hands == NO_CARD
    colors[is_empty] = 0
    ranks[is_empty] = 0

    shown = np.where(gives_up_card, cards + 1, 0)
    others = np.arange(spec.num_players) != player
    with_move = mixed_move(tables.others_moves, moves, shown, touched, scored)
    return (
        Tables(
            games=after,
            colors=colors,
            ranks=ranks,
            discards=discards,
            others_moves=np.where(others, with_move, np.uint64(0)),
        ),
        is_over,
    )


def words_of(spec: GameSpec, tables: Tables, player: int) -> Words:
    """Return what a player's message says about the cards, as in `deductions.Counted`."""
    kinds = np.arange(spec.num_colors * spec.num_ranks)
    kind_colors = kinds // spec.num_ranks
    kind_ranks = kinds % spec.num_ranks
    copies = np.array([num_copies(rank, spec.num_ranks) for rank in kind_ranks.tolist()])
    heights = tables.games.heights[:, kind_colors]
    num_left = copies - tables.discards
    # A stack ends below the first kind whose copies are all gone.
    is_blocked = np.zeros(num_left.shape, bool)
    for kind in kinds.tolist():
        below = kind - 1 if kind_ranks[kind] else None
        is_gone = (num_left[:, kind] == 0) & (kind_ranks[kind] >= heights[:, kind])
        is_blocked[:, kind] = is_gone if below is None else is_gone | is_blocked[:, below]
    fits = kind_ranks == heights
    is_dead = ~fits & ((kind_ranks < heights) | is_blocked)
    words = np.where(fits, FITS, np.where(is_dead, DEAD, np.where(num_left == 1, ONLY, LATER)))

    num_unseen = num_left - (kind_ranks < heights)
    for seat in range(spec.num_players):
        if seat != player:
            hand = tables.games.hands[:, seat]
            num_unseen = num_unseen - (hand[:, :, None] == kinds).sum(axis=1)
    of_color = tables.colors[:, player, :, None] >> kind_colors & 1
    of_rank = tables.ranks[:, player, :, None] >> kind_ranks & 1
    possible = of_color * of_rank * num_unseen[:, None, :]
    total = possible.sum(axis=2)
    num_fitting = (possible * fits[:, None, :]).sum(axis=2)
    num_useful = (possible * (words != DEAD)[:, None, :]).sum(axis=2)
    # The same division as in `Beliefs.chance_to_fit`, so that both round alike.
    fifths = (NUM_CHANCE_STEPS * (num_fitting / np.maximum(total, 1))).astype(int)
    own = np.where(num_useful == 0, OWN_DEAD, np.where(num_fitting == total, OWN_SURE, fifths))
    is_empty = tables.games.hands[:, player] == NO_CARD
    return Words(kinds=words, own=np.where(is_empty, NO_WORD, own))


def messages(spec: GameSpec, tables: Tables, player: int, words: Words) -> Hashes:
    """Return what a player reads on each table.

    Args:
        spec: The board.
        tables: n tables.
        player: The player, whose turn it is.
        words: See `words_of`.
    """
    games = tables.games
    num_undealt = spec.deck_size - games.num_dealt
    read = tables.others_moves[:, player]
    read = _with(read, games.lives, games.hints, num_undealt, games.turns_left - NO_LIMIT)
    read = _with(read, *games.heights.T)
    for slot in range(spec.hand_size):
        known = (tables.colors[:, player, slot], tables.ranks[:, player, slot])
        read = _with(read, words.own[:, slot], *known)
    rows = np.arange(len(games))
    for seat in range(spec.num_players):
        if seat == player:
            continue
        for slot in range(spec.hand_size):
            card = games.hands[:, seat, slot]
            word = np.where(card == NO_CARD, 0, words.kinds[rows, card])
            known = (tables.colors[:, seat, slot], tables.ranks[:, seat, slot])
            read = _with(read, card - NO_CARD, word, *known)
    return read


def message_of(spec: GameSpec, view: PlayerView) -> np.uint64:
    """Return what `messages` returns for a view's table and player."""
    table = _table_of(spec, view)
    return messages(spec, table, view.player, words_of(spec, table, view.player))[0]


def _table_of(spec: GameSpec, view: PlayerView) -> Tables:
    """Return the one table of a view; what its player does not know is arbitrary."""
    hands = np.full((1, spec.num_players, spec.hand_size), NO_CARD)
    colors = np.zeros(hands.shape, int)
    ranks = np.zeros(hands.shape, int)
    for seat, knowledge in enumerate(view.knowledge):
        for slot, known in enumerate(knowledge):
            is_own = seat == view.player
            hands[0, seat, slot] = 0 if is_own else card_number(spec, view.hands[seat][slot])
            colors[0, seat, slot], ranks[0, seat, slot] = _bits(known)
    discards = np.zeros((1, spec.num_colors * spec.num_ranks), int)
    for card in view.discards:
        discards[0, card_number(spec, card)] += 1
    moves = np.zeros((1, spec.num_players), np.uint64)
    for event in others_moves(view):
        move = load_rules(spec).actions[event.player].index(event.action)
        shown = 0 if event.card is None else card_number(spec, event.card) + 1
        touched = sum(1 << slot for slot in event.touched)
        parts = [np.array([part]) for part in (move, shown, touched, int(event.scored))]
        moves = mixed_move(moves, *parts)
    turns_left = NO_LIMIT if view.turns_left is None else view.turns_left
    games = Games(
        decks=np.zeros((1, spec.deck_size), int),
        hands=hands,
        heights=np.array([view.fireworks]),
        hints=np.array([view.hints]),
        lives=np.array([view.lives]),
        num_dealt=np.array([spec.deck_size - view.deck_size]),
        turns_left=np.array([turns_left]),
        seen=np.zeros((1, spec.num_players), np.uint64),
    )
    return Tables(games=games, colors=colors, ranks=ranks, discards=discards, others_moves=moves)


def mixed_move(
    others_moves: Hashes, moves: Numbers, shown: Numbers, touched: Numbers, scored: Numbers
) -> Hashes:
    """Return what others have done, (n, players), with one more move; its parts are (n,)."""
    bits = moves
    for part in (shown, touched, scored.astype(int)):
        bits = bits << _FIELD_BITS | part
    return mixed(others_moves, (bits + 1)[:, None])


def _learn(
    spec: GameSpec, colors: Numbers, ranks: Numbers, player: int, moves: Numbers, touched: Numbers
) -> None:
    """Record what hints tell, also about cards they do not touch; changes colors and ranks."""
    for number, target, values, bit in _hint_bits(spec, colors, ranks, player):
        is_given = moves == number
        is_touched = touched[is_given, None] >> np.arange(spec.hand_size) & 1
        known = values[is_given, target]
        values[is_given, target] = np.where(is_touched, known & bit, known & ~bit)


def _hint_bits(
    spec: GameSpec, colors: Numbers, ranks: Numbers, player: int
) -> Iterator[tuple[int, int, Numbers, int]]:
    """Yield each hint's number as a move, its target, the array that it concerns, and its bit."""
    for number, hint in enumerate(hints_of(spec, player), 2 * spec.hand_size):
        action = load_rules(spec).actions[player][number]
        values = colors if action.kind == "hint_color" else ranks
        yield number, hint.target, values, 1 << action.value


def _with(read: Hashes, *parts: Numbers) -> Hashes:
    """Add parts of a message, each (n,) with values below 256."""
    bits = np.zeros(len(read), int)
    for part in parts:
        bits = bits << _FIELD_BITS | part
    return mixed(read, bits)


def _all_values(count: int) -> int:
    """Return the set of all `count` values, as bits."""
    return (1 << count) - 1


def _bits(known: Knowledge) -> tuple[int, int]:
    """Return what hints leave possible for a card, as bits: colours, ranks."""
    colors = sum(1 << color for color in known.colors)
    ranks = sum(1 << rank for rank in known.ranks)
    return colors, ranks
