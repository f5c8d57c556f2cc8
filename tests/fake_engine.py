"""The scheduler's parts without vLLM: a real tokenizer, store and game, and a scripted sampler."""

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hanabi_grpo.agents.served_model import Model
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.messages import RequestedTask, RolloutRequest, read_tasks
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample, Sampler, SamplingConfig
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.workers.pool import WorkerPool
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
TOKENIZER = build_tokenizer(compact_vocabulary(LAPTOP.spec()))
CHAT = ChatFormat.from_tokenizer(TOKENIZER)
MAX_MODEL_LEN = 512
SAMPLING = SamplingConfig(max_tokens=4)
BASE = ("base", "base")
Fault = Callable[[int, int], Exception | Sample | None]
"""Game and call to what happens instead of the scripted reply; None: nothing."""


def sample(text: str, logprob: float = -0.5) -> Sample:
    """A reply of these words and the end token, each with the same logprob."""
    ids = (*TOKENIZER.encode(text, add_special_tokens=False), CHAT.eos_id)
    return Sample(
        ids=ids,
        logprobs=(logprob,) * len(ids),
        finish_reason="stop",
        num_cached_tokens=0,
    )


class StubSampler(Sampler):
    """A sampler that is well and does nothing; tests override what they need."""

    is_dead: bool = False
    silence: float = 0.0
    num_copies: int = 1

    @property
    def state(self) -> str:
        return "engine dead" if self.is_dead else "ok"

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        raise NotImplementedError("this test samples nothing")

    async def score(
        self,
        prompt_ids: list[int],
        reply_ids: list[int],
        adapter: AdapterHandle | None,
        copy: int | None = None,
    ) -> tuple[float, ...]:
        raise NotImplementedError("this test scores nothing")

    async def load_adapter(self, name: str, number: int, path: str) -> AdapterHandle:
        return name

    async def unload_adapter(self, number: int) -> None:
        return None

    def stop(self) -> None:
        self.is_dead = True


class FakeEngine(StubSampler):
    """Replies with one of `replies` in turn, unless `fault(game, call)` says otherwise.

    Games are counted in the order in which they start; each is a task of its own. Calls are counted
    per game over all its attempts.
    """

    def __init__(
        self,
        replies: Sequence[str] = ("Play 0", "Hint R", "Discard 1"),
        fault: Fault | None = None,
    ) -> None:
        self.calls: dict[asyncio.Task[Any], int] = {}
        self._replies = replies
        self._fault = fault

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        task = asyncio.current_task()
        assert task is not None
        call = self.calls.setdefault(task, 0)
        self.calls[task] += 1
        number = list(self.calls).index(task)
        await asyncio.sleep(0)
        planted = self._fault(number, call) if self._fault else None
        if isinstance(planted, Exception):
            raise planted
        if planted is not None:
            return planted
        return sample(self._replies[(number + call) % len(self._replies)])


def make_scheduler(
    engine: Sampler,
    *,
    games_at_once: int = 64,
    game_timeout: float = 60.0,
    workers: WorkerPool | None = None,
    chat: ChatFormat = CHAT,
    max_model_len: int = MAX_MODEL_LEN,
    vocab_size: int = len(TOKENIZER),
    **model: Any,
) -> Scheduler:
    """A scheduler on the base model; must be called where an event loop runs."""
    store = AdapterStore(engine, max_rank=16, shapes={"model.layers.0.self_attn.q_proj": (4, 4)})
    scheduler = Scheduler(
        Model(
            sampler=engine,
            chat=chat,
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            **model,
        ),
        store,
        games_at_once=games_at_once,
        instance_id="here",
        game_timeout=game_timeout,
        workers=workers or WorkerPool(call_timeout=60.0, session_workers=1),
    )
    # Its folder lies in shared memory, outside the test's own.
    weakref.finalize(scheduler, store.close)
    return scheduler


def task(seed: int, config: EnvConfig = LAPTOP) -> dict[str, Any]:
    """One task as `RolloutClient.play` takes it."""
    return {"env_config": config.model_dump(mode="json"), "suite": "train", "seed": seed}


def task_row(number: int, config: EnvConfig = LAPTOP) -> TaskRow:
    """Return what `task` asks for, as a task of a run."""
    asked = task(number, config)
    return TaskRow(
        messages=(),
        env="hanabi",
        env_config=asked["env_config"],
        suite=asked["suite"],
        seed=number,
        number=number,
    )


def tasks_of(
    *tasks: dict[str, Any], num_games: int = 1, seats: Sequence[str] | None = BASE
) -> list[RequestedTask]:
    """The tasks of a request, as `Scheduler.run` takes them."""
    request = {
        "tasks": tasks,
        "num_games": num_games,
        "max_tokens": 4,
        "temperature": 1.0,
        "seats": seats,
    }
    return read_tasks(msgspec.convert(request, RolloutRequest))
