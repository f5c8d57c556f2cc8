"""Bots that are ordered lists of named rules.

Blind play, the hint bot, IGGI, Piers, Outer, Flawed and the focus bot. IGGI to Flawed:
Walton-Rivers et al., "Evaluating and Modelling Hanabi-Playing Agents" (2017). Cards shift left when
one leaves the hand, as in OpenSpiel; with fixed slots, as in the paper's engine, scores are up to
half a point lower.
"""

import random
from collections.abc import Mapping
from functools import partial

from hanabi_grpo.envs import base
from hanabi_grpo.envs.draws import chances_of
from hanabi_grpo.envs.hanabi.policies import focus, rules, save
from hanabi_grpo.envs.hanabi.policies.rules import Rule, only_if
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs
from hanabi_grpo.envs.hanabi.rules.view import Action, PlayerView

RULE_BOTS: Mapping[str, tuple[Rule, ...]] = {
    # A learned policy that scores no more than this says nothing about cooperation.
    "blind": (rules.play_oldest,),
    # The teacher of the warm start: it uses only hints, not the visible cards.
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
    # Scores more than the others on the full board and has no memory, so it can be the teacher with
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
    # Loses fewer of the last cards of a kind than the focus bot. It has no memory either.
    "save-bot": (
        save.save_card,
        save.play_as_told,
        rules.play_safe_card,
        save.tell_playable,
        save.play_in_last_round,
        save.wait_near_end,
        focus.discard_dead,
        save.wait_with_all_hints,
        save.discard_chop,
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
    """Return one of `RULE_BOTS` as a script.

    It makes the move of the first rule that applies, or a random legal move if none does.

    Args:
        name: Name of the bot.
        noise: Share of moves, within [0, 1], that are drawn uniformly among the legal ones.
    """

    def choose(seen: base.Observation, rng: random.Random) -> str:
        view = seen.view()
        is_noise = noise > 0 and rng.random() < noise
        action = rng.choice(view.legal_actions) if is_noise else rule_move(name, view, rng)
        return move_text(seen, action)

    def chances(seen: base.Observation) -> dict[str, float]:
        view = seen.view()
        by_reply = dict.fromkeys(seen.legal() or (), 0.0)
        for action, chance in chances_of(partial(rule_move, name, view)).items():
            by_reply[move_text(seen, action)] += (1 - noise) * chance
        for reply in by_reply:
            by_reply[reply] += noise / len(by_reply)
        return by_reply

    return base.MixedScript(name, choose, chances)


def rule_move(name: str, view: PlayerView, rng: random.Random) -> Action:
    """Return the move of a bot.

    Args:
        name: Name of the bot, one of `RULE_BOTS`.
        view: What the bot may know; it is the bot's turn.
        rng: For rules that draw at random.
    """
    beliefs = Beliefs(view)
    for rule in RULE_BOTS[name]:
        move = rule(beliefs, rng)
        if move is not None:
            return move
    return rng.choice(view.legal_actions)


def move_text(seen: base.Observation, action: Action) -> str:
    """Return a legal move as the game words it.

    The game lists the same moves, in the same order, as text and as data.
    """
    texts = seen.legal() or ()
    return texts[seen.view().legal_actions.index(action)]
