"""Token budget of the conversations in a game that lasts as long as its environment allows.

The players' memory (HANABI_MEMORY) is never chosen from these numbers. It is part of the task:
a policy trained with one memory is a different policy with a shorter one, and a warm start, a
resumed run, an evaluation and an opponent must all use the same. So neither a longer reply nor a
smaller context may change it silently. The environment sets the default, the doctor reports which
memory fits and its cost, and a run whose longest games do not fit prints a warning when it starts.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from hanabi_grpo.envs.base import Observation, Setup
from hanabi_grpo.envs.config import Memory
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.random_games import play_random_games

_NUM_GAMES = 8
"""Number of random games played of each setup."""
_RESULT_TOKENS = 32
"""Tokens of a tool's result, including the chat template's text around it."""
_PADDING = "word "
"""Repeated in replies of free text, which other players may read in their messages."""
_MAX_SETUPS = 4
"""Number of setups that are measured; if there are more, those with the most turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Tokens of one player's conversations, counting every reply at its maximum length."""

    preset: str
    players: int
    memory: Memory
    """Memory of the measured game; the methods accept any memory."""
    turns: int
    """Turns of one player in the longest game."""
    reply: int
    """Tokens of the longest reply."""
    opening: int
    """Tokens before the first reply when the whole game is remembered."""
    later: float
    """Tokens that each later message adds when the whole game is remembered."""
    alone: int
    """Tokens before a reply when only the current turn is remembered."""
    earlier: float
    """Tokens that the message of each earlier turn adds when some turns are remembered."""
    calls: int = 0
    """Tokens that the tool calls of one turn may take, with results of a typical length."""

    @property
    def first_reply_ends(self) -> int:
        """Tokens of a first message and a reply; if they do not fit, no move is possible."""
        first_message = self.opening if self.memory == "game" else self.alone
        return first_message + self.reply

    def num_turns(self, memory: Memory) -> int:
        """Return the number of turns in one player's longest sequence."""
        if memory == "game":
            return self.turns
        if memory == "turn":
            return 1
        return min(memory, self.turns)

    def prompts(self, memory: Memory) -> int:
        """Return the tokens of the longest sequence without replies."""
        num_later_turns = self.num_turns(memory) - 1
        if memory == "game":
            return self.opening + math.ceil(num_later_turns * self.later)
        return self.alone + math.ceil(num_later_turns * self.earlier)

    def longest(self, memory: Memory) -> int:
        """Return the tokens of the longest sequence."""
        return self.prompts(memory) + self.num_turns(memory) * (self.reply + self.calls)

    def of_game(self, memory: Memory) -> int:
        """Return the tokens of all sequences that one game contributes to training.

        With the whole game remembered, each player has one sequence; otherwise each turn has a
        sequence with the turns remembered at that point.
        """
        if memory == "game":
            return self.players * self.longest(memory)
        most_turns = self.num_turns(memory)
        per_player = 0
        for turn in range(1, self.turns + 1):
            per_player += self.longest(min(turn, most_turns))
        return self.players * per_player

    def fitting(self, limit: int) -> Memory | None:
        """Return the longest memory whose sequences have at most `limit` tokens.

        None: not even a single turn fits.
        """
        some_turns = range(self.turns - 1, 1, -1)
        longest_first: tuple[Memory, ...] = ("game", *some_turns, "turn")
        for memory in longest_first:
            if self.longest(memory) <= limit:
                return memory
        return None

    def warning(self, limit: int) -> str:
        """Return a warning if the longest game does not fit into `limit` tokens, else ""."""
        if self.longest(self.memory) <= limit:
            return ""
        fitting = self.fitting(limit)
        remedy = "not even a single turn fits"
        if fitting is not None:
            remedy = f"HANABI_MEMORY={fitting} is the longest that fits"
        return (
            f"HANABI_MEMORY={self.memory}: the longest game ({self.preset}, {self.turns} turns per "
            f"player) may need {self.longest(self.memory)} tokens, more than "
            f"HANABI_MAX_MODEL_LEN={limit}, where games are truncated; {remedy}. "
            "hanabi-grpo doctor shows the cost of each memory, and other options."
        )


class _MeasuredTurn(NamedTuple):
    """The message of one turn."""

    step: int
    """Number of the game's step."""
    message: int
    """Tokens of the message in its chat template, when the whole game is remembered."""
    state: int
    """Tokens of the standalone message, see `Observation.state_message`."""


@dataclass(slots=True, kw_only=True)
class _MeasuredConversation:
    """One player's conversation in a random game."""

    head: int
    """Tokens of the system message in its chat template."""
    turns: list[_MeasuredTurn]


def measure_budget(setups: Sequence[Setup[Any]], chat: ChatFormat, max_completion: int) -> Budget:
    """Return the budget of the game that needs the most tokens.

    Args:
        setups: The games of a run.
        chat: The chat format of the run's model.
        max_completion: Longest reply, in tokens.
    """
    by_turns = sorted(setups, key=lambda setup: setup.spec.max_turns, reverse=True)
    budgets = [_measure(setup, chat, max_completion) for setup in by_turns[:_MAX_SETUPS]]
    return max(budgets, key=lambda budget: budget.longest(budget.memory))


