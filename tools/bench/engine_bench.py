"""The engine, started once per run, with the real app around it.

One adapter per player is pushed over HTTP.
"""

import asyncio
import contextlib
import itertools
import os
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from starlette.types import ASGIApp

from bench.pairing import Measure, Stopwatch
from bench.raw_engine import generate_raw
from bench.recording import ForcedSampler, GameCalls, Recorder
from bench.serving import serving
from bench.stand_in import SUITE, first_tasks
from hanabi_grpo.agents.served_model import Model
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.messages import read_tasks
from hanabi_grpo.rollout.sampler import SamplingConfig
from hanabi_grpo.rollout.seeds import request_seed
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.engine import VllmSampler
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.workers.pool import WorkerPool
from hanabi_grpo.settings import Settings
from hanabi_grpo.types import player_names

__all__ = ["SUITE", "EngineBench", "started_engine"]


class EngineBench:
    """What rows need from a running engine.

    A step's games are played once and recorded; the arms replay them.
    """

    def __init__(
        self,
        *,
        engine: VllmSampler,
        store: AdapterStore,
        chat: ChatFormat,
        app: ASGIApp,
        settings: Settings,
        config: EnvConfig,
        url: str,
    ) -> None:
        """Bind the parts, which `started_engine` creates."""
        self.engine = engine
        self.store = store
        self.chat = chat
        self.app = app
        self.url = url
        self.settings = settings
        self.config = config
        self.players = player_names(config.players)
        self.sampling = SamplingConfig(
            max_tokens=settings.max_completion_length, temperature=settings.temperature
        )
        self.version = 0
        """Last version pushed; 0 before the first `push`."""
        self.model: Any = None
        """The base model with one PEFT adapter per player, as the trainer holds it."""
        self.client = RolloutClient(url)
        self._plays: list[list[GameCalls]] = []
        self._request_ids = itertools.count()
        self._num_plays = itertools.count()

    @property
    def num_games(self) -> int:
        """Games of one step."""
        return self.settings.tasks_per_step * self.settings.num_generations

    async def plays(self, count: int) -> list[list[GameCalls]]:
        """Return the games of `count` steps with the served adapters.

        Each step is played once, on empty caches. One step before them is discarded, because a new
        engine's first batches are slow.
        """
        while len(self._plays) < count + 1:
            await self.engine.reset_prefix_cache()
            recorder = Recorder(self.engine)
            await self._play(recorder, self.settings.tasks_per_step)
            self._plays.append(recorder.games)
        return self._plays[1 : count + 1]

    async def recorded_games(self) -> list[GameCalls]:
        """Return the games that the arms replay: those of the first step."""
        return (await self.plays(1))[0]

    async def play_again(
        self,
        *,
        num_tasks: int | None = None,
        seats: tuple[str, ...] | None = None,
        seeded: bool = True,
    ) -> Measure:
        """Replay the recorded games through the real scheduler, on empty caches.

        Args:
            num_tasks: Number of tasks, from the first on; None: all.
            seats: A policy spec per seat; None: the served adapters.
            seeded: Whether each reply has a seed, as in training.

        Returns:
            The measure, with sampled tokens as the amount.
        """
        games = await self.recorded_games()
        tasks = self.settings.tasks_per_step if num_tasks is None else num_tasks
        games = games[: tasks * self.settings.num_generations]
        await self.engine.reset_prefix_cache()
        forced = ForcedSampler(self.engine, games)
        with Stopwatch(children=True) as watch:
            await self._play(forced, tasks, seats, seeded=seeded)
        forced.check_complete()
        return watch.measure(forced.num_tokens, games=len(games))

    async def replay_raw(self) -> Measure:
        """Send the recorded requests to the bare engine.

        Each request of a game is sent when the previous one has been answered.
        """
        games = await self.recorded_games()
        await self.engine.reset_prefix_cache()
        async with self.store.lease(self.store.versions()) as leased:
            loras = {name: held.lora for name, held in leased.items()}

            async def play(game: GameCalls) -> int:
                count = 0
                for call in game:
                    lora = lora_of(loras, call.adapter)
                    count += await self.raw(list(call.prompt_ids), len(call.reply_ids), lora)
                return count

            with Stopwatch(children=True) as watch:
                counts = await asyncio.gather(*(play(game) for game in games))
        return watch.measure(sum(counts), games=len(games))

    async def batch(
        self, prompts: Sequence[tuple[Sequence[int], int, str]], *, lora: bool
    ) -> Measure:
        """Sample one reply to every prompt at once, on empty caches.

        Args:
            prompts: Ids, length of the reply, adapter.
            lora: Whether to use the adapters.
        """
        await self.engine.reset_prefix_cache()
        async with self.store.lease(self.store.versions()) as leased:
            loras = {name: held.lora for name, held in leased.items()}
            with Stopwatch(children=True) as watch:
                requests = [
                    self.raw(list(ids), length, lora_of(loras, adapter) if lora else None)
                    for ids, length, adapter in prompts
                ]
                counts = await asyncio.gather(*requests)
        prompt_tokens = sum(len(ids) for ids, _, _ in prompts)
        return watch.measure(sum(counts), prompt_tokens=prompt_tokens)

    async def raw(self, ids: list[int], max_tokens: int, lora: Any | None) -> int:
        """Sample one reply with the bare engine.

        Args:
            ids: [prompt tokens].
            max_tokens: Length of the reply.
            lora: A handle that is currently loaded, None for the base model.

        Returns:
            The number of sampled tokens.
        """
        return await generate_raw(
            self.engine,
            ids,
            max_tokens=max_tokens,
            temperature=self.sampling.temperature,
            lora=lora,
            request_id=f"bench-{next(self._request_ids)}",
        )

    async def push(self) -> None:
        """Export every player's adapter and push it as the next version, as the trainer does."""
        self.version += 1
        await asyncio.to_thread(self._push, self.version)

    def _push(self, version: int) -> None:
        import torch

        from hanabi_grpo.training.model.adapters import export_adapter

        dtype = getattr(torch, self.settings.dtype)
        files = {name: export_adapter(self.model, name, dtype) for name in self.players}
        self.client.push(version, files)

    async def prepare(self) -> None:
        """Make the trainer's model with fresh adapters, open a session and push them."""
        await asyncio.to_thread(self._prepare)
        await self.push()

    def _prepare(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from hanabi_grpo.runs.fingerprint import resolve_model
        from hanabi_grpo.training.model.adapters import add_adapters

        settings = self.settings
        base = AutoModelForCausalLM.from_pretrained(
            resolve_model(settings.model), dtype=getattr(torch, settings.dtype)
        )
        # On the trainer's device, from which adapters are pushed.
        base.eval().to("cpu" if settings.device == "cpu" else "cuda")
        self.model = add_adapters(
            base,
            self.players,
            rank=settings.largest_rank,
            alpha=settings.alpha_of("player_0"),
            seed=settings.seed,
        )
        self.client.introduce(
            settings,
            run_id=f"bench-{uuid.uuid4().hex[:8]}",
            adapters=self.players,
            lora_rank=settings.largest_rank,
            setups=[Setup(HANABI, self.config)],
            version=1,
        )

    async def _play(
        self,
        sampler: Any,
        num_tasks: int,
        seats: tuple[str, ...] | None = None,
        *,
        seeded: bool = True,
    ) -> None:
        model = Model(sampler=sampler, chat=self.chat, max_model_len=self.settings.max_model_len)
        games_at_once = max(self.settings.games_at_once, self.num_games)
        scheduler = Scheduler(
            model,
            self.store,
            games_at_once=games_at_once,
            instance_id="bench",
            game_timeout=self.settings.game_timeout,
            workers=WorkerPool(
                call_timeout=self.settings.call_timeout,
                session_workers=self.settings.game_workers,
            ),
        )
        if seats is None:
            versions = self.store.versions().items()
            seats = tuple(f"{name}@{version}" for name, version in versions)
        request = first_tasks(
            self.config,
            self.sampling,
            num_tasks=num_tasks,
            num_games=self.settings.num_generations,
            seats=seats,
        )
        sampling = self.sampling
        if seeded:
            seed = request_seed(self.settings.seed, "benchmark", next(self._num_plays))
            sampling = replace(sampling, seed=seed)
        try:
            # As the session's trainer, whose games are not subject to the limit for guests.
            await scheduler.run(read_tasks(request), sampling, own=True)
        finally:
            scheduler.close()


def lora_of(loras: Mapping[str, Any], adapter: str) -> Any:
    """Return the handle of the adapter that made a recorded call.

    Args:
        loras: Handles of the served adapters, by name.
        adapter: See `Call.adapter`.

    Raises:
        ServerError: It is not served, so the base model would be measured instead.
    """
    if adapter not in loras:
        raise ServerError(
            f"a reply was recorded with {adapter or 'the base model'}, but the served adapters are "
            f"{', '.join(loras) or 'none'}; the arms would sample with different models."
        )
    return loras[adapter]


@contextlib.asynccontextmanager
async def started_engine(settings: Settings, config: EnvConfig) -> AsyncIterator[EngineBench]:
    """Start the engine (tens of seconds) and end it with the block. Must run on the main thread.

    Raises:
        HanabiGrpoError: MODEL is not available, or the engine does not start.
    """
    from hanabi_grpo.logs import LineRing
    from hanabi_grpo.server.assembly import prepare_environment, rollout_server

    prepare_environment(settings.device == "cpu")
    # As many adapters as the board has players; the address is local, so no key is needed.
    settings = settings.model_copy(update={"players": config.players, "api_key": None})
    with rollout_server(settings, LineRing()) as server:
        assert isinstance(server.engine, VllmSampler)
        async with serving(server.app) as url:
            bench = EngineBench(
                engine=server.engine,
                store=server.store,
                chat=server.chat,
                app=server.app,
                settings=settings,
                config=config,
                url=url,
            )
            try:
                await bench.prepare()
                yield bench
            finally:
                bench.client.close()


def pinned_threads() -> str:
    """Give torch one thread per core that this process may use; return both as text."""
    import torch

    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = list(range(os.cpu_count() or 1))
    torch.set_num_threads(len(cores))
    names = ",".join(str(core) for core in cores)
    return f"cores {names}, {len(cores)} threads"
