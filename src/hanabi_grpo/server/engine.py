"""The vLLM sampler, the only module that talks to vLLM: start, generate, score, adapters, health.

vLLM's stock `AsyncLLM` gets token ids, so no text is encoded twice. The returned log-probabilities
are those of the sampled distribution (after temperature), which the trainer computes as well.
"""

import asyncio
import itertools
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from hanabi_grpo.errors import ServerError, ServerGoneError, SettingsError
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample, SamplingConfig
from hanabi_grpo.server.adapter_loader import MAX_FROZEN, MAX_PROBES, MAX_VERSIONS
from hanabi_grpo.server.plugin import tie_coordinator
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.pass_through import PAGE as PASS_THROUGH_PAGE
from hanabi_grpo.settings.pass_through import check_options

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.lora.request import LoRARequest
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

BLOCK_SIZE = 32
"""Tokens of a cache block on CPU.

With vLLM's CPU default of 128, short prompts would share no prefix."""

BATCHED_TOKENS = 8192
"""Prompt tokens of one step on a GPU.

vLLM's default for an engine inside another program is 2048."""

_LOOK_SECONDS = 0.5
"""Time between two checks whether a call was answered or the engine died."""

_COMPLETE = ("stop", "length")
"""Reasons with which vLLM ends a reply that the model has sampled."""
_PULSE_SECONDS = 5.0
"""Time between an answer of the engine and the next health check."""

_NVCC_SECONDS = 10
"""Time limit of `nvcc --version`."""

_Answer = TypeVar("_Answer")


def engine_options(
    settings: Settings, model: str, shapes: Iterable[str] = (), *, num_engines: int = 1
) -> dict[str, Any]:
    """Return the options with which vLLM is started.

    Args:
        settings: The server's settings.
        model: Folder of the model.
        shapes: Paths of the modules that an adapter covers, see `adapter_files.Shapes`.
        num_engines: Number of this server's engines, which share the memory of its GPUs.

    Returns:
        Names and values of `AsyncEngineArgs`.
    """
    module_names = {module.rpartition(".")[2] for module in shapes}
    # Weights and cache in memory that can be released; off by default, because vLLM's allocator for
    # it excludes others.
    sleep_options = {"enable_sleep_mode": True} if settings.sleep else {}
    return {
        **sleep_options,
        "model": model,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "enable_lora": True,
        "max_lora_rank": settings.largest_rank,
        # Number of adapters in one batch; with HANABI_OVERLAP several versions play at once.
        # Requests for further adapters wait in vLLM's scheduler. A slot takes rank x (in + out)
        # numbers per linear layer, 66 MB for a 4B model at rank 16, and kernels for adapters are
        # launched for all slots.
        "max_loras": settings.players * (1 + settings.overlap) + settings.guest_slots,
        # Adapters kept in host memory: as many as the server may hold. With more, vLLM (0.32,
        # `LRUCacheWorkerLoRAManager`) would drop the least recently used one and read it again from
        # its path when a request names it; a missing file would raise inside the engine core and
        # end it.
        "max_cpu_loras": MAX_VERSIONS * settings.players + MAX_FROZEN + MAX_PROBES,
        # By default vLLM wraps embeddings and output head with an adapter of zeros too (0.32: on
        # CPU that was 40 % of what adapters cost).
        "lora_target_modules": sorted(module_names) or None,
        "tensor_parallel_size": settings.vllm_tensor_parallel_size,
        "data_parallel_size": settings.vllm_data_parallel_size,
        "gpu_memory_utilization": settings.gpu_memory_utilization / num_engines,
        "seed": settings.seed,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "skip_tokenizer_init": False,
    }


