"""Every deal of a board with few decks, played at once: NumPy arrays with a row for each game, all
at the same turn.

Cards are numbers, colour * ranks + rank; moves have OpenSpiel's numbers, see
`rules.game.load_rules`. What a player has seen is 64 bits of a hash, since all that a walk needs is
which games look alike to it."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.envs.hanabi.rules.beliefs import known_deck
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Card, PlayerView

Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]


@dataclass(slots=True, kw_only=True)
class Games:
    """Games in progress, n of them."""

    decks: Numbers
    """(n, cards), first dealt first."""
    hands: Numbers
    """(n, players, slots), oldest card first, -1 where there is none."""
    heights: Numbers
    """(n, colours)."""
    hints: Numbers
    lives: Numbers
    num_dealt: Numbers
    turns_left: Numbers
    """Once the deck is empty, else -1."""
    seen: Hashes
    """(n, players): equal where a player has seen the same, moves and cards of others from the deal
    on.
    """

    def __len__(self) -> int:
        return len(self.decks)

    def take(self, rows: Numbers) -> "Games":
        """Return copies of these games."""
        return Games(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def all_games(spec: GameSpec) -> Games:
    """Return one game of every deck, dealt."""
    kinds = [_number(spec, card) for card in sorted_deck(spec.num_colors, spec.num_ranks)]
    decks = np.array(sorted(set(itertools.permutations(kinds))))
    count, players, num_dealt = len(decks), spec.num_players, spec.num_players * spec.hand_size
    hands = decks[:, :num_dealt].reshape(count, players, spec.hand_size)
    seen = np.stack(
        [_first_sight(np.delete(hands, player, axis=1)) for player in range(players)], axis=1
    )
    every = functools.partial(np.full, count)
    return Games(
        decks=decks,
        hands=hands,
        heights=np.zeros((count, spec.num_colors), int),
        hints=every(spec.max_hints),
        lives=every(spec.max_lives),
        num_dealt=every(num_dealt),
        turns_left=every(players if num_dealt == spec.deck_size else -1),
        seen=seen,
    )


def legal(spec: GameSpec, games: Games, player: int) -> NDArray[np.bool_]:
    """Return for every game and number of a move whether the player, whose turn it is, may make
    it.
    """
    holds = games.hands[:, player] >= 0
    discards = holds & (games.hints < spec.max_hints)[:, None]
    touched = [
        np.isin(games.hands[:, target], kinds).any(axis=1) for target, kinds in _hints(spec, player)
    ]
    hints = np.stack(touched, axis=1) & (games.hints > 0)[:, None]
    return np.concatenate([discards, holds, hints], axis=1)


def step(
    spec: GameSpec, games: Games, player: int, moves: Numbers
) -> tuple[Games, NDArray[np.bool_]]:
    """Return the games after a player's legal moves, one a game, and which of them are over."""
    rows, size = np.arange(len(games)), spec.hand_size
    is_card, is_play = moves < 2 * size, (moves >= size) & (moves < 2 * size)
    slot = np.where(is_card, moves % size, size)
    card = np.where(is_card, games.hands[rows, player, slot % size], 0)
    color, rank = card // spec.num_ranks, card % spec.num_ranks
    scored = is_play & (games.heights[rows, color] == rank)
    heights = games.heights.copy()
    heights[rows, color] += scored
    lives = games.lives - (is_play & ~scored)
    # A discard and a complete colour pay a hint back.
    is_paid = (is_card & ~is_play) | (
        scored & (rank == spec.num_ranks - 1) & (games.hints < spec.max_hints)
    )
    draws = is_card & (games.num_dealt < spec.deck_size)
    drawn = np.where(draws, games.decks[rows, games.num_dealt % spec.deck_size], -1)
    # Cards shift left, and the new one comes last.
    order = np.arange(size) + (np.arange(size) >= slot[:, None])
    hands, touched = games.hands.copy(), np.zeros(len(games), int)
    hands[:, player] = np.take_along_axis(np.c_[hands[:, player], drawn], order, axis=1)
    for number, (target, kinds) in enumerate(_hints(spec, player), 2 * size):
        told = moves == number
        touched[told] = (np.isin(games.hands[told, target], kinds) << np.arange(size)).sum(axis=1)
    num_dealt = games.num_dealt + draws
    is_last = draws & (num_dealt == spec.deck_size)
    turns_left = np.where(is_last, spec.num_players, games.turns_left - (games.turns_left > 0))
    shown = np.where(is_card, card, -1)
    seen = [
        _sight(games.seen[:, seat], moves, shown, touched, np.where(seat == player, -1, drawn))
        for seat in range(spec.num_players)
    ]
    after = replace(
        games,
        hands=hands,
        heights=heights,
        hints=games.hints + is_paid - ~is_card,
        lives=lives,
        num_dealt=num_dealt,
        turns_left=turns_left,
        seen=np.stack(seen, axis=1),
    )
    return after, (lives == 0) | (turns_left == 0) | (heights.sum(axis=1) == spec.max_score)


