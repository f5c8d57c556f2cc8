"""The named rules from which scripted bots are built.

Names and meanings follow Walton-Rivers et al., "Evaluating and Modelling Hanabi-Playing Agents"
(2017). A rule looks at what the mover can work out and returns a move or None. An attribute is
known if hints, including negative ones, leave one value. Slots count from the oldest card, so
"first" means oldest.
"""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hanabi_grpo.envs.hanabi.prompts.deductions import others_moves
from hanabi_grpo.envs.hanabi.rules.actions import discard, hint_color, hint_rank, play
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs, reachable_heights
from hanabi_grpo.envs.hanabi.rules.view import (
    Action,
    Card,
    Event,
    Knowledge,
    PlayerView,
    other_seats,
)

Rule = Callable[[Beliefs, random.Random], Action | None]
"""A move if the rule applies, else None."""


def only_if(condition: Callable[[PlayerView], bool], rule: Rule) -> Rule:
    """Return a rule that applies `rule` only if the condition holds."""

    def conditional_rule(beliefs: Beliefs, rng: random.Random) -> Action | None:
        return rule(beliefs, rng) if condition(beliefs.view) else None

    return conditional_rule


# --- Plays


def play_oldest(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Play the oldest card."""
    return play(0)


def play_what_hints_show(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Play the first card that fits whatever it is, given the hints alone."""
    view = beliefs.view
    for slot, known in enumerate(view.own_hand):
        if fits_by_hints(view, known):
            return play(slot)
    return None


def play_if_certain(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Play the first card that fits and whose attributes are both known."""
    view = beliefs.view
    for slot, known in enumerate(view.own_hand):
        color = _only_value(known.colors)
        rank = _only_value(known.ranks)
        if color is not None and rank is not None and view.fireworks[color] == rank:
            return play(slot)
    return None


def play_safe_card(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Play the first card that fits whatever it is, given the hints and the visible cards."""
    for slot, known in enumerate(beliefs.view.own_hand):
        if beliefs.surely_fits(known):
            return play(slot)
    return None


def play_probably_safe(threshold: float) -> Rule:
    """Return the rule that plays the card most likely to fit; the newest wins ties.

    Args:
        threshold: Minimum chance to fit, within [0, 1], at which the rule applies.
    """

    def rule(beliefs: Beliefs, rng: random.Random) -> Action | None:
        best_chance = threshold
        best_slot = None
        for slot, known in enumerate(beliefs.view.own_hand):
            chance = beliefs.chance_to_fit(known)
            if chance >= best_chance:
                best_chance = chance
                best_slot = slot
        return None if best_slot is None else play(best_slot)

    return rule


# --- Hints


def tell_anyone_about_useful_card(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Hint at the first card that fits, over players in turn order.

    The hint names the card's rank, or its colour if its holder knows the rank.
    """
    view = beliefs.view
    for seat in other_seats(view):
        hint = _hint_at_useful_card(view, seat)
        if hint is not None:
            return hint
    return None


def tell_playable_card_outer(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Do as `tell_anyone_about_useful_card`, for the next player only."""
    view = beliefs.view
    return _hint_at_useful_card(view, next_seat(view))


def tell_unknown(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Name an attribute of the next player's first card with an unknown one, colour first."""
    view = beliefs.view
    if not view.hints:
        return None
    seat = next_seat(view)
    for card, known in _visible_cards(view, seat):
        if _only_value(known.colors) is None:
            return hint_color(seat, card.color)
        if _only_value(known.ranks) is None:
            return hint_rank(seat, card.rank)
    return None


def tell_dispensable(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Hint at the first useless card, over seats from 0, so that its holder knows it is useless."""
    view = beliefs.view
    if not view.hints:
        return None
    lowest_height = min(view.fireworks)
    for seat in range(view.num_players):
        for card, known in _visible_cards(view, seat):
            knows_color = _only_value(known.colors) is not None
            knows_rank = _only_value(known.ranks) is not None
            height = view.fireworks[card.color]
            is_played = card.rank < height
            if not knows_color:
                is_complete = height == view.num_ranks
                # A rank below every stack would show this without the colour.
                needs_color = knows_rank and is_played and card.rank >= lowest_height
                if is_complete or needs_color:
                    return hint_color(seat, card.color)
            if not knows_rank:
                is_below_all = card.rank < lowest_height
                if is_below_all or (knows_color and is_played):
                    return hint_rank(seat, card.rank)
    return None


def tell_randomly(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Name the colour or the rank (a coin flip) of a random card of the next player."""
    view = beliefs.view
    seat = next_seat(view)
    hand = view.hands[seat]
    if not view.hints or not hand:
        return None
    card = hand[rng.randrange(len(hand))]
    if rng.random() < 0.5:
        return hint_color(seat, card.color)
    return hint_rank(seat, card.rank)


def tell_anything(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Give any legal hint at random."""
    hints = [action for action in beliefs.view.legal_actions if action.slot < 0]
    return rng.choice(hints) if hints else None


# --- Discards


def osawa_discard(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Discard the first card that can no longer score, see Osawa, "Solving Hanabi" (2015).

    Cards whose known attributes show this come first, then cards of a known colour whose lowest
    possible rank is out of reach.
    """
    view = beliefs.view
    if view.hints == view.max_hints:
        return None
    heights = reachable_heights(view)
    slot_out_of_reach = None
    for slot, known in enumerate(view.own_hand):
        if _is_known_to_be_useless(view, known, heights):
            return discard(slot)
        color = _only_value(known.colors)
        if slot_out_of_reach is None and color is not None and known.ranks[0] >= heights[color]:
            slot_out_of_reach = slot
    return None if slot_out_of_reach is None else discard(slot_out_of_reach)


def discard_oldest_first(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Discard the oldest card."""
    view = beliefs.view
    return discard(0) if view.hints < view.max_hints else None


def discard_randomly(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Discard a random card."""
    view = beliefs.view
    if view.hints == view.max_hints:
        return None
    return discard(rng.randrange(len(view.own_hand)))


# --- Helpers


def fits_by_hints(view: PlayerView, known: Knowledge) -> bool:
    """Tell whether a card fits whatever it is, given the hints alone."""
    # Two ranks cannot both be the next one of a colour.
    rank = _only_value(known.ranks)
    if rank is None:
        return False
    return all(view.fireworks[color] == rank for color in known.colors)


class PossibleHint(NamedTuple):
    """A hint that a player can be given."""

    action: Action
    touched: tuple[int, ...]
    """Slots that it touches, oldest first."""


def hints_to_next(view: PlayerView) -> Iterator[PossibleHint]:
    """Yield every hint that the next player can be given, colours before ranks, each ascending."""
    if not view.hints:
        return
    seat = next_seat(view)
    hand = view.hands[seat]
    for color in sorted({card.color for card in hand}):
        touched = tuple([slot for slot, card in enumerate(hand) if card.color == color])
        yield PossibleHint(hint_color(seat, color), touched)
    for rank in sorted({card.rank for card in hand}):
        touched = tuple([slot for slot, card in enumerate(hand) if card.rank == rank])
        yield PossibleHint(hint_rank(seat, rank), touched)


def last_hint_to_mover(view: PlayerView) -> Event | None:
    """Return the last hint that touched the player's cards since its own last move, or None."""
    for event in reversed(others_moves(view)):
        if event.action.target == view.player and event.touched:
            return event
    return None


def play_likeliest_above(beliefs: Beliefs, chance: float) -> Action | None:
    """Play the first card most likely to fit, if it is more likely than `chance`; else None."""
    chances = [beliefs.chance_to_fit(known) for known in beliefs.view.own_hand]
    best_chance = max(chances, default=0.0)
    if best_chance <= chance:
        return None
    return play(chances.index(best_chance))


def next_seat(view: PlayerView) -> int:
    """Return the seat that moves after the player of the view."""
    return (view.player + 1) % view.num_players


def _only_value(values: tuple[int, ...]) -> int | None:
    """Return the value that hints leave; None if they leave several."""
    return values[0] if len(values) == 1 else None


def _is_known_to_be_useless(view: PlayerView, known: Knowledge, reachable: tuple[int, ...]) -> bool:
    """Return whether a card's known attributes show that it can no longer score.

    Args:
        view: What the player may know.
        known: What hints say about the card.
        reachable: See `beliefs.reachable_heights`.
    """
    color = _only_value(known.colors)
    rank = _only_value(known.ranks)
    if color is not None:
        height = view.fireworks[color]
        if height == view.num_ranks:
            return True
        return rank is not None and (rank < height or rank >= reachable[color])
    return rank is not None and (rank < min(view.fireworks) or rank >= max(reachable))


def _visible_cards(view: PlayerView, seat: int) -> Iterator[tuple[Card, Knowledge]]:
    """Return a player's cards and what it knows about each; empty for the mover's own seat."""
    is_other = seat != view.player
    return zip(view.hands[seat], view.knowledge[seat], strict=is_other)


def _hint_at_useful_card(view: PlayerView, seat: int) -> Action | None:
    """Return the hint at a hand's first card that fits and that its holder does not fully know."""
    if not view.hints:
        return None
    for card, known in _visible_cards(view, seat):
        if view.fireworks[card.color] == card.rank:
            if _only_value(known.ranks) is None:
                return hint_rank(seat, card.rank)
            if _only_value(known.colors) is None:
                return hint_color(seat, card.color)
    return None
