"""The named rules that scripted bots are lists of.

Names and meanings follow Walton-Rivers et al., "Evaluating and Modelling Hanabi-Playing Agents"
(2017). A rule looks at what the mover can work out and returns a move or None. An attribute is
known when hints, negative ones included, leave one value. Slots count from the oldest card, so
"first" means oldest."""

import random
from collections.abc import Callable, Iterator
from itertools import product

from hanabi_grpo.envs.hanabi.rules.actions import discard, hint_color, hint_rank, play
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs, reachable_heights
from hanabi_grpo.envs.hanabi.rules.view import Action, Card, Knowledge, PlayerView

Rule = Callable[[Beliefs, random.Random], Action | None]
"""A move where the rule applies, else None."""


def only_if(condition: Callable[[PlayerView], bool], rule: Rule) -> Rule:
    """Return `rule`, in force only where the condition holds."""
    return lambda beliefs, rng: rule(beliefs, rng) if condition(beliefs.view) else None


def play_oldest(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Play the oldest card."""
    return play(0)


def play_what_hints_show(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Play the first card that fits whatever it is, given the hints alone."""
    view = beliefs.view
    return next(
        (play(slot) for slot, known in enumerate(view.own_hand) if fits_by_hints(view, known)), None
    )


def play_if_certain(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Play the first card of which both attributes are known and which fits."""
    view = beliefs.view
    for slot, known in enumerate(view.own_hand):
        if (
            len(known.colors) == len(known.ranks) == 1
            and view.fireworks[known.colors[0]] == known.ranks[0]
        ):
            return play(slot)
    return None


def play_safe_card(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Play the first card that fits whatever it is, given the hints and the cards in sight."""
    hand = enumerate(beliefs.view.own_hand)
    return next((play(slot) for slot, known in hand if beliefs.surely_fits(known)), None)


def play_probably_safe(threshold: float) -> Rule:
    """Return the rule: play the card most likely to fit, if that is at least `threshold`; the
    newest of equals.
    """

    def rule(beliefs: Beliefs, rng: random.Random) -> Action | None:
        best, best_slot = threshold, -1
        for slot, known in enumerate(beliefs.view.own_hand):
            chance = beliefs.chance_to_fit(known)
            if chance >= best:
                best, best_slot = chance, slot
        return play(best_slot) if best_slot >= 0 else None

    return rule


def tell_anyone_about_useful_card(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Over players in turn order: name the rank of the first card that fits, or its colour if the
    rank is known.
    """
    view = beliefs.view
    told = (
        _tell_useful(view, (view.player + step) % view.num_players)
        for step in range(1, view.num_players)
    )
    return next((action for action in told if action is not None), None)


def tell_playable_card_outer(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Do as `tell_anyone_about_useful_card`, for the next player only."""
    view = beliefs.view
    return _tell_useful(view, (view.player + 1) % view.num_players)


def tell_unknown(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Name an unknown attribute of the next player's first card that has one, the colour before the
    rank.
    """
    view = beliefs.view
    if not view.hints:
        return None
    seat = (view.player + 1) % view.num_players
    for card, known in _cards_of(view, seat):
        if len(known.colors) > 1:
            return hint_color(seat, card.color)
        if len(known.ranks) > 1:
            return hint_rank(seat, card.rank)
    return None


def tell_dispensable(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Over seats from 0: tell the holder of the first useless card what makes it see that it is
    useless.
    """
    view = beliefs.view
    if not view.hints:
        return None
    lowest = min(view.fireworks)
    for seat in range(view.num_players):
        for card, known in _cards_of(view, seat):
            knows_color, knows_rank = len(known.colors) == 1, len(known.ranks) == 1
            is_played = card.rank < view.fireworks[card.color]
            if not knows_color and (
                view.fireworks[card.color] == view.num_ranks
                or (knows_rank and is_played and card.rank >= lowest)
            ):
                return hint_color(seat, card.color)
            if not knows_rank and (card.rank < lowest or (knows_color and is_played)):
                return hint_rank(seat, card.rank)
    return None


def tell_randomly(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Name colour or rank, by the flip of a coin, of a random card of the next player."""
    view = beliefs.view
    seat = (view.player + 1) % view.num_players
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


def osawa_discard(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Discard the first card that can no longer score, see Osawa, "Solving Hanabi" (2015).

    Cards whose known attributes show it come first, then cards of a known colour whose least rank
    is out of reach."""
    view = beliefs.view
    if view.hints == view.max_hints:
        return None
    lowest = min(view.fireworks)
    heights = reachable_heights(view)
    out_of_reach = -1
    for slot, known in enumerate(view.own_hand):
        color = known.colors[0] if len(known.colors) == 1 else -1
        rank = known.ranks[0] if len(known.ranks) == 1 else -1
        if color >= 0:
            height = view.fireworks[color]
            if height == view.num_ranks or 0 <= rank < height or rank >= heights[color]:
                return discard(slot)
            if out_of_reach < 0 and known.ranks[0] >= heights[color]:
                out_of_reach = slot
        elif 0 <= rank < lowest or rank >= max(heights):
            return discard(slot)
    return discard(out_of_reach) if out_of_reach >= 0 else None


def discard_oldest_first(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Discard the oldest card."""
    view = beliefs.view
    return discard(0) if view.hints < view.max_hints else None


def discard_randomly(beliefs: Beliefs, rng: random.Random) -> Action | None:
    """Discard a random card."""
    view = beliefs.view
    return discard(rng.randrange(len(view.own_hand))) if view.hints < view.max_hints else None


def fits_by_hints(view: PlayerView, known: Knowledge) -> bool:
    """Tell whether a card fits whatever it is, given the hints alone."""
    return all(view.fireworks[color] == rank for color, rank in product(known.colors, known.ranks))


def _cards_of(view: PlayerView, seat: int) -> Iterator[tuple[Card, Knowledge]]:
    """Return another player's cards and what their holder knows of each; nothing for the player's
    own seat.
    """
    return zip(view.hands[seat], view.knowledge[seat], strict=seat != view.player)


def _tell_useful(view: PlayerView, seat: int) -> Action | None:
    for card, known in _cards_of(view, seat) if view.hints else ():
        if view.fireworks[card.color] == card.rank:
            if len(known.ranks) > 1:
                return hint_rank(seat, card.rank)
            if len(known.colors) > 1:
                return hint_color(seat, card.color)
    return None
