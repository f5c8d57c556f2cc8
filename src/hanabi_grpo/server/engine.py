"""The only module that talks to vLLM: start, generate, LoRA load and unload, health.

vLLM's stock `AsyncLLM` is fed token ids, so no text is encoded twice. Log-probabilities come back
under the sampled distribution (after temperature), which is the one that the trainer computes."""

import asyncio
import itertools
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hanabi_grpo.errors import ServerError, ServerGoneError
from hanabi_grpo.rollout.sampler import Sample, SamplingConfig
from hanabi_grpo.server.plugin import tie_coordinator
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.pass_through import check_options

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

logger = logging.getLogger(__name__)

MAX_VERSIONS = 3
"""Of one adapter of the session: the served one, and older ones that games still use."""
MAX_FROZEN = 16
NUM_PARTNERS = 4
"""Slots for lent adapters beside the session's own; requests that need more at once wait in vLLM's
scheduler. A slot costs, in device memory, rank x (in + out) numbers per linear layer: 66 MB for a
4B model at rank 16."""
BLOCK_SIZE = 32
"""Tokens of a cache block on CPU, where vLLM's default of 128 means that short prompts share no
prefix.
"""
BATCHED_TOKENS = 8192
"""Prompt tokens of one step on a GPU; vLLM's default for an engine inside another program is
2048.
"""
_LOOK_SECONDS = 0.5
_Answer = TypeVar("_Answer")


def engine_options(settings: Settings, model: str, shapes: Iterable[str] = ()) -> dict[str, Any]:
    """Return vLLM's options; `model` is the folder that MODEL means, `shapes` what an adapter
    covers.
    """
    return {
        "model": model,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "enable_lora": True,
        "max_lora_rank": settings.lora_rank,
        # How many adapters one batch may mix.
        "max_loras": settings.players + NUM_PARTNERS,
        # Kept in the machine's memory: all that can be held. vLLM (0.32,
        # `LRUCacheWorkerLoRAManager`) drops the least recently used one beyond that and reads it
        # again from its path when a request names it; a missing file would raise inside the engine
        # core and end it.
        "max_cpu_loras": MAX_VERSIONS * settings.players + MAX_FROZEN,
        # By default vLLM multiplies embeddings and output head with an adapter of zeros too (0.32:
        # on CPU that was 40 % of what adapters cost).
        "lora_target_modules": sorted({module.rpartition(".")[2] for module in shapes}) or None,
        "tensor_parallel_size": settings.vllm_tensor_parallel_size,
        "data_parallel_size": settings.vllm_data_parallel_size,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "seed": settings.seed,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "skip_tokenizer_init": False,
    }


