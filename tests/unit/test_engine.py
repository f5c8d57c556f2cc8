"""The vLLM sampler: calls to a core that dies come to an end, answers are read as they are."""

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
from hanabi_grpo.agents.served_model import Model, ServedPlayer
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import ServerError, ServerGoneError
from hanabi_grpo.rollout.sampler import Sample, SamplingConfig
from hanabi_grpo.server.assembly import prepare_environment
from hanabi_grpo.server.engine import Pulse, VllmSampler, _sample, gpu_options, nvcc_release
from hanabi_grpo.server.plugin import PLUGIN_NAME

SAMPLING = SamplingConfig(max_tokens=1)
THREADS = "OMP_NUM_THREADS"


class FakeCore:
    """vLLM's client, whose core dies while it loads an adapter and never answers that call."""

    def __init__(self) -> None:
        self.errored = False
        self.answers = True
        """Whether the core answers questions after its health."""
        self.copies: list[int | None] = []
        """Which copy of the model each request was for."""
        self.errors: asyncio.Queue[Exception] = asyncio.Queue()
        """What requests end with."""
        self.output_processor = SimpleNamespace(propagate_error=self.errors.put_nowait)
        self.removed: list[int] = []
        """Adapters that it has forgotten."""

    async def add_lora(self, request: Any) -> bool:
        self.errored = True
        await asyncio.Event().wait()
        return True

    async def remove_lora(self, number: int) -> bool:
        await asyncio.sleep(0.7)
        self.removed.append(number)
        return True

    async def sleep(self, level: int) -> None:
        self.sleep_level = level

    async def wake_up(self) -> bool:
        return not self.errored and self.answers

    async def list_loras(self) -> set[int]:
        while not self.answers:
            await asyncio.sleep(0.01)
        return set()

    async def generate(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        self.copies.append(options["data_parallel_rank"])
        yield SimpleNamespace(finished=False)
        raise await self.errors.get()


def make_sampler(core: FakeCore, *, copies: int = 1) -> VllmSampler:
    """A sampler around a core that was not started."""
    sampler = VllmSampler.__new__(VllmSampler)
    sampler._engine = core
    sampler._copies = copies
    sampler._request_ids = itertools.count()
    sampler._pulse = Pulse(core.list_loras, patience=1.0, every=0.01, look=0.1)
    return sampler


def test_it_sleeps_at_the_level_that_keeps_the_weights_and_wakes_whole_or_not_at_all() -> None:
    async def scenario() -> None:
        core = FakeCore()
        sampler = make_sampler(core)
        await sampler.sleep()
        assert core.sleep_level == 1
        await sampler.wake()
        core.answers = False
        with pytest.raises(ServerError, match="woke up only in part"):
            await sampler.wake()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_slow_call_is_waited_for() -> None:
    async def scenario() -> None:
        core = FakeCore()
        await make_sampler(core).unload_adapter(1)
        assert core.removed == [1]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_call_that_the_core_never_answers_ends_when_the_core_is_dead() -> None:
    async def scenario() -> None:
        sampler = make_sampler(FakeCore())
        with pytest.raises(ServerGoneError, match="the engine died during the call"):
            await sampler.load_adapter("player_0@1", 1, "/nowhere")

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_an_engine_that_is_silent_for_a_while_or_together_with_the_server_is_not_given_up() -> None:
    async def scenario() -> None:
        core = FakeCore()
        sampler = make_sampler(core)
        watcher = asyncio.create_task(sampler._watch())
        for pause in (0.4, 0.2):
            core.answers = False
            await asyncio.sleep(pause)
            assert 0 < sampler.silence < 1.0
            assert not sampler.is_dead
            assert sampler.state == "ok"
            core.answers = True
            while sampler.silence:
                await asyncio.sleep(0.01)
        # The whole server stands still, which says nothing about the engine.
        core.answers = False
        time.sleep(1.5)
        await asyncio.sleep(0.2)
        assert not sampler.is_dead
        watcher.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_an_engine_that_hangs_is_dead_to_those_who_wait_for_it_and_stays_dead() -> None:
    async def scenario() -> None:
        core = FakeCore()
        sampler = make_sampler(core)
        watcher = asyncio.create_task(sampler._watch())
        core.answers = False
        with pytest.raises(EngineDeadError):
            await sampler.generate([1], SAMPLING, None)
        assert sampler.is_dead
        assert re.match(r"engine hung: it has not answered for 1 s", sampler.state)
        core.answers = True
        await watcher
        assert sampler.is_dead, "its games are gone; it must not come back half"

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize(
    ("copies", "game", "expected"),
    [(4, 4, 0), (4, 7, 3), (4, None, None), (1, 7, None)],
    ids=["game 4 of 4 copies", "game 7 of 4 copies", "no game", "one copy"],
)
def test_a_game_stays_with_one_copy_of_the_model_and_else_vllm_chooses(
    copies: int, game: int | None, expected: int | None
) -> None:
    async def scenario() -> list[int | None]:
        core = FakeCore()
        core.errors = SimpleNamespace(get=AsyncMock(side_effect=EngineDeadError()))  # type: ignore[assignment]
        sampler = make_sampler(core, copies=copies)
        for _ in range(2):
            with pytest.raises(EngineDeadError):
                await sampler.generate([1], SAMPLING, None, game)
        return core.copies

    assert asyncio.run(scenario()) == [expected, expected]


def test_all_seats_of_a_game_ask_the_same_copy_and_games_of_a_group_go_round() -> None:
    async def scenario() -> ServedPlayer:
        model = Model(sampler=make_sampler(FakeCore()), chat=CHAT, max_model_len=64)
        return ServedPlayer(model=model, sampling=SAMPLING)

    player = asyncio.run(scenario())
    task = Setup(HANABI, LAPTOP).task("train", 5)
    assert player.seat(0, task=task, game=6).copy_key == 11
    assert player.seat(1, task=task, game=6).copy_key == 11


@pytest.fixture
def nvcc(tmp_path: Path) -> Path:
    """An nvcc of CUDA 12.8."""
    path = tmp_path / "bin" / "nvcc"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n")
    path.chmod(0o755)
    return path


def test_the_release_of_nvcc_is_read_from_cuda_home_or_the_path(nvcc: Path, tmp_path: Path) -> None:
    assert nvcc_release({"CUDA_HOME": str(tmp_path)}) == "12.8"
    assert nvcc_release({"PATH": str(nvcc.parent)}) == "12.8"
    assert nvcc_release({"CUDA_HOME": str(tmp_path / "none")}) == ""


def test_flashinfer_compiles_nothing_where_nvcc_is_not_of_torchs_cuda(
    nvcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr("torch.version.cuda", "12.9")
    assert gpu_options("float32") == {"max_num_batched_tokens": 8192}
    monkeypatch.setattr("torch.version.cuda", "13.0")
    options = gpu_options("float32")
    assert options["enable_flashinfer_autotune"] is False
    assert options["compilation_config"].pass_config.fuse_allreduce_rms is False


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits_a_gpu_computes_logits_in_float32_as_the_trainer_does(dtype: str) -> None:
    assert gpu_options(dtype)["hf_overrides"] == {"head_dtype": "float32"}


def make_choice(ids: list[int], logprobs: list[float], *, flat: bool) -> Any:
    """Sampled tokens as vLLM's own functions put them together, one by one."""
    from vllm.logprobs import append_logprobs_for_next_position, create_sample_logprobs

    sample_logprobs = create_sample_logprobs(flat)
    for rank, (token, logprob) in enumerate(zip(ids, logprobs, strict=True), start=1):
        append_logprobs_for_next_position(sample_logprobs, [token], [logprob], [None], rank, 0)
    return SimpleNamespace(token_ids=ids, logprobs=sample_logprobs, finish_reason="stop")


def test_flat_logprobs_are_those_that_vllm_gives_as_one_mapping_for_each_token() -> None:
    # A token twice, and one whose logprob is not finite: that is for the scheduler to refuse.
    ids = [5, 9, 5, 2]
    logprobs = [-0.25, -1.5, 0.0, float("-inf")]
    mappings = make_choice(ids, logprobs, flat=False).logprobs
    by_mapping = [mapping[token].logprob for mapping, token in zip(mappings, ids, strict=True)]
    assert by_mapping == logprobs
    assert _sample(make_choice(ids, logprobs, flat=True), num_cached_tokens=3) == Sample(
        ids=(5, 9, 5, 2),
        logprobs=(-0.25, -1.5, 0.0, float("-inf")),
        finish_reason="stop",
        num_cached_tokens=3,
    )


@pytest.mark.parametrize("other_ids", [[5], [5, 9, 5, 2, 2], [9, 5, 5, 2]])
def test_logprobs_of_other_tokens_are_refused(other_ids: list[int]) -> None:
    choice = make_choice([5, 9, 5, 2], [-0.25, -1.5, 0.0, -1.0], flat=True)
    choice.token_ids = other_ids
    with pytest.raises(ServerError, match="4 logprobs that are not those of its"):
        _sample(choice, num_cached_tokens=0)


@pytest.mark.parametrize("reason", ["abort", "error", None])
def test_a_reply_that_the_engine_gave_up_is_refused(reason: str | None) -> None:
    choice = make_choice([5], [-0.25], flat=True)
    choice.finish_reason = reason
    with pytest.raises(ServerError, match=f"after 1 tokens with the reason {reason!r}"):
        _sample(choice, num_cached_tokens=0)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("VLLM_", "OMP_")):
            monkeypatch.delenv(name)


def test_a_gpu_gets_no_settings_of_a_cpu() -> None:
    prepare_environment(on_cpu=False)
    assert THREADS not in os.environ
    assert "OMP_WAIT_POLICY" not in os.environ


@pytest.mark.parametrize(("cores", "threads"), [({3}, "1"), ({0, 1}, "1"), ({7, 2, 4, 6}, "3")])
def test_the_engine_leaves_a_core_to_the_games_where_there_is_another(
    cores: set[int], threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
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
    assert os.environ[THREADS] == "5"
    assert os.environ["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert os.environ["VLLM_PLUGINS"] == PLUGIN_NAME
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
