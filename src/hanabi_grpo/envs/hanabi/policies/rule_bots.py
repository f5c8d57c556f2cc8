"""Bots that are ordered lists of named rules: blind play, the hint bot, IGGI, Piers, Outer, Flawed
and the focus bot.

IGGI to Flawed: Walton-Rivers et al., "Evaluating and Modelling Hanabi-Playing Agents" (2017). Cards
shift left when one leaves the hand, as in OpenSpiel; with fixed slots, as in the paper's engine,
scores are up to half a point lower."""

import random
from collections.abc import Mapping

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.policies import focus, rules
from hanabi_grpo.envs.hanabi.policies.rules import Rule, only_if
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs
from hanabi_grpo.envs.hanabi.rules.view import Action, PlayerView

RULE_BOTS: Mapping[str, tuple[Rule, ...]] = {
    # A learned policy that scores no more than this says nothing about cooperation.
    "blind": (rules.play_oldest,),
    # The teacher of the warm start: it looks at hints alone, not at the cards in sight.
    "hint-bot": (
        rules.play_what_hints_show,
        rules.tell_anyone_about_useful_card,
        rules.discard_oldest_first,
        rules.tell_anything,
    ),
    "iggi": (
        rules.play_if_certain,
        rules.play_safe_card,
        rules.tell_anyone_about_useful_card,
        rules.osawa_discard,
        rules.discard_oldest_first,
        rules.tell_randomly,
    ),
    "piers": (
        # The paper begins with PlayProbablySafe(0.0) for an empty deck. In its engine a player's
        # deck holds that player's own cards too and is never empty, so the published scores are
        # those of the rules below.
        rules.play_safe_card,
        only_if(lambda view: view.lives > 1, rules.play_probably_safe(0.6)),
        rules.tell_anyone_about_useful_card,
        only_if(lambda view: view.hints < 4, rules.tell_dispensable),
        rules.osawa_discard,
        rules.discard_oldest_first,
        rules.tell_randomly,
        rules.discard_randomly,
    ),
    "outer": (
        rules.play_safe_card,
        rules.osawa_discard,
        rules.tell_playable_card_outer,
        rules.tell_unknown,
        rules.discard_randomly,
    ),
    # Past the others on the whole board, and without a memory of its own: a teacher where
    # HANABI_MEMORY=turn.
    "focus-bot": (
        focus.play_focus,
        rules.play_safe_card,
        focus.save_chop,
        focus.tell_focus,
        focus.tell_harmless,
        focus.discard_dead,
        focus.discard_chop,
        focus.play_likeliest,
        rules.tell_anything,
    ),
    "flawed": (
        rules.play_safe_card,
        rules.play_probably_safe(0.25),
        rules.tell_randomly,
        rules.osawa_discard,
        rules.discard_oldest_first,
        rules.discard_randomly,
    ),
}
"""The rules of each bot, in the order in which they are tried."""


def rule_bot(name: str, noise: float = 0.0) -> base.Script:
    """Return one of `RULE_BOTS`: it makes the move of the first rule that applies; where none does,
    a random legal one.

    `noise` is the share of moves, within [0, 1], that are drawn evenly among the legal ones.
    """

    def choose(seen: base.Observation, rng: random.Random) -> str:
        view = seen.view()
        is_noise = noise > 0 and rng.random() < noise
        return move_text(
            seen, rng.choice(view.legal_actions) if is_noise else rule_move(name, view, rng)
        )

    return base.Script(name, choose)


def rule_move(name: str, view: PlayerView, rng: random.Random) -> Action:
    """Return what the bot of this name does where it sees `view`."""
    beliefs = Beliefs(view)
    moves = (rule(beliefs, rng) for rule in RULE_BOTS[name])
    return next((move for move in moves if move is not None), None) or rng.choice(
        view.legal_actions
    )


def move_text(seen: base.Observation, action: Action) -> str:
    """Return a legal move in the words of the game, which lists the same moves as text and as
    data.
    """
    return (seen.legal() or ())[seen.view().legal_actions.index(action)]