def engine_args(options: Mapping[str, Any], extra_args: Sequence[str] = ()) -> "AsyncEngineArgs":
    """Return what vLLM is started with; its own options in `extra_args` go before ours if they
    break no guarantee.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    check_options("server", extra_args)
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(add_help=False))
    on_cpu = {"block_size": BLOCK_SIZE, "enforce_eager": True}
    parser.set_defaults(**options, **(on_cpu if current_platform.is_cpu() else gpu_options()))
    args = AsyncEngineArgs.from_cli_args(parser.parse_args(list(extra_args)))
    if current_platform.is_cpu() and args.tensor_parallel_size == 1:
        # The engine core computes itself, as vLLM (0.32) has it on a single GPU. On a CPU it would
        # start a worker for that, because it sets the worker's threads; here `prepare_environment`
        # has.
        args.distributed_executor_backend = UniProcExecutor
    return args


def gpu_options() -> dict[str, Any]:
    """Return vLLM's options for GPUs: FlashInfer compiles nothing where the machine's nvcc is not
    of torch's CUDA.
    """
    import torch
    from vllm.config.compilation import CompilationConfig, PassConfig

    options: dict[str, Any] = {"max_num_batched_tokens": BATCHED_TOKENS}
    nvcc, wanted = nvcc_release(os.environ), str(torch.version.cuda)
    if nvcc.partition(".")[0] != wanted.partition(".")[0]:
        found = f"nvcc is of CUDA {nvcc}" if nvcc else "there is no nvcc"
        logger.info(
            "engine: no FlashInfer autotune and all-reduce fusion (%s, torch is of %s)",
            found,
            wanted,
        )
        no_fusion = CompilationConfig(pass_config=PassConfig(fuse_allreduce_rms=False))
        options |= {"enable_flashinfer_autotune": False, "compilation_config": no_fusion}
    return options


def nvcc_release(environ: Mapping[str, str]) -> str:
    """Return the CUDA release, e.g. "13.0", of the nvcc that FlashInfer would run (0.32); "" where
    there is none.
    """
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    found = None if home else shutil.which("nvcc", path=environ.get("PATH"))
    program = Path(found) if found else Path(home or "/usr/local/cuda", "bin", "nvcc")
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    release = re.search(r"release (\d+\.\d+)", said)
    return release[1] if release else ""


class Pulse:
    """Asks the engine again and again whether it answers, and gives up after too long a silence.

    A process that stands still neither dies nor samples, and vLLM waits for it. The question goes
    through engine core and workers and is answered between two steps. So a busy engine answers
    after each step, also after those of a long prompt, which give no token; one that does not
    answer makes no steps any more."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[object]],
        *,
        patience: float,
        every: float = 5.0,
        look: float = _LOOK_SECONDS,
    ) -> None:
        """Prepare to `ask`, which returns once the engine has answered, and raises when it is dead.

        After `patience` seconds of silence the engine is given up; a step must be shorter. The next
        question comes `every` so many seconds after an answer, and every `look` seconds it is
        looked whether one is there."""
        self._ask, self._patience, self._every, self._look = ask, patience, every, look
        self.silence = 0.0
        """Seconds since a question that is not yet answered, or since the last reply that came
        meanwhile.
        """

    @property
    def is_lost(self) -> bool:
        """True once the silence was too long."""
        return self.silence >= self._patience

    def beat(self) -> None:
        """Note a sign of life; it comes too late for an engine that was given up."""
        if not self.is_lost:
            self.silence = 0.0

    async def watch(self) -> None:
        """Ask until the engine is lost. Raises what asking raises."""
        while not self.is_lost:
            answer = asyncio.ensure_future(self._ask())
            try:
                while not (await asyncio.wait({answer}, timeout=self._look))[0]:
                    # A look counts the same however long ago the last one was: when this process
                    # stood still as well, it has learnt nothing of the engine.
                    self.silence += self._look
                    if self.is_lost:
                        return
                await answer
            finally:
                answer.cancel()
            self.beat()
            await asyncio.sleep(self._every)