def engine_args(options: Mapping[str, Any], extra_args: Sequence[str] = ()) -> "AsyncEngineArgs":
    """Return vLLM's parsed arguments.

    Args:
        options: Our defaults, see `engine_options`.
        extra_args: vLLM's own command line options, which override ours.

    Raises:
        SettingsError: One of `extra_args` would break a guarantee of this server, or vLLM rejects
            it.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    class OptionParser(FlexibleArgumentParser):
        def error(self, message: str) -> NoReturn:
            # argparse would print vLLM's 200 options and exit.
            raise SettingsError(
                f"options passed through to vLLM, {shlex.join(extra_args)}: vLLM reports "
                f'"{message}". `vllm serve --help=all` lists its options; see {PASS_THROUGH_PAGE}.'
            )

    check_options("server", extra_args)
    on_cpu = current_platform.is_cpu()
    device_options = cpu_options() if on_cpu else gpu_options(str(options["dtype"]))
    parser = AsyncEngineArgs.add_cli_args(OptionParser(add_help=False))
    parser.set_defaults(**options, **device_options)
    args = AsyncEngineArgs.from_cli_args(parser.parse_args(list(extra_args)))
    if on_cpu and args.tensor_parallel_size == 1:
        # The engine core computes in its own process, as vLLM (0.32) does on a single GPU. On a
        # CPU it would start a worker only to set the worker's threads, which `prepare_environment`
        # has already set.
        args.distributed_executor_backend = UniProcExecutor
    elif _has_copies_of_one_device(args):
        # The same as vLLM (0.32) does for a single copy. For several, it would start a worker for
        # each engine core, and every token would pass between the two.
        args.distributed_executor_backend = "uni"
    return args


def _has_copies_of_one_device(args: "AsyncEngineArgs") -> bool:
    """Tell whether there are copies of the model, each on one GPU of this machine.

    False if the user has specified how the copies run.
    """
    return (
        args.data_parallel_size > 1
        and args.tensor_parallel_size == 1
        and args.pipeline_parallel_size == 1
        and args.nnodes == 1
        and args.data_parallel_backend != "ray"
        and args.distributed_executor_backend is None
    )


def cpu_options() -> dict[str, Any]:
    """Return vLLM's options for a CPU."""
    return {"block_size": BLOCK_SIZE, "enforce_eager": True}


def gpu_options(dtype: str) -> dict[str, Any]:
    """Return vLLM's options for GPUs.

    FlashInfer must not compile anything if the machine's nvcc does not match torch's CUDA.

    Args:
        dtype: Number format of the model.
    """
    import torch
    from vllm.config.compilation import CompilationConfig, PassConfig

    options: dict[str, Any] = {"max_num_batched_tokens": BATCHED_TOKENS}
    if dtype != "float32":
        # The trainer computes logits in float32. vLLM's default of 16 bits would be off by up to
        # 0.04 nats.
        options["hf_overrides"] = {"head_dtype": "float32"}
    nvcc = nvcc_release(os.environ)
    cuda = str(torch.version.cuda)
    if nvcc.partition(".")[0] == cuda.partition(".")[0]:
        return options
    logger.info(
        "engine: FlashInfer autotune and all-reduce fusion are disabled (%s, torch is built for "
        "CUDA %s)",
        f"nvcc is from CUDA {nvcc}" if nvcc else "nvcc not found",
        cuda,
    )
    options["enable_flashinfer_autotune"] = False
    options["compilation_config"] = CompilationConfig(
        pass_config=PassConfig(fuse_allreduce_rms=False)
    )
    return options


def nvcc_release(environ: Mapping[str, str]) -> str:
    """Return the CUDA release of the nvcc that FlashInfer would run (0.32), "" if there is none.

    Example: "13.0".
    """
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    program = Path(home or "/usr/local/cuda", "bin", "nvcc")
    if not home:
        program = Path(shutil.which("nvcc", path=environ.get("PATH")) or program)
    try:
        process = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            timeout=_NVCC_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    release = re.search(r"release (\d+\.\d+)", process.stdout)
    return release[1] if release else ""


