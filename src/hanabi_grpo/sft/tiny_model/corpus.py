"""Conversations to learn from: games of a noisy hint bot, one sequence per player and game."""

from collections.abc import Iterator
from dataclasses import replace

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI, HanabiScript
from hanabi_grpo.envs.hanabi.policies import HintBot
from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.rollout.players import ScriptedPlayer
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.sft.teachers import SUITE

_CHUNK = 100
_NO_LIMIT = 1 << 30


def play_corpus(
    config: EnvConfig, chat: ChatFormat, *, noise: float, first_seed: int, num_games: int
) -> Iterator[Sample]:
    """Play games of the hint bot and yield a sample per player that had a turn, every reply of it learned.

    Args:
        config: The game; its prompts are what the model will be asked by.
        chat: How conversations become ids.
        noise: Share of the bot's moves that are random.
        first_seed: Deal of the first game, the others follow.
        num_games: How many.
    """
    encoder = Encoder(config=config, chat=chat, max_model_len=_NO_LIMIT, max_completion_length=_NO_LIMIT // 2)
    policies = [ScriptedPlayer(HanabiScript(HintBot(noise=noise)))] * config.players
    seeds = range(first_seed, first_seed + num_games)
    for start in range(0, num_games, _CHUNK):
        for episode in play_episodes_sync(Setup(HANABI, config), policies, SUITE, seeds[start : start + _CHUNK]):
            yield from encoder.samples(Recording(episode=episode), [True] * len(episode.turns))


def single_turns(sample: Sample) -> list[Sample]:
    """Return each turn as a conversation of its own.

    The two start alike only where line breaks cost no token, as in the tiny model's tokenizer.
    """
    last = len(sample.ids) - 1
    ends = [at + 1 for at, own in enumerate(sample.is_reply) if own and (at == last or not sample.is_reply[at + 1])]
    return [
        replace(sample, ids=sample.ids[start:end], is_reply=sample.is_reply[start:end])
        for start, end in zip([0, *ends], ends, strict=False)
    ]
