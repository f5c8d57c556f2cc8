"""Bots that think aloud: they play as the bot does, and write down what they see before the move.

A thought says what a player can work out from its own message: for each own card whether it can be
played, by what is known of it and by the cards in sight, and which cards of the others can be
played now or are the last of their kind. It is worded as HANABI_DEDUCTIONS=counted words the same
in a prompt, so that imitation with and without thoughts compares a deduction that is written with
one that is not.
"""

from dataclasses import dataclass
from typing import Any

from hanabi_grpo.envs.base import Observation, Policy, Seat, Task
from hanabi_grpo.envs.hanabi.policies.rule_bots import rule_bot
from hanabi_grpo.envs.hanabi.prompts import view_with
from hanabi_grpo.envs.hanabi.prompts.deductions import Deductions
from hanabi_grpo.envs.hanabi.prompts.full import full_thought

SUFFIX = "-aloud"
"""Behind the name of a bot that thinks aloud."""


@dataclass(frozen=True, slots=True)
class Aloud:
    """A policy that writes a thought in front of each move of another one."""

    inner: Policy

    @property
    def name(self) -> str:
        """The bot's name with `SUFFIX`."""
        return self.inner.name + SUFFIX

    def seat(self, player: int, *, task: Task[Any], game: int) -> Seat:
        """Return a seat that draws as the bot's own does."""
        inner = self.inner.seat(player, task=task, game=game)
        return _AloudSeat(inner=inner, deductions=task.setup.config.deductions)


@dataclass(frozen=True, slots=True)
class _AloudSeat:
    inner: Seat
    deductions: Deductions
    """What the player's message works out; the thought uses no more than that."""

    def act(self, seen: Observation) -> str:
        action = self.inner.act(seen)
        thought = full_thought(view_with(seen.view(), self.deductions))
        return f"<think>\n{thought}\n</think>\n{action}"


def aloud(name: str) -> Aloud:
    """Return the bot of this name, thinking aloud."""
    return Aloud(rule_bot(name))
