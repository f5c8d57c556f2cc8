"""Calls to an engine core that dies meanwhile come to an end, its answers are read as they are; its
environment.
"""

import asyncio
import itertools
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from fake_engine import CHAT, LAPTOP
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import ServerError, ServerGoneError
from hanabi_grpo.rollout.sampler import SamplingConfig
from hanabi_grpo.server.assembly import prepare_environment
from hanabi_grpo.server.engine import (
    Pulse,
    VllmSampler,
    _sample,
    gpu_options,
    nvcc_release,
)
from hanabi_grpo.server.plugin import PLUGIN_NAME
from hanabi_grpo.server.seats import Model, ServedPlayer

SAMPLING = SamplingConfig(max_tokens=1)
THREADS = "OMP_NUM_THREADS"


class _Core:
    """vLLM's client as it is when its core has died: a call that never answers."""

    errored = False

    async def add_lora(self, request: Any) -> bool:
        self.errored = True
        await asyncio.Event().wait()
        return True

    def __init__(self) -> None:
        self.answers, self.ranks = True, list[int | None]()
        self.waiting: asyncio.Queue[Exception] = asyncio.Queue()
        self.output_processor = SimpleNamespace(propagate_error=self.waiting.put_nowait)

    async def list_loras(self) -> set[int]:
        while not self.answers:
            await asyncio.sleep(0.01)
        return set()

    async def generate(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        self.ranks.append(options["data_parallel_rank"])
        yield SimpleNamespace(finished=False)
        raise await self.waiting.get()

    async def remove_lora(self, number: int) -> bool:
        await asyncio.sleep(0.7)
        return True


def _engine() -> VllmSampler:
    engine = VllmSampler.__new__(VllmSampler)
    engine._engine, engine._copies = _Core(), 1
    engine._request_ids = itertools.count()
    engine._pulse = Pulse(engine._engine.list_loras, patience=1.0, every=0.01, look=0.1)
    return engine


def test_a_slow_call_is_waited_for_and_one_that_the_core_never_answers_ends_when_the_core_is_dead() -> (
    None
):
    async def load() -> None:
        await _engine().unload_adapter(1)
        with pytest.raises(ServerGoneError, match="the engine died during the call"):
            await asyncio.wait_for(_engine().load_adapter("player_0@1", 1, "/nowhere"), timeout=120)

    asyncio.run(load())


def test_an_engine_that_stands_still_is_dead_to_those_who_wait_for_it_and_one_that_thaws_is_not() -> (
    None
):
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
            await engine.generate([1], SAMPLING, None)
        assert engine.is_dead and re.match(
            r"engine hung: it has not answered for 1 s", engine.state
        )
        core.answers = True
        await watcher
        assert engine.is_dead, "its games are gone; it must not come back half"

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_game_stays_with_one_copy_of_the_model_and_without_copies_or_a_number_vllm_chooses() -> (
    None
):
    async def scenario() -> list[int | None]:
        engine = _engine()
        engine._engine.waiting = SimpleNamespace(get=AsyncMock(side_effect=EngineDeadError()))
        for copies, game in ((4, 4), (4, 7), (4, 7), (4, None), (1, 7)):
            engine._copies = copies
            with pytest.raises(EngineDeadError):
                await engine.generate([1], SAMPLING, None, game)
        return engine._engine.ranks

    assert asyncio.run(scenario()) == [0, 3, 3, None, None]
    served = ServedPlayer(
        model=Model(sampler=_engine(), chat=CHAT, max_model_len=64), sampling=SAMPLING
    )
    task = Setup(HANABI, LAPTOP).task("train", 5)
    assert [served.seat(seat, task=task, game=6).game for seat in range(2)] == [11, 11]


def test_flashinfer_compiles_nothing_where_nvcc_is_not_of_torchs_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n")
    nvcc.chmod(0o755)
    for found in ({"CUDA_HOME": str(tmp_path)}, {"PATH": str(nvcc.parent)}):
        assert nvcc_release(found) == "12.8"
    assert nvcc_release({"CUDA_HOME": str(tmp_path / "none")}) == ""
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr("torch.version.cuda", "12.9")
    assert gpu_options() == {"max_num_batched_tokens": 8192}
    monkeypatch.setattr("torch.version.cuda", "13.0")
    options = gpu_options()
    assert options["enable_flashinfer_autotune"] is False
    assert options["compilation_config"].pass_config.fuse_allreduce_rms is False


def _choice(ids: list[int], logprobs: list[float], *, flat: bool) -> Any:
    """Sampled tokens as vLLM's own functions put them together, one by one."""
    from vllm.logprobs import append_logprobs_for_next_position, create_sample_logprobs

    kept = create_sample_logprobs(flat)
    for rank, (token, logprob) in enumerate(zip(ids, logprobs, strict=True), start=1):
        append_logprobs_for_next_position(kept, [token], [logprob], [None], rank, 0)
    return SimpleNamespace(token_ids=ids, logprobs=kept, finish_reason="stop")


def test_flat_logprobs_are_those_that_vllm_gives_as_one_mapping_for_each_token_and_of_no_other() -> (
    None
):
    # A token twice, and one whose logprob is not a number: that is for the scheduler to refuse.
    ids, logprobs = [5, 9, 5, 2], [-0.25, -1.5, 0.0, float("-inf")]
    plain = _choice(ids, logprobs, flat=False)
    expected = tuple(entry[token].logprob for entry, token in zip(plain.logprobs, ids, strict=True))
    sample = _sample(_choice(ids, logprobs, flat=True), num_cached_tokens=3)
    told = (sample.ids, sample.logprobs, sample.finish_reason, sample.num_cached_tokens)
    assert told == ((5, 9, 5, 2), expected, "stop", 3)
    assert expected == tuple(logprobs)
    for other in ([5], [5, 9, 5, 2, 2], [9, 5, 5, 2]):
        choice = _choice(ids, logprobs, flat=True)
        choice.token_ids = other
        with pytest.raises(ServerError, match="4 logprobs that are not those of its"):
            _sample(choice, num_cached_tokens=0)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("VLLM_", "OMP_"))]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("cores", "threads"), [({3}, "1"), ({0, 1}, "1"), ({7, 2, 4, 6}, "3")])
def test_the_engine_leaves_a_core_to_the_games_where_there_is_another(
    cores: set[int], threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
    monkeypatch.delenv(THREADS, raising=False)
    prepare_environment(on_cpu=False)
    assert THREADS not in os.environ and "OMP_WAIT_POLICY" not in os.environ, (
        "a GPU gets no settings of a CPU"
    )
    prepare_environment(on_cpu=True)
    assert os.environ[THREADS] == threads


def test_what_the_user_set_stays_but_for_what_ties_the_engine_to_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(THREADS, "5")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.setenv("VLLM_PLUGINS", "some,others")
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    prepare_environment(on_cpu=True)
    assert (os.environ[THREADS], os.environ["VLLM_CPU_KVCACHE_SPACE"]) == ("5", "7")
    assert os.environ["VLLM_PLUGINS"] == PLUGIN_NAME
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
