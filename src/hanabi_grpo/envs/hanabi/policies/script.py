"""Rules over what a player sees as policies: random play, blind play, and the teacher of the warm start."""

import random
from collections.abc import Callable
from itertools import product

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.rules.actions import discard, hint_color, hint_rank, play
from hanabi_grpo.envs.hanabi.rules.view import Action, Knowledge, PlayerView
from hanabi_grpo.errors import SettingsError

Chooser = Callable[[PlayerView, random.Random], Action]
"""A rule: what to do in a position. Draws, if any, come from the generator."""


def script(name: str, choose: Chooser) -> base.Script:
    """Return the policy that follows a rule; it answers in the words of the game."""
    return base.Script(name, lambda seen, rng: move_text(seen, choose(seen.view(), rng)))


def move_text(seen: base.Observation, action: Action) -> str:
    """Return a legal move in the words of the game, which lists the same moves as text and as data."""
    return (seen.legal() or ())[seen.view().legal_actions.index(action)]


def random_policy() -> base.Script:
    """Return the policy that draws evenly among the legal moves."""
    return script("random", _random_move)


def blind() -> base.Script:
    """Return the policy that always plays the oldest card and looks at nothing.

    A learned policy that scores no more than this says nothing about cooperation.
    """
    return script("blind", lambda view, rng: play(0))


def hint_bot(noise: float = 0.0) -> base.Script:
    """Return the bot that makes the move of the first rule that applies.

    1. Play the oldest card that fits whatever it is, given the hints.
    2. With a hint token: over partners in turn order and their cards from the oldest, take the first card that fits
       now and that its holder does not know: hint its rank, or its colour when the rank is known.
    3. Discard the oldest card; where that is not allowed, give a random hint, and without one any legal move.

    Args:
        noise: Share of moves that are drawn evenly among the legal ones, within [0, 1].

    Raises:
        SettingsError: `noise` is no share.
    """
    if not 0.0 <= noise <= 1.0:
        raise SettingsError(f"hint-bot noise={noise}: it is a share of moves; give a number from 0 to 1.")

    def choose(view: PlayerView, rng: random.Random) -> Action:
        if noise and rng.random() < noise:
            return _random_move(view, rng)
        return _certain_play(view) or _useful_hint(view) or _oldest_discard(view) or _random_hint(view, rng)

    return script("hint-bot", choose)


def _random_move(view: PlayerView, rng: random.Random) -> Action:
    return rng.choice(view.legal_actions)


def _certain_play(view: PlayerView) -> Action | None:
    return next((play(slot) for slot, known in enumerate(view.own_hand) if _surely_fits(known, view)), None)


def _surely_fits(known: Knowledge, view: PlayerView) -> bool:
    return all(view.fireworks[color] == rank for color, rank in product(known.colors, known.ranks))


def _useful_hint(view: PlayerView) -> Action | None:
    if not view.hints:
        return None
    for step in range(1, view.num_players):
        seat = (view.player + step) % view.num_players
        for card, known in zip(view.hands[seat], view.knowledge[seat], strict=True):
            if view.fireworks[card.color] != card.rank:
                continue
            if len(known.ranks) > 1:
                return hint_rank(seat, card.rank)
            if len(known.colors) > 1:
                return hint_color(seat, card.color)
    return None


def _oldest_discard(view: PlayerView) -> Action | None:
    action = discard(0)
    return action if action in view.legal_actions else None


def _random_hint(view: PlayerView, rng: random.Random) -> Action:
    hints = [action for action in view.legal_actions if action.kind.startswith("hint")]
    return rng.choice(hints or view.legal_actions)
