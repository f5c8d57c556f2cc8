"""The rules of the save bot: a hint says to play a card or to keep it.

Like the focus bot (`policies.focus`), it takes its ideas from the players at hanabi.github.io
(H-Group conventions) in their simplest form, and a move depends only on the view and on the hints
since the player's own last move.

- A card is *open* if more than one colour and more than one rank are possible for it.
- The *chop* is the oldest open card, or the oldest card if none is open. It is discarded next.
- The *focus* of a hint is the chop if the hint touches it, else the newest touched card that was
  open before, else the newest touched card.
- **Reading.** A colour that touches the chop says to keep it, and so does the highest rank. Any
  other hint says to play its focus if that may fit.
- **Saving.** The bot works out which card the next player would discard by what everybody knows,
  and gives a hint before anything else if the card fits or is the last of its kind, and the hint
  leads to a smaller loss.
- **At the end**, when every further discard costs a turn that is needed, it gives hints instead of
  discarding, and in the last round it plays what may fit.
"""

import math
import random
from collections.abc import Iterator
from typing import Literal, NamedTuple

from hanabi_grpo.envs.hanabi.policies.rules import (
    fits_by_hints,
    hints_to_next,
    last_hint_to_mover,
    next_seat,
    play_likeliest_above,
)
from hanabi_grpo.envs.hanabi.prompts.deductions import (
    DEAD,
    FITS,
    LATER,
    ONLY,
    Counted,
)
from hanabi_grpo.envs.hanabi.rules.actions import discard, play
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs
from hanabi_grpo.envs.hanabi.rules.view import Action, Knowledge, PlayerView

_LEAST_LIVES_FOR_RISK = 2
"""Minimum lives at which a card is played that may not fit."""
_LEAST_LOSS_TO_SAVE = 1.0
"""Minimum loss, in points, that is worth a hint before anything else."""
_LOSSES = {FITS: 1.0, LATER: 0.3, DEAD: 0.0}
"""Points lost by discarding a card that is not the last of its kind, by its use."""
_MOST_SPARE_TURNS = 1
"""Maximum spare turns at which hints are given instead of discarding."""
_LEAST_HINTS_TO_WAIT = 2
"""Minimum hint tokens for that; one is left for the next player."""

Hand = tuple[Knowledge, ...]
"""What a player knows of its cards, oldest first."""


class Reading(NamedTuple):
    """What a hint says."""

    slot: int
    """The focus, in the hand of the player that is told."""
    meaning: Literal["play", "keep"]


class Plan(NamedTuple):
    """What the next player does with its own cards if it is told nothing."""

    kind: Literal["play", "discard"]
    slot: int


class Offer(NamedTuple):
    """A hint that the next player can be given."""

    action: Action
    hand: Hand
    """What the next player knows of its cards after the hint."""
    reading: Reading
    num_told: int
    """Touched cards about which the hint tells something new."""


