"""Bots that think aloud: they play like the original bot, but write down what they see first.

A thought says what a player can work out from its own message: whether each own card can be played,
given what is known of it and the visible cards, and which cards of the others can be played now or
are the last of their kind. The wording is that of HANABI_DEDUCTIONS=counted in a prompt, so that
imitation with and without thoughts differs only in whether the deduction is written down.
"""

from dataclasses import dataclass
from typing import Any

from hanabi_grpo.envs.base import Observation, Policy, Seat, Task
from hanabi_grpo.envs.hanabi.policies.rule_bots import rule_bot
from hanabi_grpo.envs.hanabi.prompts import view_with
from hanabi_grpo.envs.hanabi.prompts.deductions import Deductions
from hanabi_grpo.envs.hanabi.prompts.full import full_thought

SUFFIX = "-aloud"
"""Suffix of the name of a bot that thinks aloud."""


@dataclass(frozen=True, slots=True)
class Aloud:
    """A policy that writes a thought before each move of another policy."""

    inner: Policy

    @property
    def name(self) -> str:
        """The bot's name with `SUFFIX`."""
        return self.inner.name + SUFFIX

    def seat(self, player: int, *, task: Task[Any], game: int) -> Seat:
        """Return a seat with the same random draws as the bot's own."""
        inner = self.inner.seat(player, task=task, game=game)
        return _AloudSeat(inner=inner, deductions=task.setup.config.deductions)


@dataclass(frozen=True, slots=True)
class _AloudSeat:
    inner: Seat
    deductions: Deductions
    """What the player's message works out; the thought uses nothing beyond it."""

    def act(self, seen: Observation) -> str:
        action = self.inner.act(seen)
        thought = full_thought(view_with(seen.view(), self.deductions))
        return with_thought(thought, action)


def with_thought(thought: str, move: str) -> str:
    """Return a reply that thinks before its move."""
    return f"<think>\n{thought}\n</think>\n{move}"


def aloud(name: str) -> Aloud:
    """Return the bot of this name, thinking aloud."""
    return Aloud(rule_bot(name))
