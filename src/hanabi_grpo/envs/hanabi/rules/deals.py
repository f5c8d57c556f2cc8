"""Deals: the shuffled deck that a (suite, seed) stands for, the same on every machine and for
ever.
"""

import functools
import hashlib
import re

import numpy as np

from hanabi_grpo.envs.base import is_held_out
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, num_copies
from hanabi_grpo.envs.hanabi.rules.view import Card
from hanabi_grpo.errors import GameParameterError

_SUITE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_MAX_TRIES = 64


def shuffled_deck(spec: GameSpec, suite: str, seed: int) -> tuple[Card, ...]:
    """Return the deck of one deal, first card dealt first.

    Decks come from SHAKE-256 of (board, suite, seed) and nothing else: Python's and NumPy's
    generators may change between versions. The cards are put in the order of 64 hashed bits each:
    every order is equally likely up to 2**-50.

    Half of all decks, chosen by a hash of their cards, belong to training and half are held out: no
    deck of a suite named like "eval" or "test" ever occurs in another suite. Boards with few decks
    (`GameSpec.deals_all_decks`) are the exception: there, which decks can occur would tell players
    about the cards that they must not see, so every suite deals from all decks. What players do on
    decks that they never met is asked there by the suites split-train and split-eval, which are
    halves on every board. (Boards with a handful of decks, such as 1x1, may have none on one side;
    they deal what there is.)

    Args:
        spec: The board; only its colours and ranks matter.
        suite: Name of a stream of deals, e.g. "train", "train-warm-start", "eval".
        seed: 0 to 2**63 - 1; the deal's number within the suite.

    Raises:
        GameParameterError: A malformed suite name or seed.
    """
    if not isinstance(suite, str) or not _SUITE_PATTERN.fullmatch(suite):
        raise GameParameterError(
            f"suite={suite!r}: a suite is 1 to 64 letters, digits, '.', '_' or '-', such as "
            "'train' or 'eval'."
        )
    # NumPy's integers are welcome; bool is an int to Python but a mistake here.
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise GameParameterError(
            f"seed={seed!r}: a deal's seed is a whole number from 0 to 2**63 - 1."
        )
    cards = sorted_deck(spec.num_colors, spec.num_ranks)
    board = f"{spec.num_colors}x{spec.num_ranks}"
    held_out, halves = is_held_out(suite), deals_halves(spec, suite)
    deck = cards
    for attempt in range(_MAX_TRIES):
        stream = hashlib.shake_256(f"hanabi deal v1|{board}|{suite}|{int(seed)}|{attempt}".encode())
        order = np.frombuffer(stream.digest(8 * len(cards)), dtype="<u8").argsort(kind="stable")
        deck = tuple([cards[i] for i in order.tolist()])
        identities = bytes([card.color * spec.num_ranks + card.rank for card in deck])
        side = hashlib.sha256(f"hanabi side v1|{board}|".encode() + identities).digest()[0] & 1
        if not halves or side == held_out:
            break
    return deck


def deals_halves(spec: GameSpec, suite: str) -> bool:
    """Return True when a suite draws from one half of the board's decks, False when from all of
    them.
    """
    return suite.startswith("split-") or not spec.deals_all_decks


@functools.cache  # pure, and at most 25 boards
def sorted_deck(num_colors: int, num_ranks: int) -> tuple[Card, ...]:
    """Return every card of a board, by colour and rank; equal cards are one object."""
    kinds = (Card(color, rank) for color in range(num_colors) for rank in range(num_ranks))
    return tuple(card for card in kinds for _ in range(num_copies(card.rank, num_ranks)))
