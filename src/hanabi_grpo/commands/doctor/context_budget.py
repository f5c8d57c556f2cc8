"""How many tokens a private conversation can take, measured on games that last as long as the rules allow."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.model import read_config
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies.base import Policy, Seat
from hanabi_grpo.envs.hanabi.policies.scripted import HintBot
from hanabi_grpo.envs.hanabi.prompts import ObservationStyle, system_prompt
from hanabi_grpo.envs.hanabi.rules import GameSpec, PlayerView, format_action
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat, Conversation
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.rollout.vocabulary import boards_of, check_vocabulary
from hanabi_grpo.settings.board import tiny_model_command, tiny_model_folder
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
    ordinary: int
    """Mean of games of the hint bot."""
    opening: int
    """The longest first message and one reply."""
    bound: int
    """The longest message at every turn that the rules allow: no conversation is longer."""


def measure_budget(games: Sequence[EnvConfig], chat: ChatFormat, max_completion: int) -> Budget:
    """Play stretched and ordinary games on the largest boards; return the budget of the hungriest board."""
    largest = sorted(games, key=lambda config: config.spec().max_turns, reverse=True)[:_BOARDS]
    return max((_measure(config, chat, max_completion) for config in largest), key=lambda budget: budget.longest)


def context_checks(context: Context) -> Iterator[Check]:
    """Compare the longest conversation with HANABI_MAX_MODEL_LEN and with what the model was made for."""
    settings, folder, budget = context.settings, context.model_folder, context.budget
    limit = settings.max_model_len
    if folder is None:
        yield skip("context", "needs the model")
        return
    most = int(read_config(folder).get("max_position_embeddings", 0)) or limit
    if limit > most:
        finding = f"HANABI_MAX_MODEL_LEN={limit}, but {settings.model} was made for {most}: the server would not start"
        yield fail("context", finding, f"export HANABI_MAX_MODEL_LEN={most}")
        return
    if budget is None:
        yield skip("context", "needs the dataset and the chat template")
        return
    numbers = (
        f"the longest game ({budget.preset}, {budget.turns} turns a player) takes {budget.prompts} tokens of prompts + "
        f"{budget.turns} replies of {settings.max_completion_length} = {budget.longest} of HANABI_MAX_MODEL_LEN={limit}"
    )
    rest = f"an ordinary one {budget.ordinary}, no game above {budget.bound}; the model allows {most}"
    if budget.opening > limit:
        finding = f"the first message and a reply take {budget.opening} tokens of HANABI_MAX_MODEL_LEN={limit}"
        yield fail("context", f"{finding}: no move can be made", _remedy(budget, limit, most))
    elif budget.longest > limit:
        what = "ordinary games are cut too" if budget.ordinary > limit else "such games are cut"
        ways = _remedy(budget, limit, most) + ("\nexport HANABI_THINKING=false" if settings.thinking else "")
        yield warn("context", f"{numbers}: {what}; {rest}", ways)
    else:
        yield ok("context", f"{numbers}; {rest}")


def vocabulary_checks(context: Context) -> Iterator[Check]:
    """Tell whether the tokenizer knows the words of the dataset's games: a tiny model's knows those of one board."""
    settings = context.settings
    if context.budget is None or context.chat is None:
        yield skip("vocabulary", "needs the model, its chat template and the dataset")
        return
    try:
        check_vocabulary(context.games, context.chat.tokenizer, settings.model)
    except SettingsError as error:
        # The tiny model's tokenizer lists the words of the compact style only.
        compact = "export HANABI_OBSERVATION=compact\n" if settings.observation == "full" else ""
        boards = boards_of(context.games)
        make = f"{compact}{tiny_model_command(*boards)}\nexport MODEL={tiny_model_folder(*boards)}"
        yield fail("vocabulary", str(error), make)
        return
    yield ok("vocabulary", f"every word of {', '.join(boards_of(context.games)[0])} has a token")


def _remedy(budget: Budget, limit: int, most: int) -> str:
    ways = []
    if budget.longest <= most:
        ways.append(f"export HANABI_MAX_MODEL_LEN={min(most, math.ceil(budget.longest / 256) * 256)}")
    reply = (limit - budget.prompts) // budget.turns
    if reply >= 1:
        ways.append(f"export MAX_COMPLETION_LENGTH={reply}")
    if not ways:
        ways.append(f"export HANABI_MAX_MODEL_LEN={most} HANABI_OBSERVATION=compact")
    return "\n".join(ways)


def _measure(config: EnvConfig, chat: ChatFormat, max_completion: int) -> Budget:
    bot = HintBot(style=ObservationStyle(config.observation))
    stretched, ordinary = (
        [[len(ids) for ids in game] for game in _conversations(config, chat, policy)] for policy in (_Stretching(), bot)
    )

    def total(messages: list[int]) -> int:
        return sum(messages) + len(messages) * max_completion

    longest = max([*stretched, *ordinary], key=total)
    opening = max(messages[0] for messages in stretched)
    following = max((size for messages in stretched for size in messages[1:]), default=0)
    turns = math.ceil((config.max_turns or config.spec().max_turns) / config.players)
    return Budget(
        preset=config.preset,
        turns=len(longest),
        prompts=sum(longest),
        longest=total(longest),
        ordinary=round(sum(map(total, ordinary)) / len(ordinary)),
        opening=opening + max_completion,
        bound=opening + (turns - 1) * following + turns * max_completion,
    )


def _conversations(config: EnvConfig, chat: ChatFormat, policy: Policy) -> list[list[tuple[int, ...]]]:
    """Play games and return, per player and game, the ids that each turn's message added."""
    measured = _Measured(policy, config, chat)
    conversations = []
    for episode in play_episodes_sync(config, [measured] * config.players, "doctor", range(_GAMES)):
        for player in range(config.players):
            messages = [turn.prompt_ids for turn in episode.turns if turn.player == player]
            conversations += [messages] if messages else []
    return conversations


