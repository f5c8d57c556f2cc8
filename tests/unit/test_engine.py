"""Calls to an engine core that dies meanwhile come to an end, and what it answers is read as it is."""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from hanabi_grpo.errors import ServerError, ServerGoneError
from hanabi_grpo.server.engine import Engine, Pulse, SamplingConfig, _sample


class _Core:
    """vLLM's client as it is when its core has died: a call that never answers."""

    errored = False

    async def add_lora(self, request: Any) -> bool:
        self.errored = True
        await asyncio.Event().wait()
        return True

    def __init__(self) -> None:
        self.answers = True
        self.waiting: asyncio.Queue[Exception] = asyncio.Queue()
        self.output_processor = SimpleNamespace(propagate_error=self.waiting.put_nowait)

    async def list_loras(self) -> set[int]:
        while not self.answers:
            await asyncio.sleep(0.01)
        return set()

    async def generate(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(finished=False)
        raise await self.waiting.get()

    async def remove_lora(self, number: int) -> bool:
        await asyncio.sleep(0.7)
        return True


def _engine() -> Engine:
    engine = Engine.__new__(Engine)
    engine._engine = _Core()
    engine._request_ids = itertools.count()
    engine._pulse = Pulse(engine._engine.list_loras, patience=1.0, every=0.01, look=0.1)
    return engine


def test_a_call_that_the_core_never_answers_ends_when_the_core_is_dead() -> None:
    async def load() -> None:
        with pytest.raises(ServerGoneError, match="the engine died during the call"):
            await asyncio.wait_for(_engine().load_adapter("player_0@1", 1, "/nowhere"), timeout=120)

    asyncio.run(load())


def test_a_slow_call_to_a_living_core_is_waited_for() -> None:
    asyncio.run(_engine().unload_adapter(1))


def test_an_engine_that_stands_still_is_dead_to_those_who_wait_for_it_and_one_that_thaws_is_not() -> None:
    async def scenario() -> None:
        engine = _engine()
        core, watcher = engine._engine, asyncio.create_task(engine._watch())
        for pause in (0.4, 0.2):
            core.answers = False
            await asyncio.sleep(pause)
            assert 0 < engine.silence < 1.0 and (engine.is_dead, engine.state) == (False, "ok")
            core.answers = True
            while engine.silence:
                await asyncio.sleep(0.01)
        # The whole server stood still: that says nothing of the engine.
        core.answers = False
        time.sleep(1.5)
        await asyncio.sleep(0.2)
        assert not engine.is_dead
        with pytest.raises(EngineDeadError):
            await engine.generate([1], SamplingConfig(max_tokens=1), None)
        assert engine.is_dead and re.match(r"engine hung: it has not answered for 1 s", engine.state)
        core.answers = True
        await watcher
        assert engine.is_dead, "its games are gone; it must not come back half"

    asyncio.run(asyncio.wait_for(scenario(), 60))


def _choice(ids: list[int], logprobs: list[float], *, flat: bool) -> Any:
    """Sampled tokens as vLLM's own functions put them together, one by one."""
    from vllm.logprobs import append_logprobs_for_next_position, create_sample_logprobs

    kept = create_sample_logprobs(flat)
    for rank, (token, logprob) in enumerate(zip(ids, logprobs, strict=True), start=1):
        append_logprobs_for_next_position(kept, [token], [logprob], [None], rank, 0)
    return SimpleNamespace(token_ids=ids, logprobs=kept, finish_reason="stop")


def test_flat_logprobs_are_those_that_vllm_gives_as_one_mapping_for_each_token() -> None:
    # A token twice, and one whose logprob is not a number: that is for the scheduler to refuse.
    ids, logprobs = [5, 9, 5, 2], [-0.25, -1.5, 0.0, float("-inf")]
    plain = _choice(ids, logprobs, flat=False)
    expected = tuple(entry[token].logprob for entry, token in zip(plain.logprobs, ids, strict=True))
    sample = _sample(_choice(ids, logprobs, flat=True), num_cached_tokens=3)
    assert (sample.ids, sample.logprobs, sample.finish_reason, sample.num_cached_tokens) == (
        (5, 9, 5, 2),
        expected,
        "stop",
        3,
    )
    assert expected == tuple(logprobs)


@pytest.mark.parametrize("ids", [[5], [5, 9, 2], [9, 5]])
def test_logprobs_of_other_tokens_than_the_reply_are_refused(ids: list[int]) -> None:
    choice = _choice([5, 9], [-0.25, -1.5], flat=True)
    choice.token_ids = ids
    with pytest.raises(ServerError, match="2 logprobs that are not those of its"):
        _sample(choice, num_cached_tokens=0)