def save_card(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Give a hint if the next player would discard a card that fits or is the last of its kind.

    Of the hints that lead to the smallest loss, the one that tells of most cards.
    """
    view = beliefs.view
    counted = Counted(view)
    loss_now = _loss(counted, view.knowledge[next_seat(view)])
    if loss_now < _LEAST_LOSS_TO_SAVE:
        return None
    return _least_loss(counted, below=loss_now)


def play_as_told(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Play the focus of the last hint if the hint says so.

    Only if the card may fit and a life can be spared.
    """
    view = beliefs.view
    if view.lives < _LEAST_LIVES_FOR_RISK:
        return None
    reading = last_reading(view)
    if reading is None or reading.meaning != "play":
        return None
    if beliefs.chance_to_fit(view.own_hand[reading.slot]) == 0:
        return None
    return play(reading.slot)


def tell_playable(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Tell the next player to play a card of which it does not know that it fits.

    It prefers the lowest rank, then the hint that tells of most cards.
    """
    view = beliefs.view
    seat = next_seat(view)
    best_worth = None
    best_action = None
    for offer in offers(view):
        slot = offer.reading.slot
        card = view.hands[seat][slot]
        if offer.reading.meaning != "play" or card.rank != view.fireworks[card.color]:
            continue
        if fits_by_hints(view, view.knowledge[seat][slot]):
            continue
        worth = (-card.rank, offer.num_told)
        if best_worth is None or worth > best_worth:
            best_worth = worth
            best_action = offer.action
    return best_action


def play_in_last_round(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Once the deck is empty, play the card that is most likely to fit, if lives allow it."""
    view = beliefs.view
    if view.turns_left is None or view.lives < _LEAST_LIVES_FOR_RISK:
        return None
    return play_likeliest_above(beliefs, 0)


def wait_near_end(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Give a hint instead of discarding when few turns are left to spare.

    Spare turns are those that remain, counting one for each card to draw and for each player in the
    last round, less the points that can still be scored.
    """
    view = beliefs.view
    counted = Counted(view)
    num_missing = sum(counted.reachable) - sum(view.fireworks)
    num_spare = view.deck_size + view.num_players - num_missing
    if num_spare > _MOST_SPARE_TURNS or view.turns_left is not None:
        return None
    if view.hints < _LEAST_HINTS_TO_WAIT:
        return None
    return _least_loss(counted, least_told=1)


def wait_with_all_hints(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Give a hint when no card may be discarded."""
    view = beliefs.view
    if view.hints < view.max_hints:
        return None
    return _least_loss(Counted(view))


def discard_chop(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Discard the chop."""
    view = beliefs.view
    if view.hints == view.max_hints:
        return None
    return discard(_chop(view.own_hand))


def last_reading(view: PlayerView) -> Reading | None:
    """Return what the last hint to the player since its own last move says, or None."""
    hint = last_hint_to_mover(view)
    return None if hint is None else _read(view, hint.action, hint.touched, view.own_hand)


def plan_of(view: PlayerView, hand: Hand) -> Plan | None:
    """Return what the next player would do with its own cards, by what everybody knows of them.

    Args:
        view: The view of the player before it, for what everybody sees.
        hand: What the next player knows of its cards.

    Returns:
        The plan; None if it is the last turn of the game.
    """
    if view.turns_left == 1:
        return None
    for slot, known in enumerate(hand):
        if fits_by_hints(view, known):
            return Plan("play", slot)
    for slot, known in enumerate(hand):
        if _has_been_played(view, known):
            return Plan("discard", slot)
    return Plan("discard", _chop(hand))


def offers(view: PlayerView) -> Iterator[Offer]:
    """Yield the hints that the next player can be given, in the order of `hints_to_next`."""
    for action, touched in hints_to_next(view):
        yield _offer(view, action, touched)


def _offer(view: PlayerView, hint: Action, touched: tuple[int, ...]) -> Offer:
    before = view.knowledge[hint.target]
    hand = []
    num_told = 0
    for slot, known in enumerate(before):
        known_after = _after_hint(known, hint, is_touched=slot in touched)
        is_news = (known_after.colors, known_after.ranks) != (known.colors, known.ranks)
        num_told += slot in touched and is_news
        hand.append(known_after)
    reading = _read(view, hint, touched, tuple(hand))
    return Offer(hint, tuple(hand), reading, num_told)


def _after_hint(known: Knowledge, hint: Action, *, is_touched: bool) -> Knowledge:
    """Return the values that are possible for a card after a hint, whether or not it is touched."""
    is_color = hint.kind == "hint_color"
    values = known.colors if is_color else known.ranks
    if is_touched:
        values = (hint.value,)
    elif hint.value in values:
        values = tuple([value for value in values if value != hint.value])
    else:
        return known
    return Knowledge(
        colors=values if is_color else known.colors,
        ranks=known.ranks if is_color else values,
        color_hinted=known.color_hinted or (is_color and is_touched),
        rank_hinted=known.rank_hinted or (is_touched and not is_color),
    )


def _read(view: PlayerView, hint: Action, touched: tuple[int, ...], hand: Hand) -> Reading:
    """Return what a hint says.

    Args:
        view: The view of any player, for what everybody sees.
        hint: The hint.
        touched: Slots that it touches.
        hand: What the player who is told knows of its cards after the hint.
    """
    open_slots = []
    for slot, known in enumerate(hand):
        num_colors = len(known.colors)
        num_ranks = len(known.ranks)
        # Before the hint, the named attribute of a touched card may have been open.
        is_color_open = num_colors > 1 or (slot in touched and hint.kind == "hint_color")
        is_rank_open = num_ranks > 1 or (slot in touched and hint.kind == "hint_rank")
        if is_color_open and is_rank_open:
            open_slots.append(slot)
    touches_chop = bool(open_slots) and open_slots[0] in touched
    newly_touched = [slot for slot in open_slots if slot in touched]
    focus = touched[-1]
    if touches_chop:
        focus = open_slots[0]
    elif newly_touched:
        focus = newly_touched[-1]
    if touches_chop and _says_keep(hint, view):
        return Reading(focus, "keep")
    if _may_fit(view, hand[focus]):
        return Reading(focus, "play")
    return Reading(focus, "keep")


def _says_keep(hint: Action, view: PlayerView) -> bool:
    """Return whether a hint that touches the chop says to keep it."""
    is_highest_rank = hint.kind == "hint_rank" and hint.value == view.num_ranks - 1
    return hint.kind == "hint_color" or is_highest_rank


def _may_fit(view: PlayerView, known: Knowledge) -> bool:
    """Return whether a card may fit, by the hints on it alone."""
    return any(view.fireworks[color] in known.ranks for color in known.colors)


def _has_been_played(view: PlayerView, known: Knowledge) -> bool:
    """Return whether a card is on its stack already, by the hints on it alone."""
    return all(max(known.ranks) < view.fireworks[color] for color in known.colors)


def _chop(hand: Hand) -> int:
    """Return the slot of the card that is discarded next."""
    for slot, known in enumerate(hand):
        if len(known.colors) > 1 and len(known.ranks) > 1:
            return slot
    return 0


def _least_loss(counted: Counted, *, below: float = math.inf, least_told: int = 0) -> Action | None:
    """Return the hint after which the next player loses least, or None if none is allowed.

    No hint that misleads is allowed. Among equals, it is the one that tells of most cards.

    Args:
        counted: The view of the player who gives it.
        below: Limit, in points, that the loss must not reach.
        least_told: Minimum cards about which the hint tells something new.
    """
    best_worth = None
    best_action = None
    for offer in offers(counted.view):
        loss = _loss_after(counted, offer)
        if loss is None or loss >= below or offer.num_told < least_told:
            continue
        worth = (-loss, offer.num_told)
        if best_worth is None or worth > best_worth:
            best_worth = worth
            best_action = offer.action
    return best_action


def _loss_after(counted: Counted, offer: Offer) -> float | None:
    """Return the points that the next player loses after a hint; None if the hint misleads it."""
    view = counted.view
    if offer.reading.meaning == "play":
        card = view.hands[next_seat(view)][offer.reading.slot]
        return 0.0 if card.rank == view.fireworks[card.color] else None
    return _loss(counted, offer.hand)


def _loss(counted: Counted, hand: Hand) -> float:
    """Return the points that the next player loses by its next discard; 0 if it makes none.

    Args:
        counted: The view of the player before it.
        hand: What the next player knows of its cards.
    """
    view = counted.view
    plan = plan_of(view, hand)
    if plan is None or plan.kind == "play":
        return 0.0
    card = view.hands[next_seat(view)][plan.slot]
    use = counted.card_word(card)
    if use == ONLY:
        return float(view.num_ranks - card.rank)
    return _LOSSES[use]
