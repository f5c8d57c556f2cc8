"""IGGI, Piers, Outer and Flawed: bots that are ordered lists of named rules.

Source: Walton-Rivers et al., "Evaluating and Modelling Hanabi-Playing Agents" (2017). Cards shift left when one
leaves the hand, as in OpenSpiel; with fixed slots, as in the paper's engine, scores are up to half a point lower.
"""

import random
from collections.abc import Mapping
from types import MappingProxyType

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.policies import rules
from hanabi_grpo.envs.hanabi.policies.beliefs import Beliefs
from hanabi_grpo.envs.hanabi.policies.rules import Rule, only_if
from hanabi_grpo.envs.hanabi.policies.script import script
from hanabi_grpo.envs.hanabi.rules.view import Action, PlayerView

RULE_BOTS: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "iggi": (
            rules.play_if_certain,
            rules.play_safe_card,
            rules.tell_anyone_about_useful_card,
            rules.osawa_discard,
            rules.discard_oldest_first,
            rules.tell_randomly,
        ),
        "piers": (
            # The paper begins with PlayProbablySafe(0.0) for an empty deck. In its engine a player's deck holds that
            # player's own cards too and is never empty, so the published scores are those of the rules below.
            rules.play_safe_card,
            only_if(rules.has_lives_to_spare, rules.play_probably_safe(0.6)),
            rules.tell_anyone_about_useful_card,
            only_if(rules.hints_run_low, rules.tell_dispensable),
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
        "flawed": (
            rules.play_safe_card,
            rules.play_probably_safe(0.25),
            rules.tell_randomly,
            rules.osawa_discard,
            rules.discard_oldest_first,
            rules.discard_randomly,
        ),
    }
)
"""The rules of each bot, in the order in which they are tried."""


def rule_bot(name: str) -> base.Script:
    """Return the bot that makes the move of the first rule that applies; where none does, a random legal one."""

    def choose(view: PlayerView, rng: random.Random) -> Action:
        beliefs = Beliefs(view)
        for rule in RULE_BOTS[name]:
            action = rule(beliefs, rng)
            if action is not None:
                return action
        return rng.choice(view.legal_actions)

    return script(name, choose)
