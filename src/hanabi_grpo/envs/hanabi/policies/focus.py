"""The rules of the focus bot: a hint says to play the newest card that it touches; the oldest
untold card goes next.

Two ideas of the players at hanabi.github.io (H-Group conventions), in their simplest form: the
*focus* of a hint is the card that it is about, the *chop* the one that is discarded next. Here the
focus is always the newest touched card. Every hint is read as one to play, unless its focus surely
does not fit; so a card on the chop is saved by a hint whose focus fits, or cannot. All that a move
depends on is in the view and in the hints since the player's own last move."""

import random
from collections.abc import Iterator

from hanabi_grpo.envs.hanabi.policies.rules import fits_by_hints
from hanabi_grpo.envs.hanabi.prompts.deductions import FITS, ONLY, Counted, others_moves
from hanabi_grpo.envs.hanabi.rules.actions import discard, hint_color, hint_rank, play
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs
from hanabi_grpo.envs.hanabi.rules.view import Action, Knowledge, PlayerView


def play_focus(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Play the focus of the last hint to the player since its own last move, if it may fit and a
    life can be spared.
    """
    view = beliefs.view
    told = [
        event.touched
        for event in others_moves(view)
        if event.action.target == view.player and event.touched
    ]
    if not told or view.lives < 2:
        return None
    slot = told[-1][-1]
    return play(slot) if beliefs.chance_to_fit(view.own_hand[slot]) > 0 else None


def tell_focus(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Give the next player a hint whose focus fits and does not know it: a last rank first, then
    what tells most.
    """
    view, seat = beliefs.view, _next(beliefs.view)
    best: tuple[tuple[bool, int, int], Action] | None = None
    for action, touched in _hints(view):
        card, known = view.hands[seat][touched[-1]], view.knowledge[seat][touched[-1]]
        if card.rank != view.fireworks[card.color] or fits_by_hints(view, known):
            continue
        new = sum(_is_new(view.knowledge[seat][slot], action) for slot in touched)
        worth = card.rank == view.num_ranks - 1, new, -card.rank
        if best is None or worth > best[0]:
            best = worth, action
    return best[1] if best else None


def save_chop(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Touch the next player's chop where it is the only card of its kind that is left, by a hint
    that leads to no loss.

    Not while that player has a card that it knows to fit, and will play instead of discarding.
    """
    view, seat, counted = beliefs.view, _next(beliefs.view), Counted(beliefs.view)
    chop = _chop(view.knowledge[seat])
    if chop is None or counted.card(view.hands[seat][chop]) != ONLY:
        return None
    if any(fits_by_hints(view, known) for known in view.knowledge[seat]):
        return None
    for action, touched in _hints(view):
        focus = touched[-1]
        fits = counted.card(view.hands[seat][focus]) == FITS
        if chop in touched and (fits or not _may_fit(view, view.knowledge[seat][focus], action)):
            return action
    return None


def tell_harmless(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """When no card may be discarded: the hint that touches most cards and whose focus surely does
    not fit.
    """
    view, seat = beliefs.view, _next(beliefs.view)
    if view.hints < view.max_hints:
        return None
    harmless = [
        (len(touched), action)
        for action, touched in _hints(view)
        if not _may_fit(view, view.knowledge[seat][touched[-1]], action)
    ]
    return max(harmless, key=lambda one: one[0])[1] if harmless else None


def discard_dead(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Discard the first card that can never fit again, whatever it is."""
    view, counted = beliefs.view, Counted(beliefs.view)
    if view.hints == view.max_hints:
        return None
    return next(
        (discard(slot) for slot, known in enumerate(view.own_hand) if counted.is_dead(known)), None
    )


def discard_chop(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Discard the oldest card that no hint has touched, else the oldest."""
    view = beliefs.view
    return discard(_chop(view.own_hand) or 0) if view.hints < view.max_hints else None


def play_likeliest(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Play the card that is more likely than not, and most likely, to fit."""
    chances = [beliefs.chance_to_fit(known) for known in beliefs.view.own_hand]
    best = max(chances, default=0.0)
    return play(chances.index(best)) if best > 0.5 else None


def _next(view: PlayerView) -> int:
    return (view.player + 1) % view.num_players


def _hints(view: PlayerView) -> Iterator[tuple[Action, list[int]]]:
    """Yield every hint that the next player can be given, and the slots that it touches, oldest
    first.
    """
    seat = _next(view)
    hand = view.hands[seat] if view.hints else ()
    for color in dict.fromkeys(sorted(card.color for card in hand)):
        yield (
            hint_color(seat, color),
            [slot for slot, card in enumerate(hand) if card.color == color],
        )
    for rank in dict.fromkeys(sorted(card.rank for card in hand)):
        yield hint_rank(seat, rank), [slot for slot, card in enumerate(hand) if card.rank == rank]


def _chop(hand: tuple[Knowledge, ...]) -> int | None:
    untold = (
        slot for slot, known in enumerate(hand) if not known.color_hinted and not known.rank_hinted
    )
    return next(untold, None)


def _is_new(known: Knowledge, action: Action) -> bool:
    return len(known.colors if action.kind == "hint_color" else known.ranks) > 1


def _may_fit(view: PlayerView, known: Knowledge, action: Action) -> bool:
    """Return whether a card may fit for all that its holder knows by hints, `action` included."""
    colors = (action.value,) if action.kind == "hint_color" else known.colors
    ranks = (action.value,) if action.kind == "hint_rank" else known.ranks
    return any(view.fireworks[color] == rank for color in colors for rank in ranks)