def _measure(setup: Setup[Any], chat: ChatFormat, max_completion: int) -> Budget:
    """Play random games and extrapolate their longest conversation to the maximum turns."""
    openings: list[int] = []
    alone: list[int] = []
    later: list[float] = [0.0]
    earlier: list[float] = [0.0]
    first_steps: list[int] = []
    gaps: list[int] = []
    padding = _padding(chat, max_completion)
    games = play_random_games(
        setup, lambda seed: _play_random_game(setup, chat, seed, padding), _NUM_GAMES
    )
    for conversations in games:
        for conversation in conversations:
            steps = [turn.step for turn in conversation.turns]
            messages = [turn.message for turn in conversation.turns]
            states = [turn.state for turn in conversation.turns]
            openings.append(conversation.head + messages[0])
            alone.append(conversation.head + max(states))
            if len(messages) > 1:
                later.append(fmean(messages[1:]))
            earlier.append(fmean(states))
            first_steps.append(steps[0])
            for before, after in pairwise(steps):
                gaps.append(after - before)
    spec = setup.spec
    turns = 1
    if gaps:
        turns += (spec.max_turns - 1 - min(first_steps)) // min(gaps)
    return Budget(
        preset=spec.preset,
        players=spec.num_players,
        memory=setup.config.memory,
        turns=turns,
        reply=max_completion,
        opening=max(openings),
        later=max(later),
        alone=max(alone),
        earlier=max(earlier),
        calls=_call_tokens(setup, max_completion),
    )


def _call_tokens(setup: Setup[Any], max_completion: int) -> int:
    """Return the tokens that one turn's tool calls may add: a reply and a result per call."""
    if not setup.tools:
        return 0
    return setup.config.tool_calls * (max_completion + _RESULT_TOKENS)


def _padding(chat: ChatFormat, num_tokens: int) -> str:
    """Return a text of about this many tokens.

    Args:
        chat: The chat format of the run's model.
        num_tokens: Length of the text in the model's tokens.
    """
    measured = num_tokens * _PADDING
    size = len(chat.follow(chat.eos_id, measured)) - len(chat.follow(chat.eos_id, ""))
    num_words = num_tokens * num_tokens // max(1, size)
    return min(num_words, num_tokens) * _PADDING


def _longest_reply(referee: Referee, player: int, padding: str) -> str:
    """Return a reply of the greatest length that a game of free text accepts.

    The others may read it in their messages. A script says what is accepted.

    Args:
        referee: The game.
        player: The player that is to act.
        padding: Text that makes the reply long.

    Returns:
        Padding with a script's reply at the end, or that reply alone; "" if the game accepts
        neither.
    """
    environment = referee.task.environment
    quick = [name for name in environment.policies if name not in environment.slow_policies]
    if not quick:
        return ""
    script = environment.policies[quick[0]]()
    seat = script.seat(player, task=referee.task, game=0)
    reply = seat.act(Observation(referee.game, player))
    for text in (f"{padding}\n{reply}", reply):
        if referee.game.parse(player, text) is not None:
            return text
    return ""


def _play_random_game(
    setup: Setup[Any], chat: ChatFormat, seed: int, padding: str
) -> list[_MeasuredConversation]:
    """Play one game with random actions and return the conversation of each player.

    Args:
        setup: The game.
        chat: The chat format of the run's model.
        seed: Seed of the start and of the actions.
        padding: What makes a reply of free text as long as the longest.
    """
    # Conversations are measured whole, whatever the memory, and so is the standalone message.
    config = setup.config.model_copy(update={"memory": "game"})
    environment = setup.environment
    referee = Referee(Setup(environment, config).task("doctor", seed), is_rehearsal=True)
    rng = random.Random(seed)
    conversations: dict[int, _MeasuredConversation] = {}
    step = 0
    acting = referee.to_act()
    while acting:
        actions = {}
        for player in acting:
            seen = referee.see(player)
            turn = _measure_turn(seen, chat, step)
            if player not in conversations:
                opening = chat.open(environment.system_message(config, player), seen.message())
                head = len(opening) - turn.message
                conversations[player] = _MeasuredConversation(head=head, turns=[])
            conversations[player].turns.append(turn)
            legal = seen.legal()
            if legal is None:
                actions[player] = _longest_reply(referee, player, padding)
            else:
                actions[player] = rng.choice(legal or ("",))
        referee.step(actions)
        acting = referee.to_act()
        step += 1
    return list(conversations.values())


def _measure_turn(seen: Observation, chat: ChatFormat, step: int) -> _MeasuredTurn:
    message = seen.message()
    state = seen.state_message()
    size = len(chat.follow(chat.eos_id, message))
    state_size = size
    if state != message:
        state_size = len(chat.follow(chat.eos_id, state))
    return _MeasuredTurn(step=step, message=size, state=state_size)
