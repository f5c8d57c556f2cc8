"""Kuhn and Leduc poker: cards that only one player sees."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from hanabi_grpo.envs.base import random_policy
from hanabi_grpo.envs.openspiel.game import ROLES, OpenSpiel, OpenSpielConfig, Table, Words
from hanabi_grpo.envs.openspiel.policies import CFR_ITERATIONS, cfr

RANKS = "JQK"
_END = "End your reply with your action on a line of its own: {choices}."


class KuhnWords(Words):
    """OpenSpiel's Pass and Bet in a poker player's words."""

    def rules(self, config: OpenSpielConfig, player: int) -> str:
        return (
            f"You are the {ROLES[player]} player in a game of Kuhn poker. The deck is J, Q and K, "
            "from low to high. "
            "Each player puts 1 chip into the pot and gets one card that the other does not see; "
            "the third card "
            "stays hidden.\nThe first player checks or bets 1 chip. After a check the second "
            "player checks too, "
            "which ends the game, or bets. Who faces a bet folds, which gives the pot to the "
            "other player, or calls "
            "with 1 chip. Else the higher card wins the "
            f"pot.\n{_END.format(choices='check, bet, fold or call')}"
        )

    def state(self, config: OpenSpielConfig, state: Any, player: int) -> str:
        cards, actions = _kuhn(state)
        if config.style == "compact":
            return " ".join([cards[player], *actions])
        told = [f"The {ROLES[turn % 2]} player: {action}." for turn, action in enumerate(actions)]
        return " ".join([f"Your card is {cards[player]}.", *told])

    def legal(self, config: OpenSpielConfig, state: Any, actions: Sequence[int]) -> tuple[str, ...]:
        before = _kuhn(state)[1]
        return _kuhn_word(0, before), _kuhn_word(1, before)

    def actions(self, config: OpenSpielConfig, state: Any) -> Sequence[str]:
        return "check", "bet", "fold", "call"

    def picture(self, config: OpenSpielConfig, state: Any) -> str:
        cards, actions = _kuhn(state)
        return " · ".join([f"player_0 {cards[0]}, player_1 {cards[1]}", *actions])


class LeducWords(Words):
    """Two suits of J, Q and K that the words do not tell apart: suits have no part in the game."""

    table = Table(("fold", "call", "raise"))

    def rules(self, config: OpenSpielConfig, player: int) -> str:
        return (
            f"You are the {ROLES[player]} player in a game of Leduc poker. The deck is two J, two "
            "Q and two K, from "
            "low to high. Each player puts 1 chip into the pot and gets one card that the other "
            "does not see. After "
            "a first round of betting one card is turned up for both, and a second round "
            "follows.\nThe first player "
            "begins both rounds. In its turn a player folds, which gives the pot to the other and "
            "is possible only "
            "after a raise; calls, which means to pay what the other has raised, or nothing; or "
            "raises, which means "
            "to call and to add 2 chips in the first round, 4 in the second. A round has at most "
            "two raises and "
            "ends when a raise is called or both have called. In the end a pair with the open "
            "card wins, else the "
            f"higher card; equal cards share the pot.\n{_END.format(choices='fold, call or raise')}"
        )

    def state(self, config: OpenSpielConfig, state: Any, player: int) -> str:
        cards, open_card, rounds = _leduc(state)
        if config.style == "compact":
            told = [
                cards[player],
                *rounds[0],
                *([f"open-{open_card}", *rounds[1]] if open_card else []),
            ]
            return " ".join(told)
        told = [f"Your card is {cards[player]}.", *_turns("First round", rounds[0])]
        if open_card:
            told += [f"The open card is {open_card}.", *_turns("Second round", rounds[1])]
        return " ".join(told)

    def picture(self, config: OpenSpielConfig, state: Any) -> str:
        cards, open_card, rounds = _leduc(state)
        told = [f"player_0 {cards[0]}, player_1 {cards[1]}", *rounds[0]]
        return " · ".join([*told, *([f"open {open_card}", *rounds[1]] if open_card else [])])


def _kuhn(state: Any) -> tuple[list[str], list[str]]:
    """Return both cards and the words of all actions."""
    first, second, *taken = state.history()
    words: list[str] = []
    for action in taken:
        words.append(_kuhn_word(action, words))
    return [RANKS[first], RANKS[second]], words


def _kuhn_word(action: int, before: Sequence[str]) -> str:
    return (("fold", "call") if before[-1:] == ["bet"] else ("check", "bet"))[action]


def _leduc(state: Any) -> tuple[list[str], str, tuple[list[str], list[str]]]:
    """Return both cards, the open card or "", and the words of the actions of both rounds."""
    dealt = [RANKS[one.action // 2] for one in state.full_history() if one.player < 0]
    rounds: tuple[list[str], list[str]] = ([], [])
    place = 0
    for one in state.full_history()[2:]:
        if one.player < 0:
            place = 1
        else:
            rounds[place].append(LeducWords.table.words[one.action])
    return dealt[:2], "".join(dealt[2:]), rounds


def _turns(name: str, actions: Sequence[str]) -> list[str]:
    told = [f"the {ROLES[turn % 2]} player {action}s" for turn, action in enumerate(actions)]
    return [f"{name}: {', '.join(told)}."] if told else []


_poker = partial(
    OpenSpiel,
    roles=ROLES,
    policies={
        "random": random_policy,
        "cfr": partial(cfr, CFR_ITERATIONS),
        "cfr-10": partial(cfr, 10),
    },
    teachers=("cfr",),
    # Of random play alone a model learns that the card does not matter, and self-play hardly
    # teaches it to look.
    teacher_noise=0.8,
)

KUHN_POKER = _poker(
    "kuhn_poker", KuhnWords(), presets={"kuhn_poker": OpenSpielConfig(preset="kuhn_poker")}
)
LEDUC_POKER = _poker(
    "leduc_poker", LeducWords(), presets={"leduc_poker": OpenSpielConfig(preset="leduc_poker")}
)
