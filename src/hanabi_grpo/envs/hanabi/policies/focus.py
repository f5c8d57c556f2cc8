"""The rules of the focus bot.

A hint says to play the newest card that it touches; the oldest card without a hint is discarded
next. These are two ideas of the players at hanabi.github.io (H-Group conventions), in their
simplest form: the *focus* of a hint is the card that it is about, and the *chop* is the card that
is discarded next. Here the focus is always the newest touched card. Every hint is read as a hint to
play, unless its focus surely does not fit. A card on the chop is therefore saved by a hint whose
focus fits or surely does not. A move depends only on the view and on the hints since the player's
own last move.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from hanabi_grpo.envs.hanabi.policies.rules import (
    fits_by_hints,
    hints_to_next,
    last_hint_to_mover,
    next_seat,
    play_likeliest_above,
)
from hanabi_grpo.envs.hanabi.prompts.deductions import FITS, ONLY, Counted
from hanabi_grpo.envs.hanabi.rules.actions import discard, play
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs
from hanabi_grpo.envs.hanabi.rules.view import Action, Card, Knowledge, PlayerView

_LEAST_LIVES_FOR_RISK = 2
"""Minimum lives at which the focus of a hint is played although it may not fit."""
_EVEN_CHANCE = 0.5


class _Hint(NamedTuple):
    """A hint that the next player can be given, and what it touches."""

    action: Action
    touched: tuple[int, ...]
    """Slots, oldest first."""
    focus_card: Card
    """The newest touched card."""
    focus_known: Knowledge
    """What its holder knows about it before the hint."""


def play_focus(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Play the focus of the last hint to the player since its own last move.

    Only if the card may fit and a life can be spared.
    """
    view = beliefs.view
    if view.lives < _LEAST_LIVES_FOR_RISK:
        return None
    focus = _last_focus(view)
    if focus is None or beliefs.chance_to_fit(view.own_hand[focus]) == 0:
        return None
    return play(focus)


def tell_focus(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Give the next player a hint whose focus fits without its holder knowing it.

    It prefers a hint whose focus completes a colour, then the hint that tells most.
    """
    view = beliefs.view
    best_worth = None
    best_action = None
    for hint in _possible_hints(view):
        card = hint.focus_card
        fits = card.rank == view.fireworks[card.color]
        if not fits or fits_by_hints(view, hint.focus_known):
            continue
        completes_color = card.rank == view.num_ranks - 1
        worth = (completes_color, _num_told_something(view, hint), -card.rank)
        if best_worth is None or worth > best_worth:
            best_worth = worth
            best_action = hint.action
    return best_action


def save_chop(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Touch the next player's chop where it is the last card of its kind.

    The hint must cause no loss: its focus fits, or its holder will not play it. The rule does not
    apply while that player knows a card that fits, since it will play that card and not discard.
    """
    view = beliefs.view
    seat = next_seat(view)
    counted = Counted(view)
    chop = _chop(view.knowledge[seat])
    if chop is None or counted.card_word(view.hands[seat][chop]) != ONLY:
        return None
    if any(fits_by_hints(view, known) for known in view.knowledge[seat]):
        return None
    for hint in _possible_hints(view):
        if chop not in hint.touched:
            continue
        focus_fits = counted.card_word(hint.focus_card) == FITS
        if focus_fits or not _may_fit(view, hint):
            return hint.action
    return None


def tell_harmless(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """When no card may be discarded, give a hint whose focus surely does not fit.

    Among these, it gives the first one that touches the most cards.
    """
    view = beliefs.view
    if view.hints < view.max_hints:
        return None
    most_touched = 0
    best_action = None
    for hint in _possible_hints(view):
        if not _may_fit(view, hint) and len(hint.touched) > most_touched:
            most_touched = len(hint.touched)
            best_action = hint.action
    return best_action


def discard_dead(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Discard the first card that can never fit again, whatever it is."""
    view = beliefs.view
    if view.hints == view.max_hints:
        return None
    counted = Counted(view)
    for slot, known in enumerate(view.own_hand):
        if counted.is_dead(known):
            return discard(slot)
    return None


def discard_chop(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Discard the oldest card that no hint has touched, else the oldest."""
    view = beliefs.view
    if view.hints == view.max_hints:
        return None
    chop = _chop(view.own_hand)
    return discard(0 if chop is None else chop)


def play_likeliest(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Play the card that is more likely than not, and most likely, to fit."""
    return play_likeliest_above(beliefs, _EVEN_CHANCE)


def _last_focus(view: PlayerView) -> int | None:
    """Return the focus of the last hint to the player since its own last move, or None."""
    hint = last_hint_to_mover(view)
    return None if hint is None else hint.touched[-1]


def _possible_hints(view: PlayerView) -> Iterator[_Hint]:
    """Yield every hint that the next player can be given."""
    for action, touched in hints_to_next(view):
        yield _make_hint(view, action, touched)


def _make_hint(view: PlayerView, action: Action, touched: tuple[int, ...]) -> _Hint:
    focus = touched[-1]
    return _Hint(
        action=action,
        touched=touched,
        focus_card=view.hands[action.target][focus],
        focus_known=view.knowledge[action.target][focus],
    )


def _chop(hand: tuple[Knowledge, ...]) -> int | None:
    """Return the slot of the oldest card that no hint has touched, or None."""
    for slot, known in enumerate(hand):
        if not known.color_hinted and not known.rank_hinted:
            return slot
    return None


def _num_told_something(view: PlayerView, hint: _Hint) -> int:
    """Return the number of touched cards about which the hint tells something new."""
    count = 0
    for slot in hint.touched:
        known = view.knowledge[hint.action.target][slot]
        values = known.colors if hint.action.kind == "hint_color" else known.ranks
        count += len(values) > 1
    return count


def _may_fit(view: PlayerView, hint: _Hint) -> bool:
    """Return whether the focus may fit, as far as its holder knows after the hint."""
    colors = hint.focus_known.colors
    ranks = hint.focus_known.ranks
    if hint.action.kind == "hint_color":
        colors = (hint.action.value,)
    else:
        ranks = (hint.action.value,)
    return any(view.fireworks[color] in ranks for color in colors)
