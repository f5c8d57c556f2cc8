"""Deals: the shuffled deck that a (suite, seed) stands for, the same on every machine, forever."""

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from hanabi_grpo.envs.base import is_held_out
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, num_copies, num_decks
from hanabi_grpo.envs.hanabi.rules.view import Card
from hanabi_grpo.errors import GameParameterError
from hanabi_grpo.types import ALL_STARTS

_SUITE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_NUM_SEEDS = 2**63
_MAX_ATTEMPTS = 64
"""Most shuffles until a deck of the wanted half is found; each finds one with probability 1/2."""
_BYTES_PER_CARD = 8
"""Bytes of the hash that sorts the cards."""


def shuffled_deck(spec: GameSpec, suite: str, seed: int) -> tuple[Card, ...]:
    """Return the deck of one deal, first card dealt first.

    Decks come from SHAKE-256 of (board, suite, seed) and nothing else: Python's and NumPy's
    generators may change between versions. The cards are sorted by 64 hashed bits each: every order
    is equally likely up to 2**-50.

    Half of all decks, chosen by a hash of their cards, belong to training and half are held out: no
    deck of a suite named like "eval" or "test" ever occurs in another suite. Boards with few decks
    (`GameSpec.deals_all_decks`) are the exception: knowing which decks can occur would tell players
    about hidden cards, so every suite deals from all decks. To test players on unseen decks there,
    use the suites split-train and split-eval, which are halves on every board. (On boards with a
    handful of decks, such as 1x1, one half may be empty; its suites then deal from all decks.) The
    suite `types.ALL_STARTS` numbers all decks of such a board, see `numbered_deck`.

    Args:
        spec: The board; only its colours and ranks matter.
        suite: Name of a stream of deals, e.g. "train", "train-warm-start", "eval".
        seed: 0 to 2**63 - 1; the deal's number within the suite.

    Returns:
        A tuple of `spec.deck_size` cards. For example `("laptop", "train", 17)` is
        R1 Y1 Y1 R1 Y1 Y2 R1 R2.

    Raises:
        GameParameterError: A malformed suite name or seed, or a suite that the board does not have.
    """
    _check_suite(suite)
    _check_seed(seed)
    if suite == ALL_STARTS:
        return numbered_deck(spec, int(seed))
    cards = sorted_deck(spec.num_colors, spec.num_ranks)
    board = f"{spec.num_colors}x{spec.num_ranks}"
    takes_any_deck = not deals_halves(spec, suite)
    wants_held_out = is_held_out(suite)
    deck = cards
    for attempt in range(_MAX_ATTEMPTS):
        key = f"hanabi deal v1|{board}|{suite}|{int(seed)}|{attempt}"
        stream = hashlib.shake_256(key.encode())
        sort_keys = np.frombuffer(stream.digest(_BYTES_PER_CARD * len(cards)), dtype="<u8")
        order = sort_keys.argsort(kind="stable")
        deck = tuple([cards[i] for i in order.tolist()])
        if takes_any_deck or _is_held_out_deck(spec, board, deck) == wants_held_out:
            break
    return deck


def numbered_deck(spec: GameSpec, number: int) -> tuple[Card, ...]:
    """Return one of all decks of a board by its number.

    Decks are in the order of their cards by colour and rank: deck 0 is sorted.

    Args:
        spec: The board; only its colours and ranks matter.
        number: 0 or more, modulo the number of decks.

    Raises:
        GameParameterError: The board has too many decks to deal all of them.
    """
    num_orders = num_decks(spec.num_colors, spec.num_ranks)
    if not spec.deals_all_decks:
        raise GameParameterError(
            f"suite {ALL_STARTS!r}: only for boards that are small enough to deal all their decks; "
            f"{spec.preset} has {num_orders:.3g}. Choose eval or test."
        )
    counts = Counter(sorted_deck(spec.num_colors, spec.num_ranks))
    number %= num_orders
    deck: list[Card] = []
    while counts.total():
        for card in counts:
            # The orders of the remaining cards that begin with this card.
            num_with_card = num_orders * counts[card] // counts.total()
            if number < num_with_card:
                break
            number -= num_with_card
        num_orders = num_with_card
        counts[card] -= 1
        deck.append(card)
    return tuple(deck)


def deals_halves(spec: GameSpec, suite: str) -> bool:
    """Return True if a suite draws from one half of the board's decks, False if from all."""
    return suite.startswith("split-") or not spec.deals_all_decks


@functools.cache  # pure, and at most 25 boards
def sorted_deck(num_colors: int, num_ranks: int) -> tuple[Card, ...]:
    """Return every card of a board, by colour and rank; equal cards are one object."""
    cards: list[Card] = []
    for color in range(num_colors):
        for rank in range(num_ranks):
            cards += [Card(color, rank)] * num_copies(rank, num_ranks)
    return tuple(cards)


def _is_held_out_deck(spec: GameSpec, board: str, deck: Sequence[Card]) -> bool:
    """Return whether a deck is in the half for evaluation: one bit of a hash of its cards."""
    kinds = bytes([card.color * spec.num_ranks + card.rank for card in deck])
    digest = hashlib.sha256(f"hanabi side v1|{board}|".encode() + kinds).digest()
    return bool(digest[0] & 1)


def _check_suite(suite: str) -> None:
    if not isinstance(suite, str) or not _SUITE_PATTERN.fullmatch(suite):
        raise GameParameterError(
            f"suite={suite!r}: must be 1 to 64 letters, digits, '.', '_' or '-', such as 'train' "
            "or 'eval'."
        )


def _check_seed(seed: int) -> None:
    # NumPy integers are accepted; bool is an int to Python but a mistake here.
    is_integer = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not is_integer or not 0 <= seed < _NUM_SEEDS:
        raise GameParameterError(f"seed={seed!r}: must be a whole number from 0 to 2**63 - 1.")