class Pulse:
    """Periodic health check of the engine, which is given up after too long a silence.

    A process that hangs neither dies nor samples, and vLLM waits for it forever. The check goes
    through engine core and workers and is answered between two steps. So a busy engine answers
    after each step, even after steps of a long prompt, which yield no token; an engine that does
    not answer no longer makes steps.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[object]],
        *,
        patience: float,
        every: float = _PULSE_SECONDS,
        look: float = _LOOK_SECONDS,
    ) -> None:
        """Prepare to watch the engine.

        Args:
            ask: Returns once the engine has answered, and raises if it is dead.
            patience: Seconds of silence after which the engine is given up; must exceed any step.
            every: Seconds between an answer and the next check.
            look: Seconds between two looks for the answer.
        """
        self._ask = ask
        self._patience = patience
        self._every = every
        self._look = look
        self.silence = 0.0
        """Seconds since the unanswered check, or since a later sign of life."""

    @property
    def is_lost(self) -> bool:
        """True once the silence has been too long."""
        return self.silence >= self._patience

    def beat(self) -> None:
        """Note a sign of life; it has no effect on an engine that was given up."""
        if not self.is_lost:
            self.silence = 0.0

    async def watch(self) -> None:
        """Check until the engine is lost. Raises the errors of `ask`."""
        while not self.is_lost:
            answer = asyncio.ensure_future(self._ask())
            try:
                while True:
                    done, _ = await asyncio.wait({answer}, timeout=self._look)
                    if done:
                        break
                    # Each look counts the same, however long ago the last one was: a suspension of
                    # this process says nothing about the engine.
                    self.silence += self._look
                    if self.is_lost:
                        return
                await answer
            finally:
                answer.cancel()
            self.beat()
            await asyncio.sleep(self._every)


class VllmSampler:
    """A `Sampler` on vLLM's `AsyncLLM`."""

    def __init__(
        self, options: Mapping[str, Any], extra_args: Sequence[str] = (), *, patience: float
    ) -> None:
        """Start the engine, which takes tens of seconds.

        Must be called inside the running event loop and on the main thread.

        Args:
            options: See `engine_options`.
            extra_args: vLLM's own command line options.
            patience: Seconds without an answer after which the engine counts as dead, see `Pulse`.
        """
        from vllm.v1.engine.async_llm import AsyncLLM

        args = engine_args(options, extra_args)
        if args.data_parallel_size > 1:
            tie_coordinator()
        self._engine = AsyncLLM.from_engine_args(args)
        self._copies = args.data_parallel_size
        self._request_ids = itertools.count()
        self._pulse = Pulse(self._engine.list_loras, patience=patience)
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await self._pulse.watch()
        except Exception as error:
            # A dead engine cannot be checked; `is_dead` reports it.
            logger.info(
                "the engine's health is no longer checked: %s: %s", type(error).__name__, error
            )
            return
        logger.error(self.state)
        # All pending requests fail now, as when the core dies.
        self._engine.output_processor.propagate_error(EngineDeadError())

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        """Sample one reply to a whole conversation, see `Sampler.generate`.

        Args:
            prompt_ids: Token ids of the conversation so far.
            sampling: Length limit and temperature.
            adapter: A `LoRARequest` that is currently loaded: one whose files are gone kills the
                engine core. None: the base model.
            game: Chooses the copy of the model, if there are several; None: vLLM chooses.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.token_filter.top_p,
            top_k=sampling.token_filter.top_k,
            seed=sampling.seed,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            # These parameters are not shared; a deep copy would cost the event loop 0.1 ms per
            # turn.
            skip_clone=True,
        )
        copy = None
        if game is not None and self._copies > 1:
            copy = game % self._copies
        output = await self._final_output(prompt_ids, params, adapter, copy)
        return _sample(output.outputs[0], num_cached_tokens=output.num_cached_tokens or 0)

    @property
    def num_copies(self) -> int:
        """See `Sampler.num_copies`."""
        return self._copies

    async def score(
        self,
        prompt_ids: list[int],
        reply_ids: list[int],
        adapter: AdapterHandle | None,
        copy: int | None = None,
    ) -> tuple[float, ...]:
        """Return the log-probability of each id of a given reply, see `Sampler.score`."""
        from vllm import SamplingParams

        ids = [*prompt_ids, *reply_ids]
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        rank = copy if self._copies > 1 else None
        output = await self._final_output(ids, params, adapter, rank)
        positions = output.prompt_logprobs
        if positions is None or len(positions) != len(ids):
            raise ServerError(
                "vLLM scored a different text than given; look for the engine's error above "
                "in this log."
            )
        logprobs = []
        for position in range(len(prompt_ids), len(ids)):
            token = ids[position]
            logprobs.append(positions[position][token].logprob)
        return tuple(logprobs)

    async def _final_output(
        self,
        ids: list[int],
        params: "SamplingParams",
        adapter: AdapterHandle | None,
        copy: int | None = None,
    ) -> "RequestOutput":
        """Return the last output of a request, which is also a sign of life."""
        request_id = f"r{next(self._request_ids)}"
        final = None
        async for output in self._engine.generate(
            {"prompt_token_ids": ids},
            params,
            request_id,
            lora_request=cast("LoRARequest | None", adapter),
            data_parallel_rank=copy,
        ):
            final = output
        self._pulse.beat()
        if final is None or not final.finished:
            raise ServerError(
                "vLLM ended a request without an answer; look for the engine's error above "
                "in this log."
            )
        return final

    async def load_adapter(self, name: str, number: int, path: str) -> AdapterHandle:
        """Load a PEFT folder and return its `LoRARequest`, see `Sampler.load_adapter`."""
        from vllm.lora.request import LoRARequest

        request = LoRARequest(name, number, path)
        is_loaded = await self._while_alive(self._engine.add_lora(request))
        if not is_loaded:
            raise ServerError(
                f"vLLM did not load adapter {name} and gave no reason; the old version stays "
                "served."
            )
        return request

    async def unload_adapter(self, number: int) -> None:
        """Unload an adapter that no game uses anymore."""
        await self._while_alive(self._engine.remove_lora(number))

    async def sleep(self) -> None:
        """Move the weights to the host's memory and drop the cache (vLLM's sleep level 1).

        Adapters stay: their slots on the device are part of the weights.
        """
        await self._while_alive(self._engine.sleep(level=1))

    async def wake(self) -> None:
        """Allocate the memory again."""
        is_awake = await self._while_alive(self._engine.wake_up())
        if not is_awake:
            raise ServerError("vLLM woke up only in part; see its log above.")

    async def reset_prefix_cache(self) -> bool:
        """Drop cached prefixes; False when blocks are in use.

        Stale prefixes do no harm, because adapter names include the version.
        """
        return bool(await self._while_alive(self._engine.reset_prefix_cache()))

    async def _while_alive(self, call: Coroutine[Any, Any, _Answer]) -> _Answer:
        # vLLM never answers such a call if the core dies in the meantime.
        task = asyncio.ensure_future(call)
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=_LOOK_SECONDS)
                if done:
                    return task.result()
                if self.is_dead:
                    raise ServerGoneError(
                        "the engine died during the call; the server restarts or exits."
                    )
        finally:
            task.cancel()

    @property
    def is_dead(self) -> bool:
        """True once the engine core has failed, or has not answered for too long."""
        return bool(self._engine.errored) or self._pulse.is_lost

    @property
    def state(self) -> str:
        """The engine's health as text: "ok" unless it is dead."""
        if self._pulse.is_lost:
            return (
                f"engine hung: it has not answered for {self._pulse.silence:.0f} s "
                "(HANABI_ENGINE_TIMEOUT); the server restarts or exits, see its log"
            )
        if self.is_dead:
            return "engine dead: the server restarts or exits; see its log"
        return "ok"

    @property
    def silence(self) -> float:
        """Seconds since the engine last answered; a long step is one possible reason."""
        return self._pulse.silence

    def stop(self) -> None:
        """End the engine core and its workers."""
        self._watcher.cancel()
        self._engine.shutdown()


def _sample(choice: "CompletionOutput", *, num_cached_tokens: int) -> Sample:
    """Return a reply as a `Sample` (vLLM 0.32: `CompletionOutput` with `FlatLogprobs`)."""
    if choice.finish_reason not in _COMPLETE:
        raise ServerError(
            f"vLLM ended a reply after {len(choice.token_ids)} tokens with the reason "
            f"{choice.finish_reason!r}, so it is not what the model would have said; allowed are "
            f"{', '.join(_COMPLETE)}. See the log for why the engine gave it up."
        )
    ids = tuple(choice.token_ids)
    logprobs = choice.logprobs
    if tuple(logprobs.token_ids) != ids:
        raise ServerError(
            f"vLLM returned {len(logprobs.token_ids)} logprobs that are not those of its "
            f"{len(ids)} tokens."
        )
    return Sample(
        ids=ids,
        logprobs=tuple(logprobs.logprobs),
        finish_reason=choice.finish_reason,
        num_cached_tokens=num_cached_tokens,
    )
