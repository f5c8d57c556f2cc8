"""Kuhn and Leduc poker: games with private cards."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hanabi_grpo.envs.base import Policy, random_policy
from hanabi_grpo.envs.openspiel.game import (
    ROLES,
    ActionTexts,
    OpenSpiel,
    OpenSpielConfig,
    Wording,
)
from hanabi_grpo.envs.openspiel.policies import CFR_ITERATIONS, cfr
from hanabi_grpo.envs.questions import Question

RANKS = "JQK"
_NUM_SUITS = 2
"""Number of suits in Leduc's deck; OpenSpiel numbers cards by rank, then by suit."""
_KUHN_CHANCE = (3, 2)
_LEDUC_CHANCE = (6, 5, 4)
"""Number of possible outcomes of each dealt card."""
_END = "End your reply with your action on a line of its own: {choices}."


class KuhnWording(Wording):
    """OpenSpiel's Pass and Bet in a poker player's words."""

    def rules(self, config: OpenSpielConfig, player: int) -> str:
        return (
            f"You are the {ROLES[player]} player in a game of Kuhn poker. The deck is J, Q and K, "
            "from low to high. Each player puts 1 chip into the pot and gets one card that the "
            "other does not see; the third card stays hidden.\n"
            "The first player checks or bets 1 chip. After a check the second player checks too, "
            "which ends the game, or bets. Who faces a bet folds, which gives the pot to the other "
            "player, or calls with 1 chip. Else the higher card wins the pot.\n"
            f"{_END.format(choices='check, bet, fold or call')}"
        )

    def state(self, config: OpenSpielConfig, state: Any, player: int) -> str:
        cards, actions = _kuhn(state)
        if config.style == "compact":
            return " ".join([cards[player], *actions])
        sentences = [f"Your card is {cards[player]}."]
        for turn, action in enumerate(actions):
            sentences.append(f"The {ROLES[turn % 2]} player: {action}.")
        return " ".join(sentences)

    def questions(self, config: OpenSpielConfig, state: Any, player: int) -> tuple[Question, ...]:
        return (_others_card_question(config),)

    def truths(self, config: OpenSpielConfig, state: Any, player: int) -> tuple[str, ...]:
        cards, _ = _kuhn(state)
        return (cards[1 - player],)

    def legal(self, config: OpenSpielConfig, state: Any, actions: Sequence[int]) -> tuple[str, ...]:
        _, earlier = _kuhn(state)
        return _kuhn_choices(earlier)

    def actions(self, config: OpenSpielConfig, state: Any) -> Sequence[str]:
        return "check", "bet", "fold", "call"

    def picture(self, config: OpenSpielConfig, state: Any) -> str:
        cards, actions = _kuhn(state)
        return " · ".join([f"player_0 {cards[0]}, player_1 {cards[1]}", *actions])


class LeducWording(Wording):
    """Two suits of J, Q and K, which the texts omit because suits do not matter in the game."""

    action_texts = ActionTexts(("fold", "call", "raise"))

    def rules(self, config: OpenSpielConfig, player: int) -> str:
        return (
            f"You are the {ROLES[player]} player in a game of Leduc poker. The deck is two J, two "
            "Q and two K, from low to high. Each player puts 1 chip into the pot and gets one card "
            "that the other does not see. After a first round of betting one card is turned up for "
            "both, and a second round follows.\n"
            "The first player begins both rounds. In its turn a player folds, which gives the pot "
            "to the other and is possible only after a raise; calls, which means to pay what the "
            "other has raised, or nothing; or raises, which means to call and to add 2 chips in "
            "the first round, 4 in the second. A round has at most two raises and ends when a "
            "raise is called or both have called. In the end a pair with the open card wins, else "
            "the higher card; equal cards share the pot.\n"
            f"{_END.format(choices='fold, call or raise')}"
        )

    def state(self, config: OpenSpielConfig, state: Any, player: int) -> str:
        position = _leduc(state)
        card = position.cards[player]
        if config.style == "compact":
            words = [card, *position.first_round]
            if position.open_card:
                words += [f"open-{position.open_card}", *position.second_round]
            return " ".join(words)
        sentences = [f"Your card is {card}."]
        sentences += _round_sentences("First round", position.first_round)
        if position.open_card:
            sentences.append(f"The open card is {position.open_card}.")
            sentences += _round_sentences("Second round", position.second_round)
        return " ".join(sentences)

    def questions(self, config: OpenSpielConfig, state: Any, player: int) -> tuple[Question, ...]:
        return (_others_card_question(config),)

    def truths(self, config: OpenSpielConfig, state: Any, player: int) -> tuple[str, ...]:
        return (_leduc(state).cards[1 - player],)

    def picture(self, config: OpenSpielConfig, state: Any) -> str:
        position = _leduc(state)
        first, second = position.cards
        parts = [f"player_0 {first}, player_1 {second}", *position.first_round]
        if position.open_card:
            parts += [f"open {position.open_card}", *position.second_round]
        return " · ".join(parts)