class Engine:
    """An `AsyncLLM` with the few calls that games need."""

    def __init__(
        self, options: Mapping[str, Any], extra_args: Sequence[str] = (), *, patience: float
    ) -> None:
        """Start the engine (tens of seconds), inside the running event loop and on the main thread;
        see `Pulse`.
        """
        from vllm.v1.engine.async_llm import AsyncLLM

        args = engine_args(options, extra_args)
        if args.data_parallel_size > 1:
            tie_coordinator()
        self._engine, self._copies = AsyncLLM.from_engine_args(args), args.data_parallel_size
        self._request_ids = itertools.count()
        self._pulse = Pulse(self._engine.list_loras, patience=patience)
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await self._pulse.watch()
        except Exception as error:
            # A dead engine cannot be asked; `is_dead` knows of it.
            logger.info(
                "the engine is no longer asked how it is: %s: %s", type(error).__name__, error
            )
            return
        logger.error(self.state)
        # Whoever waits for a reply learns it now, as when the core dies.
        self._engine.output_processor.propagate_error(EngineDeadError())

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        lora: Any | None,
        game: int | None = None,
    ) -> Sample:
        """Sample one reply to a whole conversation. `lora` must be loaded now, else it would kill
        the engine.

        With copies of the model, those of one `game` number are asked of the same copy, whose cache
        holds the earlier turns; without a number vLLM chooses."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            # Nobody else holds these parameters; a deep copy of them would cost the event loop 0.1
            # ms a turn.
            skip_clone=True,
        )
        rank = game % self._copies if game is not None and self._copies > 1 else None
        final = await self._final(prompt_ids, params, lora, rank)
        return _sample(final.outputs[0], num_cached_tokens=final.num_cached_tokens or 0)

    async def logprobs(
        self, prompt_ids: list[int], reply_ids: list[int], lora: Any | None
    ) -> tuple[float, ...]:
        """Return the log-probability of each id of a reply that is given, in nats, at temperature
        1.
        """
        from vllm import SamplingParams

        ids = [*prompt_ids, *reply_ids]
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        rows = (await self._final(ids, params, lora)).prompt_logprobs
        if rows is None or len(rows) != len(ids):
            raise ServerError(
                "vLLM scored another text than was given; look for the engine's error above in "
                "this log."
            )
        return tuple(rows[place][ids[place]].logprob for place in range(len(prompt_ids), len(ids)))

    async def _final(
        self, ids: list[int], params: Any, lora: Any | None, rank: int | None = None
    ) -> Any:
        """Return the last output of a request, a sign of life."""
        prompt, number, final = {"prompt_token_ids": ids}, f"r{next(self._request_ids)}", None
        async for output in self._engine.generate(
            prompt, params, number, lora_request=lora, data_parallel_rank=rank
        ):
            final = output
        self._pulse.beat()
        if final is None or not final.finished:
            raise ServerError(
                "vLLM ended a request without an answer; look for the engine's error above in "
                "this log."
            )
        return final

    async def load_adapter(self, name: str, number: int, path: str) -> Any:
        """Load a PEFT folder under a name and id that were never used before; return its
        `LoRARequest`.
        """
        from vllm.lora.request import LoRARequest

        request = LoRARequest(name, number, path)
        if not await self._while_alive(self._engine.add_lora(request)):
            raise ServerError(
                f"vLLM did not load adapter {name} and gave no reason; the old version stays "
                "served."
            )
        return request

    async def unload_adapter(self, number: int) -> None:
        """Forget an adapter that no game uses any more."""
        await self._while_alive(self._engine.remove_lora(number))

    async def reset_prefix_cache(self) -> bool:
        """Drop cached prefixes; False when blocks are in use (harmless: names carry the
        version).
        """
        return bool(await self._while_alive(self._engine.reset_prefix_cache()))

    async def _while_alive(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        # vLLM never answers such a call when the core dies meanwhile.
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=_LOOK_SECONDS))[0]:
                if self.is_dead:
                    raise ServerGoneError(
                        "the engine died during the call; the server starts again or ends."
                    )
            return task.result()
        finally:
            task.cancel()

    @property
    def is_dead(self) -> bool:
        """True once the engine core has failed, or has not answered for too long; it does not come
        back.
        """
        return bool(self._engine.errored) or self._pulse.is_lost

    @property
    def state(self) -> str:
        """How the engine is, in words: "ok" unless it is dead."""
        if self._pulse.is_lost:
            return (
                f"engine hung: it has not answered for {self._pulse.silence:.0f} s "
                "(HANABI_ENGINE_TIMEOUT); the server "
                "starts again or ends, its log says which"
            )
        return (
            "engine dead: the server starts again or ends; its log says which"
            if self.is_dead
            else "ok"
        )

    @property
    def silence(self) -> float:
        """Seconds for which the engine has not answered; a long step is one reason."""
        return self._pulse.silence

    def stop(self) -> None:
        """End the engine core and its workers."""
        self._watcher.cancel()
        self._engine.shutdown()


def _sample(choice: Any, *, num_cached_tokens: int) -> Sample:
    """Return what vLLM (0.32, `CompletionOutput` with `FlatLogprobs`) holds of a reply."""
    ids, flat = tuple(choice.token_ids), choice.logprobs
    if tuple(flat.token_ids) != ids:
        raise ServerError(
            f"vLLM gave {len(flat.token_ids)} logprobs that are not those of its {len(ids)} tokens."
        )
    logprobs, reason = tuple(flat.logprobs), choice.finish_reason
    return Sample(
        ids=ids, logprobs=logprobs, finish_reason=reason, num_cached_tokens=num_cached_tokens
    )
