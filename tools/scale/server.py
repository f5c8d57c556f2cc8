"""A rollout server whose engine samples nothing but takes as long as GPUs would.

Everything else is real: process, app, wire format, scheduler, adapter store and games.
"""

import asyncio
import json
import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.serving import serving
from bench.stand_in import StandIn
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample, SamplingConfig
from hanabi_grpo.server.adapter_files import Shapes
from scale.replica import EngineSpeed, Replica

LORA_RANK = 16
_MAX_MODEL_LEN = 1 << 20
_VOCABULARY = 151_936
"""Vocabulary of Qwen3: the stand-in's ids have as many digits on the wire as a real model's."""
_FIRST_ID = 1000
_NUM_REPLIES = 32
_FIRST_WORD = 12
"""Lower ids of the tiny tokenizer may be special."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """One server to start."""

    name: str
    """Its instance id."""
    model: str
    """Folder of the base model whose tokenizer it uses."""
    speed: EngineSpeed
    num_replicas: int
    """GPUs, each with a copy of the model."""
    shapes: Shapes
    """Shapes of the linear layers that an adapter covers."""


class WideChat(ChatFormat):
    """The tiny model's conversation format for ids of a large vocabulary: each is some word."""

    def decode(self, ids: list[int]) -> str:
        """Return the text of a reply."""
        num_words = len(self.tokenizer) - _FIRST_WORD
        return super().decode([_FIRST_WORD + number % num_words for number in ids])


class RatedEngine(StandIn):
    """A sampler that answers when GPUs of a given speed would."""

    def __init__(self, plan: ServerPlan) -> None:
        """Begin idle."""
        super().__init__()
        self.num_copies = plan.num_replicas
        self._replicas: list[Replica[asyncio.Future[None]]] = []
        for _ in range(plan.num_replicas):
            self._replicas.append(Replica(plan.speed))
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._made: dict[int, list[Sample]] = {}
        """Some replies of each length; making them is not part of a server's work."""

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        """Return as many ids as allowed; they are not a move, so a random move is played."""
        number = (game or 0) % len(self._replicas)
        await self._wait(number, sampling.max_tokens)
        return self._samples(sampling.max_tokens)

    def _samples(self, num_tokens: int) -> Sample:
        """Return one of a few replies of a length, with ids and logprobs as long as a model's."""
        if num_tokens not in self._made:
            self._made[num_tokens] = [self._make(num_tokens) for _ in range(_NUM_REPLIES)]
        return self._random.choice(self._made[num_tokens])

    def _make(self, num_tokens: int) -> Sample:
        ids = []
        logprobs = []
        for _ in range(num_tokens):
            ids.append(self._random.randrange(_FIRST_ID, _VOCABULARY))
            # A float32, as from an engine, which takes 17 digits as JSON.
            [logprob] = struct.unpack("f", struct.pack("f", -self._random.expovariate(1.0)))
            logprobs.append(logprob)
        return Sample(
            ids=tuple(ids),
            logprobs=tuple(logprobs),
            finish_reason="length",
            num_cached_tokens=0,
        )

    async def _wait(self, number: int, num_tokens: int) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self._replicas[number].ask(loop.time(), num_tokens, ready)
        self._set_timer(number)
        await ready

    def _set_timer(self, number: int) -> None:
        if number in self._timers:
            self._timers.pop(number).cancel()
        end = self._replicas[number].next_end()
        if end is not None:
            loop = asyncio.get_running_loop()
            self._timers[number] = loop.call_at(end, self._on_timer, number)

    def _on_timer(self, number: int) -> None:
        now = asyncio.get_running_loop().time()
        for ready in self._replicas[number].ended(now):
            if not ready.done():
                ready.set_result(None)
        self._set_timer(number)


async def serve(plan: ServerPlan) -> None:
    """Serve until the process is ended; the first line of output is the port."""
    from transformers import AutoTokenizer

    from hanabi_grpo.agents.served_model import Model
    from hanabi_grpo.logs import LineRing
    from hanabi_grpo.rollout.handshake import tokenizer_hash
    from hanabi_grpo.runs.fingerprint import model_fingerprint
    from hanabi_grpo.server.adapter_store import AdapterStore
    from hanabi_grpo.server.app import create_app
    from hanabi_grpo.server.identity import ServerIdentity
    from hanabi_grpo.server.scheduler import Scheduler
    from hanabi_grpo.server.workers.pool import WorkerPool
    from hanabi_grpo.settings import Settings

    tokenizer = AutoTokenizer.from_pretrained(plan.model)
    chat = WideChat.from_tokenizer(tokenizer)
    settings = Settings()
    engine = RatedEngine(plan)
    store = AdapterStore(engine, max_rank=LORA_RANK, shapes=plan.shapes, dtype="bfloat16")
    identity = ServerIdentity(
        instance_id=plan.name,
        model=plan.model,
        model_fingerprint=model_fingerprint(Path(plan.model)),
        tokenizer_hash=tokenizer_hash(tokenizer),
        chat_hash=chat.hash,
        dtype="bfloat16",
        max_lora_rank=LORA_RANK,
        max_players=2,
        max_model_len=_MAX_MODEL_LEN,
    )
    scheduler = Scheduler(
        Model(sampler=engine, chat=chat, max_model_len=_MAX_MODEL_LEN),
        store,
        games_at_once=plan.speed.max_sequences * plan.num_replicas,
        instance_id=plan.name,
        game_timeout=settings.game_timeout,
        workers=WorkerPool(
            call_timeout=settings.call_timeout, session_workers=settings.game_workers
        ),
    )
    try:
        app = create_app(engine, store, scheduler, identity, LineRing(), api_key=None)
        async with serving(app) as url:
            print(url.rpartition(":")[2], flush=True)
            await _parents_end()
    finally:
        store.close()


async def _parents_end() -> None:
    """Wait until the parent process has ended."""
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(1.0)


def plan_to_text(plan: ServerPlan) -> str:
    """Return a plan as a command-line argument."""
    return msgspec.json.encode(plan).decode()


def plan_from_text(text: str) -> ServerPlan:
    """Return the plan from a command-line argument."""
    data: Any = json.loads(text)
    return msgspec.convert(data, ServerPlan)


if __name__ == "__main__":
    asyncio.run(serve(plan_from_text(sys.argv[1])))
