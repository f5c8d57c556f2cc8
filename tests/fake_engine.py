"""The scheduler's parts without vLLM: a real tokenizer, store and game, and an engine that answers
from a script.
"""

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.rollout.messages import RequestedTask, RolloutRequest, read_tasks
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.engine import Sample, SamplingConfig
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.seats import Model
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
TOKENIZER = build_tokenizer(compact_vocabulary(LAPTOP.spec()))
CHAT = ChatFormat.from_tokenizer(TOKENIZER)
SAMPLING = SamplingConfig(max_tokens=4)
BASE = ("base", "base")
Fault = Callable[[int, int], Exception | Sample | None]


def sample(text: str, logprob: float = -0.5) -> Sample:
    """A reply of these words and the end token, each with the same logprob."""
    ids = (*TOKENIZER.encode(text, add_special_tokens=False), CHAT.eos_id)
    return Sample(
        ids=ids, logprobs=(logprob,) * len(ids), finish_reason="stop", num_cached_tokens=0
    )


class FakeEngine:
    """Replies with one of `replies` in turn, unless `fault(game, call)` says otherwise.

    Games are counted in the order in which they start; each is a task of its own. Calls are counted
    per game over all its attempts."""

    def __init__(
        self, replies: Sequence[str] = ("Play 0", "Hint R", "Discard 1"), fault: Fault | None = None
    ) -> None:
        self.is_dead = False
        self.calls: dict[asyncio.Task[Any], int] = {}
        self._replies, self._fault = replies, fault

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingConfig, lora: Any | None, *game: Any
    ) -> Sample:
        task = asyncio.current_task()
        assert task is not None
        call = self.calls.setdefault(task, 0)
        self.calls[task] += 1
        game = list(self.calls).index(task)
        await asyncio.sleep(0)
        found = self._fault(game, call) if self._fault else None
        if isinstance(found, Exception):
            raise found
        return found or sample(self._replies[(game + call) % len(self._replies)])

    async def load_adapter(self, name: str, number: int, path: str) -> Any:
        return name

    async def unload_adapter(self, number: int) -> None:
        return None


def make_scheduler(engine: FakeEngine, *, games_at_once: int = 64, **other: Any) -> Scheduler:
    """A scheduler on the base model; must be called where an event loop runs."""
    store = AdapterStore(engine, max_rank=16, shapes={"model.layers.0.self_attn.q_proj": (4, 4)})
    model = Model(
        sampler=engine,
        **{"chat": CHAT, "max_model_len": 512, "vocab_size": len(TOKENIZER), **other},
    )
    scheduler = Scheduler(model, store, games_at_once=games_at_once, instance_id="here")
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
    """The tasks of a request for these tasks, as `Scheduler.run` takes them."""
    given = {
        "tasks": tasks,
        "num_games": num_games,
        "max_tokens": 4,
        "temperature": 1.0,
        "seats": seats,
    }
    return read_tasks(msgspec.convert(given, RolloutRequest))
