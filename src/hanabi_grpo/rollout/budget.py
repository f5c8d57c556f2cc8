"""How many tokens the conversations of a game take when it lasts as long as its environment allows.

What players remember (HANABI_MEMORY) is never chosen from these numbers. It is part of what is
played: a policy that learned with one memory is another one with less, and a warm start, a resumed
run, an evaluation and an opponent must have the same; so neither a longer reply nor a smaller
context may change it unasked. Its default is the environment's, the doctor says what fits and what
that costs, and a run whose longest games do not fit says so at its start."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.config import Memory
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.rollout.chat import ChatFormat

_STARTS = 8
_SETUPS = 4
"""Of a dataset with more games those of most turns are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Tokens of one player's conversations, every reply counted at its full length."""

    preset: str
    players: int
    memory: Memory
    """Of the game that was measured; the methods take any."""
    turns: int
    """Of one player, in the longest game."""
    reply: int
    opening: int
    """Tokens before the first reply where the whole game is remembered."""
    later: float
    """Those that each later message adds there."""
    alone: int
    """Tokens before a reply where this turn alone is remembered."""
    earlier: float
    """Those that the message of each earlier turn adds in a window."""

    def held(self, memory: Memory) -> int:
        """Return the turns of one player's longest sequence."""
        return (
            min(memory, self.turns)
            if isinstance(memory, int)
            else 1
            if memory == "turn"
            else self.turns
        )

    def prompts(self, memory: Memory) -> int:
        """Return the tokens of the longest sequence without replies."""
        first, more = (self.opening, self.later) if memory == "game" else (self.alone, self.earlier)
        return first + math.ceil((self.held(memory) - 1) * more)

    def longest(self, memory: Memory) -> int:
        """Return the tokens of the longest sequence."""
        return self.prompts(memory) + self.held(memory) * self.reply

    def of_game(self, memory: Memory) -> int:
        """Return the tokens of all sequences that one game gives to training: a window is read at
        every turn.
        """
        if memory == "game":
            return self.players * self.longest(memory)
        held = self.held(memory)
        return self.players * sum(
            self.longest(min(turn, held)) for turn in range(1, self.turns + 1)
        )

    def fitting(self, limit: int) -> Memory | None:
        """Return the longest memory whose sequences have at most `limit` tokens; None: not even a
        turn alone fits.
        """
        longest_first: tuple[Memory, ...] = ("game", *range(self.turns - 1, 1, -1), "turn")
        return next((memory for memory in longest_first if self.longest(memory) <= limit), None)

    def warning(self, limit: int) -> str:
        """Return a sentence where the longest game does not fit a conversation of `limit` tokens,
        else "".
        """
        if self.longest(self.memory) <= limit:
            return ""
        fitting = self.fitting(limit)
        most = (
            f"HANABI_MEMORY={fitting} is the longest that fits"
            if fitting
            else "not even a turn alone fits"
        )
        return (
            f"HANABI_MEMORY={self.memory}: the longest game ({self.preset}, {self.turns} turns a "
            "player) may take "
            f"{self.longest(self.memory)} tokens of HANABI_MAX_MODEL_LEN={limit}, and a longer "
            f"one is cut; {most}. "
            "hanabi-grpo doctor shows what each costs, and the other ways."
        )


def measure_budget(setups: Sequence[Setup[Any]], chat: ChatFormat, max_completion: int) -> Budget:
    """Return the budget of the hungriest game."""
    largest = sorted(setups, key=lambda setup: setup.spec.max_turns, reverse=True)[:_SETUPS]
    measured = (_measure(setup, chat, max_completion) for setup in largest)
    return max(measured, key=lambda budget: budget.longest(budget.memory))


def _measure(setup: Setup[Any], chat: ChatFormat, max_completion: int) -> Budget:
    """Play some games with random actions, and stretch the longest conversation to the most turns
    that may be.
    """
    openings, alone, later, earlier = list[int](), list[int](), [0.0], [0.0]
    first_steps, gaps = list[int](), list[int]()
    for seed in range(_STARTS):
        for head, messages in _conversations(setup, chat, seed):
            steps, added, states = zip(*messages, strict=True)
            openings.append(head + added[0])
            alone.append(head + max(states))
            later += [fmean(added[1:])] if len(added) > 1 else []
            earlier.append(fmean(states))
            first_steps.append(steps[0])
            gaps += [after - before for before, after in pairwise(steps)]
    spec = setup.spec
    return Budget(
        preset=spec.preset,
        players=spec.num_players,
        memory=setup.config.memory,
        turns=1 + (spec.max_turns - 1 - min(first_steps)) // min(gaps) if gaps else 1,
        reply=max_completion,
        opening=max(openings),
        later=max(later),
        alone=max(alone),
        earlier=max(earlier),
    )


def _conversations(
    setup: Setup[Any], chat: ChatFormat, seed: int
) -> list[tuple[int, list[tuple[int, int, int]]]]:
    """Play one game of whole conversations.

    Returns: Per player the tokens of the system message and what is around it, and per turn its
        step and the tokens of its message and of its state's, see `Observation`.
    """
    config = setup.config.model_copy(update={"memory": "game"})
    referee, rng = (
        Referee(Setup(setup.environment, config).task("doctor", seed)),
        random.Random(seed),
    )
    heads: dict[int, int] = {}
    added: dict[int, list[tuple[int, int, int]]] = {}
    step = 0
    while acting := referee.to_act():
        replies = {}
        for player in acting:
            seen = referee.see(player)
            message, state = seen.message(), seen.state_message()
            size = len(chat.follow(chat.eos_id, message))
            state_size = size if state == message else len(chat.follow(chat.eos_id, state))
            if player not in heads:
                heads[player] = (
                    len(chat.open(setup.environment.system(config, player), message)) - size
                )
            added.setdefault(player, []).append((step, size, state_size))
            replies[player] = rng.choice(seen.legal() or ("",))
        referee.step(replies)
        step += 1
    return [(heads[player], messages) for player, messages in added.items()]
