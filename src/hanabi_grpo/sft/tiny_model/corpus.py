"""Conversations to learn from: games of a noisy hint bot, one sequence per player and game."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import Policy, Seat
from hanabi_grpo.envs.hanabi.prompts import system_prompt
from hanabi_grpo.envs.hanabi.rules import GameSpec, PlayerView
from hanabi_grpo.rollout.chat import ChatFormat, Conversation
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.types import Episode, Reply

SUITE = "train-warm-start"
"""A training suite: no deal of an evaluation is among its deals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One player's whole conversation in one game."""

    ids: tuple[int, ...]
    is_reply: tuple[bool, ...]
    """Same length as `ids`: True where the player speaks, its end token included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPolicy:
    """Lets a script play and keeps the prompt of each turn, which scripts themselves never read."""

    inner: Policy

    @property
    def name(self) -> str:
        """Name of the script."""
        return self.inner.name

    def seat(self, player: int, *, spec: GameSpec, suite: str, seed: int, game: int) -> "ShownSeat":
        """Return a fresh seat."""
        return ShownSeat(inner=self.inner.seat(player, spec=spec, suite=suite, seed=seed, game=game))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSeat:
    """One seat of `ShownPolicy`."""

    inner: Seat

    async def reply(self, view: PlayerView, prompt: Callable[[], str]) -> Reply:
        """Return the script's reply together with the text it was asked by."""
        reply = await self.inner.reply(view, prompt)
        return Reply(text=reply.text, prompt=prompt())


def play_corpus(
    config: EnvConfig, teacher: Policy, chat: ChatFormat, *, first_seed: int, num_games: int
) -> Iterator[Sample]:
    """Play games and yield a sample per player that had a turn.

    Args:
        config: The game; its prompts are what the model will be asked by.
        teacher: Sits in every seat.
        chat: How conversations become ids.
        first_seed: Deal of the first game, the others follow.
        num_games: How many.
    """
    policies = [ShownPolicy(inner=teacher)] * config.players
    spec = config.spec()
    for seed in range(first_seed, first_seed + num_games, 100):
        block = range(seed, min(seed + 100, first_seed + num_games))
        for episode in play_episodes_sync(config, policies, SUITE, block):
            for player in range(config.players):
                if episode.trajectory(player):
                    system = system_prompt(spec, config.observation, player, bomb_rule=config.bomb_rule)
                    yield render(episode, player, chat, system)


def render(episode: Episode, player: int, chat: ChatFormat, system: str) -> Sample:
    """Return a player's conversation as the ids that a rollout would build turn by turn."""
    conversation = Conversation(chat, system)
    is_reply: list[bool] = []
    for turn in episode.trajectory(player):
        is_reply += [False] * len(conversation.ask(turn.prompt))
        reply = [*chat.tokenizer.encode(turn.reply, add_special_tokens=False), chat.eos_id]
        conversation.answer(reply)
        is_reply += [True] * len(reply)
    return Sample(ids=tuple(conversation.ids), is_reply=tuple(is_reply))


def single_turns(sample: Sample) -> list[Sample]:
    """Return each turn as a conversation of its own.

    The two start alike only where line breaks cost no token, as in the tiny model's tokenizer.
    """
    turns = []
    start = 0
    for index, own in enumerate(sample.is_reply):
        is_last = index + 1 == len(sample.ids) or (own and not sample.is_reply[index + 1])
        if is_last:
            cut = slice(start, index + 1)
            turns.append(Sample(ids=sample.ids[cut], is_reply=sample.is_reply[cut]))
            start = index + 1
    return turns