class _Measured:
    """Lets a policy play, and keeps the conversation that a model would have had."""

    def __init__(self, inner: Policy, config: EnvConfig, chat: ChatFormat) -> None:
        self.name, self._inner, self._config, self._chat = inner.name, inner, config, chat

    def seat(self, player: int, *, spec: GameSpec, suite: str, seed: int, game: int) -> "_MeasuredSeat":
        config = self._config
        system = system_prompt(spec, config.observation, player, bomb_rule=config.bomb_rule)
        inner = self._inner.seat(player, spec=spec, suite=suite, seed=seed, game=game)
        return _MeasuredSeat(inner, Conversation(self._chat, system), self._chat.eos_id)


class _MeasuredSeat:
    def __init__(self, inner: Seat, conversation: Conversation, eos_id: int) -> None:
        self._inner, self._conversation, self._eos_id = inner, conversation, eos_id

    async def reply(self, view: PlayerView, prompt: Callable[[], str]) -> Reply:
        added = self._conversation.ask(prompt())
        self._conversation.answer([self._eos_id])
        reply = await self._inner.reply(view, prompt)
        return Reply(text=reply.text, prompt_ids=tuple(added))


class _Stretching:
    """Makes a game as long as it can be: a hint while there is a token, else a discard, which pays one back."""

    name = "stretching"

    def seat(self, player: int, *, spec: GameSpec, suite: str, seed: int, game: int) -> "_StretchingSeat":
        return _StretchingSeat(random.Random(repr((player, suite, seed, game))))


class _StretchingSeat:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def reply(self, view: PlayerView, prompt: Callable[[], str]) -> Reply:
        for kind in ("hint", "discard", "play"):
            moves = [action for action in view.legal_actions if action.kind.startswith(kind)]
            if moves:
                move = self._rng.choice(moves)
                return Reply(text=format_action(move, style=ObservationStyle.FULL, num_players=view.num_players))
        return Reply(text="")
