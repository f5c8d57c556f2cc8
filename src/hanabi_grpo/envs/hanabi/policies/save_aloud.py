"""The save bot, thinking aloud: it writes down what its rules look at, then moves.

The save bot (`policies.save`) has to work out which card the next player would discard and what a
hint would be read as. A small model cannot compute that in one step, but it can learn each part. A
thought has up to five parts, in this order:

- what the next player does if it is told nothing, unless this is the last turn;
- the focus of the last hint to the thinker, and whether it says to play it;
- the first own card that surely fits;
- if the move is a hint: its focus, and that it says to play it, or else what the next player does
  after it;
- if the move is another one: the card, unless it has been named.

In the compact style, cards are written as in the prompt. With HANABI_DEDUCTIONS=recalled:

    mate Discard B5only.0 me slot3 fit2.cR.r12345 Play Hint B5only.0 Discard Y3later.1

The other player would discard its oldest card, the last blue 5. The last hint says to play slot 3.
The thinker gives a hint nevertheless, about the blue 5, which does not say to play it; then the
other player will discard its yellow 3.
"""

import random
from typing import Any

from hanabi_grpo.envs.base import Observation, Script, Seat, Task
from hanabi_grpo.envs.hanabi.policies.aloud import SUFFIX, with_thought
from hanabi_grpo.envs.hanabi.policies.rule_bots import move_text, rule_move
from hanabi_grpo.envs.hanabi.policies.rules import next_seat
from hanabi_grpo.envs.hanabi.policies.save import Offer, Plan, last_reading, offers, plan_of
from hanabi_grpo.envs.hanabi.prompts import view_with
from hanabi_grpo.envs.hanabi.prompts.compact import (
    kind_word,
    mate_words,
    mates_card_words,
    own_card_words,
)
from hanabi_grpo.envs.hanabi.prompts.deductions import Deductions
from hanabi_grpo.envs.hanabi.prompts.full import card_name, known_text
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs
from hanabi_grpo.envs.hanabi.rules.view import Action, PlayerView
from hanabi_grpo.types import player_names

NAME = "save-bot"


class SaveAloud:
    """The policy of this module. It plays as `save-bot` does."""

    name = NAME + SUFFIX

    def seat(self, player: int, *, task: Task[Any], game: int) -> Seat:
        """Return a seat with the same random draws as the bot's own."""
        config = task.setup.config

        def choose(seen: Observation, rng: random.Random) -> str:
            move = rule_move(NAME, seen.view(), rng)
            view = view_with(seen.view(), config.deductions)
            if config.observation == "compact":
                thought = thought_words(move, view, config.deductions)
            else:
                thought = thought_sentences(move, view)
            return with_thought(thought, move_text(seen, move))

        return Script(self.name, choose).seat(player, task=task, game=game)


def thought_words(move: Action, view: PlayerView, deductions: Deductions) -> str:
    """Return a thought as words of `compact_vocabulary`, separated by single spaces.

    Args:
        move: The move that follows.
        view: What the player may know, as `view_with` leaves it.
        deductions: The level of the prompt, whose words for cards are repeated.
    """
    plan = plan_of(view, view.knowledge[next_seat(view)])
    words = [mate_words(view.num_players)[0], *_plan_words(plan, view, deductions), "me"]
    named = set()
    reading = last_reading(view)
    if reading is not None:
        named.add(reading.slot)
        words += own_card_words(view, reading.slot, deductions)
        if reading.meaning == "play":
            words.append(kind_word("play"))
    sure_slot = _first_sure_slot(view)
    if sure_slot is not None and sure_slot not in named:
        named.add(sure_slot)
        words += own_card_words(view, sure_slot, deductions)
    offer = _offer_of(move, view)
    if offer is not None:
        words += offer_words(offer, view, deductions)
    elif move.slot >= 0 and move.slot not in named:
        words += [kind_word(move.kind), *own_card_words(view, move.slot, deductions)]
    return " ".join(words)


def offer_words(offer: Offer, view: PlayerView, deductions: Deductions) -> list[str]:
    """Return the part of a thought that says what a hint offers.

    Args:
        offer: The hint.
        view: What its giver may know.
        deductions: The level of the prompt, whose words for cards are repeated.
    """
    words = [kind_word(offer.action.kind)]
    words += mates_card_words(view, next_seat(view), offer.reading.slot, deductions)
    if offer.reading.meaning == "play":
        return [*words, kind_word("play")]
    return [*words, *_plan_words(plan_of(view, offer.hand), view, deductions)]


def _plan_words(plan: Plan | None, view: PlayerView, deductions: Deductions) -> list[str]:
    if plan is None:
        return []
    card_words = mates_card_words(view, next_seat(view), plan.slot, deductions)
    return [kind_word(plan.kind), *card_words]


def thought_sentences(move: Action, view: PlayerView) -> str:
    """Return a thought as English sentences, a line for each part.

    Args:
        move: The move that follows.
        view: What the player may know, as `view_with` leaves it.
    """
    seat = next_seat(view)
    mate = player_names(view.num_players)[seat]

    def card(slot: int) -> str:
        return f"slot {slot}, {card_name(view.hands[seat][slot])}"

    def own(slot: int) -> str:
        return f"slot {slot} ({known_text(view.own_hand[slot], view)})"

    lines = []
    plan = plan_of(view, view.knowledge[seat])
    if plan is not None:
        lines.append(f"If told nothing, {mate} will {plan.kind} {card(plan.slot)}.")
    named = set()
    reading = last_reading(view)
    if reading is not None:
        named.add(reading.slot)
        lines.append(f"The last hint tells me to {reading.meaning} {own(reading.slot)}.")
    sure_slot = _first_sure_slot(view)
    if sure_slot is not None and sure_slot not in named:
        named.add(sure_slot)
        lines.append(f"I can surely play {own(sure_slot)}.")
    offer = _offer_of(move, view)
    if offer is not None:
        lines.append(
            f"A hint can tell {mate} to {offer.reading.meaning} {card(offer.reading.slot)}."
        )
        plan = plan_of(view, offer.hand)
        if offer.reading.meaning == "keep" and plan is not None:
            lines.append(f"After it, {mate} will {plan.kind} {card(plan.slot)}.")
    elif move.slot >= 0 and move.slot not in named:
        lines.append(f"I can {move.kind} {own(move.slot)}.")
    return "\n".join(lines)


def _first_sure_slot(view: PlayerView) -> int | None:
    """Return the first own card that fits whatever it is, or None."""
    beliefs = Beliefs(view)
    for slot, known in enumerate(view.own_hand):
        if beliefs.surely_fits(known):
            return slot
    return None


def _offer_of(move: Action, view: PlayerView) -> Offer | None:
    """Return what a hint to the next player offers it; None for other moves."""
    for offer in offers(view):
        if offer.action == move:
            return offer
    return None
