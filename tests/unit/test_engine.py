"""Calls to an engine core that dies meanwhile come to an end, and what it answers is read as it is."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bench_engine import engine_logprobs
from hanabi_grpo.errors import ServerError, ServerGoneError
from hanabi_grpo.server.engine import Engine, _sample


class _Core:
    """vLLM's client as it is when its core has died: a call that never answers."""

    errored = False

    async def add_lora(self, request: Any) -> bool:
        self.errored = True
        await asyncio.Event().wait()
        return True

    async def remove_lora(self, number: int) -> bool:
        await asyncio.sleep(0.7)
        return True


def _engine() -> Engine:
    engine = Engine.__new__(Engine)
    engine._engine = _Core()
    return engine


def test_a_call_that_the_core_never_answers_ends_when_the_core_is_dead() -> None:
    async def load() -> None:
        with pytest.raises(ServerGoneError, match="the engine died during the call"):
            await asyncio.wait_for(_engine().load_adapter("player_0@1", 1, "/nowhere"), timeout=120)

    asyncio.run(load())


def test_a_slow_call_to_a_living_core_is_waited_for() -> None:
    asyncio.run(_engine().unload_adapter(1))


def _choice(ids: list[int], logprobs: list[float], *, flat: bool) -> Any:
    return SimpleNamespace(token_ids=ids, logprobs=engine_logprobs(ids, logprobs, flat=flat), finish_reason="stop")


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
