"""The server without a model: the real app, scheduler, store, tokenizer and games.

The engine only waits.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

from bench.recording import Call, ForcedSampler, GameCalls, Recorder
from bench.serving import serving
from hanabi_grpo.agents.served_model import Model
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.messages import RolloutRequest, TaskRequest
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample, Sampler, SamplingConfig
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.workers.pool import WorkerPool
from hanabi_grpo.settings import Settings

SUITE = "bench"
_MAX_MODEL_LEN = 1 << 20
_SHAPES = {"model.layers.0.self_attn.q_proj": (64, 64)}
_PLAYER = "iggi"


class StandIn(Sampler):
    """A sampler that waits for every request, for a random time."""

    is_dead = False
    state = "ok"
    silence = 0.0
    num_copies = 1

    def __init__(self, seconds: float = 0.0) -> None:
        """Answer after half to one and a half of `seconds`."""
        self.seconds = seconds
        self._random = random.Random(0)

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        """Return as many ids as allowed."""
        await asyncio.sleep(self.seconds * self._random.uniform(0.5, 1.5))
        ids = (0,) * sampling.max_tokens
        return Sample(
            ids=ids, logprobs=(-1.0,) * len(ids), finish_reason="length", num_cached_tokens=0
        )

    async def score(
        self,
        prompt_ids: list[int],
        reply_ids: list[int],
        adapter: AdapterHandle | None,
        copy: int | None = None,
    ) -> tuple[float, ...]:
        """Give every id the same logprob."""
        return (-1.0,) * len(reply_ids)

    async def load_adapter(self, name: str, number: int, path: str) -> AdapterHandle:
        """Load nothing."""
        return name

    async def unload_adapter(self, number: int) -> None:
        """Forget nothing."""

    def stop(self) -> None:
        """End nothing."""

    async def reset_prefix_cache(self) -> bool:
        """Drop nothing."""
        return True


def compact_config(preset: str, players: int = 2, max_turns: int = 0) -> EnvConfig:
    """Return a board with the compact prompts, whose words make a separate tokenizer.

    Args:
        preset: Name of the board.
        players: Players of a game.
        max_turns: Moves after which a game is truncated; 0: the rules' own bound.
    """
    return EnvConfig(
        preset=preset,
        players=players,
        observation="compact",
        legal_moves=False,
        max_turns=max_turns,
    )


def chat_of(config: EnvConfig) -> ChatFormat:
    """Return the tiny model's conversation format for a board with compact prompts."""
    from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

    return ChatFormat.from_tokenizer(build_tokenizer(compact_vocabulary(config.spec())))


async def scripted_games(
    config: EnvConfig, chat: ChatFormat, *, num_tasks: int, num_games: int
) -> list[GameCalls]:
    """Let a bot play each task `num_games` times.

    Args:
        config: The board.
        chat: The tiny model's conversation format.
        num_tasks: Number of tasks, from the first of the benchmark's suite on.
        num_games: Games of each task.

    Returns:
        The bot's replies as recordings without prompts.
    """
    policies = dict.fromkeys(range(config.players), HANABI.policies[_PLAYER]())
    games = []
    for seed in range(num_tasks):
        for game in range(num_games):
            episode = play_scripts(Setup(HANABI, config).task(SUITE, seed), policies, number=game)
            calls = []
            for turn in episode.turns:
                ids = chat.tokenizer.encode(turn.action, add_special_tokens=False)
                calls.append(Call(reply_ids=(*ids, chat.eos_id)))
            games.append(tuple(calls))
    return games


def first_tasks(
    config: EnvConfig,
    sampling: SamplingConfig,
    *,
    num_tasks: int,
    num_games: int,
    seats: tuple[str, ...] | None = None,
) -> RolloutRequest:
    """Return the request for the first tasks of the benchmark's suite.

    Args:
        config: The board.
        sampling: How replies are sampled.
        num_tasks: Number of tasks.
        num_games: Games of each task.
        seats: A policy spec per seat; None: the base model.
    """
    row = config.model_dump(mode="json")
    tasks = [TaskRequest(env_config=row, suite=SUITE, seed=seed) for seed in range(num_tasks)]
    return RolloutRequest(
        tasks=tuple(tasks),
        num_games=num_games,
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        seats=seats or ("base",) * config.players,
    )


def stand_in_scheduler(
    store: AdapterStore, chat: ChatFormat, sampler: ForcedSampler | Recorder, num_games: int
) -> Scheduler:
    """Return a scheduler.

    Args:
        store: The adapter store.
        chat: The conversation format.
        sampler: The sampler that answers.
        num_games: Games that it plays at once.
    """
    # It implements the parts of a sampler that games need.
    model = Model(sampler=cast(Sampler, sampler), chat=chat, max_model_len=_MAX_MODEL_LEN)
    settings = Settings()
    return Scheduler(
        model,
        store,
        games_at_once=max(1, num_games),
        instance_id="bench",
        game_timeout=settings.game_timeout,
        workers=WorkerPool(
            call_timeout=settings.call_timeout, session_workers=settings.game_workers
        ),
    )


def stand_in_store(engine: StandIn) -> AdapterStore:
    """Return a store that loads nothing; the caller closes it."""
    return AdapterStore(engine, max_rank=16, shapes=_SHAPES)


@asynccontextmanager
async def stand_in_server(
    chat: ChatFormat, games: Sequence[GameCalls], *, seconds: float, num_players: int = 2
) -> AsyncIterator[str]:
    """Serve the real app around a stand-in in this event loop.

    Args:
        chat: The conversation format.
        games: The stand-in's replies.
        seconds: Mean time of a reply.
        num_players: Players of a game.

    Yields:
        The address.
    """
    from hanabi_grpo.logs import LineRing
    from hanabi_grpo.rollout.handshake import tokenizer_hash
    from hanabi_grpo.server.app import create_app
    from hanabi_grpo.server.identity import ServerIdentity

    engine = StandIn(seconds)
    store = stand_in_store(engine)
    try:
        scheduler = stand_in_scheduler(store, chat, ForcedSampler(engine, games), len(games))
        identity = ServerIdentity(
            instance_id="bench",
            model="stand-in",
            model_fingerprint="0" * 16,
            tokenizer_hash=tokenizer_hash(chat.tokenizer),
            chat_hash=chat.hash,
            dtype="float32",
            max_lora_rank=16,
            max_players=num_players,
            max_model_len=_MAX_MODEL_LEN,
        )
        app = create_app(engine, store, scheduler, identity, LineRing(), api_key=None)
        async with serving(app) as url:
            yield url
    finally:
        store.close()