def seen_by(spec: GameSpec, view: PlayerView) -> np.uint64:
    """Return what `Games.seen` holds for the player of a view."""
    cards = [-1 if card is None else _number(spec, card) for card in known_deck(spec, view).cards]
    hands = np.array(cards[: spec.num_players * spec.hand_size]).reshape(
        1, spec.num_players, spec.hand_size
    )
    seen, num_dealt = _first_sight(np.delete(hands, view.player, axis=1)), hands.size
    for event in view.events:
        move = load_rules(spec).actions[event.player].index(event.action)
        shown, drawn = -1, -1
        if event.card is not None:
            shown = _number(spec, event.card)
            if num_dealt < spec.deck_size:
                # A card that the player drew itself is no longer hidden once it is played, but it
                # was at this turn.
                drawn = -1 if event.player == view.player else cards[num_dealt]
                num_dealt += 1
        seen = _sight(
            seen,
            *(
                np.array([one])
                for one in (move, shown, sum(1 << at for at in event.touched), drawn)
            ),
        )
    return seen[0]


def mixed(seen: Hashes, numbers: NDArray[np.generic]) -> Hashes:
    """Return 64 bits that depend on both in no simple way; after Steele et al., "Fast splittable
    generators" (2014).
    """
    bits = (seen ^ numbers.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
        0xD1B54A32D192ED03
    )
    bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
    return bits ^ (bits >> np.uint64(29))


def _first_sight(others: Numbers) -> Hashes:
    """Return what a player sees of the deal; others' hands are (n, players - 1, slots)."""
    seen = np.zeros(len(others), np.uint64)
    for card in others.reshape(len(others), -1).T:
        seen = mixed(seen, card + 1)
    return seen


def _sight(
    seen: Hashes, moves: Numbers, shown: Numbers, touched: Numbers, drawn: Numbers
) -> Hashes:
    """Add a turn: its move, the card that it showed, the slots that it touched and the card that
    was drawn; -1: none.

    Each has 8 bits: no board has more moves, kinds of cards or sets of slots.
    """
    return mixed(seen, (((moves << 8 | shown + 1) << 8) | touched) << 8 | drawn + 1)


def _hints(spec: GameSpec, player: int) -> Sequence[tuple[int, Sequence[int]]]:
    """Return the seat and the kinds of cards that each hint names, in the order of the moves'
    numbers.
    """
    kinds = np.arange(spec.num_colors * spec.num_ranks).reshape(spec.num_colors, spec.num_ranks)
    seats = [(player + offset) % spec.num_players for offset in range(1, spec.num_players)]
    return [(seat, told) for table in (kinds, kinds.T) for seat in seats for told in table.tolist()]


def _number(spec: GameSpec, card: Card) -> int:
    return card.color * spec.num_ranks + card.rank