def _others_card_question(config: OpenSpielConfig) -> Question:
    """Return the question about the other player's card.

    In the compact style, the cards replace the actions, so that every word is known.
    """
    text = f" : {' '.join(RANKS)}"
    if config.style == "full":
        text = (
            "\n\nDo not act yet. Which card does the other player hold? Reply with J, Q or K alone."
        )
    return Question(name="card", text=text, answers=tuple(RANKS))


def _kuhn(state: Any) -> tuple[list[str], list[str]]:
    """Return both cards and the texts of all actions."""
    first, second, *taken = state.history()
    actions: list[str] = []
    for action in taken:
        choices = _kuhn_choices(actions)
        actions.append(choices[action])
    return [RANKS[first], RANKS[second]], actions


def _kuhn_choices(earlier: Sequence[str]) -> tuple[str, str]:
    """Return what OpenSpiel's Pass and Bet mean after the actions so far."""
    if earlier and earlier[-1] == "bet":
        return "fold", "call"
    return "check", "bet"


class _LeducPosition(NamedTuple):
    """A position in a poker player's words."""

    cards: list[str]
    """The card of each player."""
    open_card: str
    """"" until it is turned up."""
    first_round: list[str]
    """Actions of the first round."""
    second_round: list[str]


def _leduc(state: Any) -> _LeducPosition:
    cards: list[str] = []
    rounds: tuple[list[str], list[str]] = ([], [])
    for event in state.full_history():
        is_chance = event.player < 0
        if is_chance:
            cards.append(RANKS[event.action // _NUM_SUITS])
        else:
            is_second_round = len(cards) > 2
            rounds[is_second_round].append(LeducWording.action_texts.texts[event.action])
    open_card = cards[2] if len(cards) > 2 else ""
    return _LeducPosition(cards[:2], open_card, *rounds)


def _round_sentences(name: str, actions: Sequence[str]) -> list[str]:
    """Return a sentence about a round, or [] if nobody has acted in it.

    Example:
        _round_sentences("First round", ["raise"]) == ["First round: the first player raises."]
    """
    if not actions:
        return []
    clauses = []
    for turn, action in enumerate(actions):
        clauses.append(f"the {ROLES[turn % 2]} player {action}s")
    return [f"{name}: {', '.join(clauses)}."]


_POLICIES: Mapping[str, Callable[[], Policy]] = {
    "random": random_policy,
    "cfr": partial(cfr, CFR_ITERATIONS),
    "cfr-10": partial(cfr, 10),
}
_TEACHER_NOISE = 0.8
"""Share of random actions in the games that a tiny model imitates.

From random play alone, a model learns that the card does not matter, and self-play hardly teaches
it to use the card."""

KUHN_POKER = OpenSpiel(
    "kuhn_poker",
    KuhnWording(),
    roles=ROLES,
    presets={"kuhn_poker": OpenSpielConfig(preset="kuhn_poker")},
    policies=_POLICIES,
    teachers=("cfr",),
    teacher_noise=_TEACHER_NOISE,
    chance_widths=_KUHN_CHANCE,
)
LEDUC_POKER = OpenSpiel(
    "leduc_poker",
    LeducWording(),
    roles=ROLES,
    presets={"leduc_poker": OpenSpielConfig(preset="leduc_poker")},
    policies=_POLICIES,
    teachers=("cfr",),
    teacher_noise=_TEACHER_NOISE,
    chance_widths=_LEDUC_CHANCE,
)
