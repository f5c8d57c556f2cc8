"""How many tokens a private conversation can take, measured on games that last as long as the rules allow."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.envs.base import Observation, Setup, Task
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.prompts import ObservationStyle
from hanabi_grpo.envs.hanabi.rules import PlayerView, format_action
from hanabi_grpo.rollout.chat import ChatFormat, Conversation
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.types import Reply

_GAMES = 4
_BOARDS = 4
"""Datasets with more boards are measured on their largest."""


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


def measure_budget(games: Sequence[EnvConfig], chat: ChatFormat, max_completion: int) -> Budget:
    """Play stretched games on the largest boards; return the budget of the hungriest board."""
    largest = sorted(games, key=lambda config: config.spec().max_turns, reverse=True)[:_BOARDS]
    return max((_measure(config, chat, max_completion) for config in largest), key=lambda budget: budget.longest)


def _measure(config: EnvConfig, chat: ChatFormat, max_completion: int) -> Budget:
    games = [[len(ids) for ids in game] for game in _conversations(config, chat)]

    def total(messages: list[int]) -> int:
        return sum(messages) + len(messages) * max_completion

    longest = max(games, key=total)
    return Budget(
        preset=config.preset,
        turns=len(longest),
        prompts=sum(longest),
        longest=total(longest),
        opening=max(messages[0] for messages in games) + max_completion,
    )


def _conversations(config: EnvConfig, chat: ChatFormat) -> list[list[tuple[int, ...]]]:
    """Play games and return, per player and game, the ids that each turn's message added."""
    measured = _Measured(config, chat)
    conversations = []
    for episode in play_episodes_sync(Setup(HANABI, config), [measured] * config.players, "doctor", range(_GAMES)):
        for player in range(config.players):
            messages = [turn.prompt_ids for turn in episode.turns if turn.player == player]
            conversations += [messages] if messages else []
    return conversations


class _Measured:
    """Makes a game as long as it can be, and keeps the conversation that a model would have had.

    A hint while there is a token, else a discard, which pays one back.
    """

    name = "stretching"

    def __init__(self, config: EnvConfig, chat: ChatFormat) -> None:
        self._config, self._chat = config, chat

    def seat(self, player: int, *, task: Task[Any], game: int) -> "_MeasuredSeat":
        system = task.environment.system(task.config, player)
        rng = random.Random(repr((player, task.split, task.seed, game)))
        return _MeasuredSeat(rng, Conversation(self._chat, system), self._chat.eos_id)


class _MeasuredSeat:
    def __init__(self, rng: random.Random, conversation: Conversation, eos_id: int) -> None:
        self._rng, self._conversation, self._eos_id = rng, conversation, eos_id

    async def reply(self, seen: Observation) -> Reply:
        view: PlayerView = seen.view()
        added = tuple(self._conversation.ask(seen.message()))
        self._conversation.answer([self._eos_id])
        for kind in ("hint", "discard", "play"):
            if moves := [action for action in view.legal_actions if action.kind.startswith(kind)]:
                move = self._rng.choice(moves)
                text = format_action(move, style=ObservationStyle.FULL, num_players=view.num_players)
                return Reply(text=text, prompt_ids=added)
        return Reply(text="", prompt_ids=added)
