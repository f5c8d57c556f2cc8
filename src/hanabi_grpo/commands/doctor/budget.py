"""How many tokens a private conversation can take when a game lasts as long as its environment allows."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.rollout.chat import ChatFormat, Conversation

_STARTS = 8
_SETUPS = 4
"""Of a dataset with more games those of most turns are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Tokens of one player's conversation, every reply counted at its full length."""

    preset: str
    turns: int
    """Of one player, in the longest conversation."""
    prompts: int
    """Tokens of that conversation without replies."""
    longest: int
    opening: int
    """The longest first message and one reply."""


def measure_budget(setups: Sequence[Setup[Any]], chat: ChatFormat, max_completion: int) -> Budget:
    """Return the budget of the hungriest game."""
    largest = sorted(setups, key=lambda setup: setup.spec.max_turns, reverse=True)[:_SETUPS]
    return max((_measure(setup, chat, max_completion) for setup in largest), key=lambda budget: budget.longest)


def _measure(setup: Setup[Any], chat: ChatFormat, max_completion: int) -> Budget:
    """Play some games with random actions, and stretch the longest conversation to the most turns that may be."""
    window, openings = setup.config.window, list[int]()
    later, gaps, first_steps = [0.0], [], []
    for seed in range(_STARTS):
        for messages in _conversations(setup, chat, seed):
            steps, sizes = zip(*messages, strict=True)
            if window is not None:
                openings += sizes
                continue
            openings.append(sizes[0])
            first_steps.append(steps[0])
            gaps += [after - before for before, after in pairwise(steps)]
            later += [fmean(sizes[1:])] if len(sizes) > 1 else []
    turns = 1 + (setup.spec.max_turns - 1 - min(first_steps)) // min(gaps) if gaps else window or 1
    prompts = max(openings) + math.ceil((turns - 1) * max(later))
    return Budget(
        preset=setup.spec.preset,
        turns=turns,
        prompts=prompts,
        longest=prompts + turns * max_completion,
        opening=max(openings) + max_completion,
    )


def _conversations(setup: Setup[Any], chat: ChatFormat, seed: int) -> list[list[tuple[int, int]]]:
    """Play one game; return per player (step, tokens that the turn's message added) of its turns."""
    referee, rng = Referee(setup.task("doctor", seed)), random.Random(seed)
    players = range(setup.spec.num_players)
    window = setup.config.window
    talks = [Conversation(chat, setup.environment.system(setup.config, player), window) for player in players]
    added: list[list[tuple[int, int]]] = [[] for _ in players]
    step = 0
    while acting := referee.to_act():
        replies = {}
        for player in acting:
            seen = referee.see(player)
            added[player].append((step, len(talks[player].ask(seen.message()))))
            talks[player].answer([chat.eos_id])
            replies[player] = rng.choice(seen.legal() or ("",))
        referee.step(replies)
        step += 1
    return [messages for messages in added if messages]
