"""Estimates of the memory of server and trainer, from the model's sizes and the settings.

The estimates are rough and count each part at its maximum: the longest conversation that the
settings allow, and the largest micro-batch. All numbers are bytes unless stated otherwise.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.experts import Experts, experts_of
from hanabi_grpo.commands.doctor.gpus import smallest_gpu
from hanabi_grpo.commands.doctor.published import PUBLISHED, SIZE_KEYS, num_parameters_of
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.adapter_config import is_mixture, text_config_of
from hanabi_grpo.settings import batch_plan
from hanabi_grpo.settings.base_models import base_models
from hanabi_grpo.settings.pass_through import Terminal
from hanabi_grpo.settings.steps import ZERO_3, deepspeed_stage, tokens_per_micro_batch

_GIB = 1 << 30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes per number for each HANABI_DTYPE."""
_PROCESS = 2.0 * _GIB
"""Memory of each process for any model: libraries, or the CUDA context."""
_CHUNK = 1024
"""`training.model.output_head.CHUNK`: tokens whose logits are held at once.

R17 of `tools/bench` measures 16 bytes for each logit of a chunk, and nothing else.
"""
_BYTES_PER_LOGIT = 16.0
_BYTES_PER_WHOLE_LOGIT_16_BIT = 8.0
"""Bytes per 16-bit logit if the logits of all replies are held at once."""
_ADAPTER_COPIES = 4.0
"""Copies of each player's adapter: one on the server's device, three beside it."""
_RECOMPUTED_SHARE = 1.3
"""Memory of one layer that is recomputed for its gradient, relative to its activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """The sizes of a transformer, as its config.json gives them."""

    hidden: int
    """Width of the residual stream."""
    inner: int
    """Feed-forward width that is active for a token, in the widest layer."""
    layers: int
    heads: int
    """Query heads."""
    key_value_heads: int
    head: int
    """Width of one head."""
    vocabulary: int
    experts: Experts | None = None
    """Experts of a mixture; None: the model is dense."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelSizes | None":
        """Return the sizes of a config.json; None if it does not have them."""
        text_config = text_config_of(config)
        experts = experts_of(config)
        has_unknown_experts = is_mixture(config) and experts is None
        if not all(text_config.get(key) for key in SIZE_KEYS) or has_unknown_experts:
            return None
        hidden = text_config["hidden_size"]
        heads = text_config["num_attention_heads"]
        layers = text_config["num_hidden_layers"]
        inner = text_config.get("intermediate_size") or 4 * hidden
        if experts is not None:
            has_dense_layers = experts.layers < layers
            inner = max(experts.active_inner, inner if has_dense_layers else 0)
        return cls(
            hidden=hidden,
            inner=inner,
            layers=layers,
            heads=heads,
            key_value_heads=text_config.get("num_key_value_heads") or heads,
            head=text_config.get("head_dim") or hidden // heads,
            vocabulary=text_config["vocab_size"],
            experts=experts,
        )

    def active_parameters(self, num_parameters: int, num_tokens: float = 1) -> float:
        """Return how many of a model's parameters are active for tokens computed at once."""
        if self.experts is None:
            return num_parameters
        return num_parameters - self.experts.idle_parameters(num_tokens)

    def cache_bytes(self, bytes_per_number: int) -> float:
        """Return the bytes of the keys and values of one token in all layers."""
        return 2.0 * self.layers * self.key_value_heads * self.head * bytes_per_number


def memory_checks(context: Context) -> Check:
    """Compare an estimate of the memory of both processes with the free memory."""
    settings = context.settings
    if len(base_models(settings)) > 1:
        return _team_check(context)
    sizes = ModelSizes.from_config(context.config)
    if sizes is None:
        return skip("memory", "needs the model, and its sizes in config.json")
    server = 0.0
    if context.serves and not context.server_is_up:
        server = sum(server_parts(context, sizes).values())
    trainer = 0.0
    if context.trains:
        trainer = sum(trainer_parts(context, sizes).values())
    estimates = []
    if server:
        estimates.append(f"server about {server / _GIB:.1f} GiB")
    if trainer:
        estimates.append(f"trainer up to {trainer / _GIB:.1f} GiB")
    if not estimates:
        return skip("memory", "the server is running already")
    estimate = " and ".join(estimates)
    if settings.device == "cpu" and context.serves and _reserved_gib(context) is None:
        finding = (
            f"{_RESERVED}={context.environ[_RESERVED]}: not a whole number of GiB; the engine "
            "would not start"
        )
        return fail("memory", finding, f"export {_RESERVED}={_DEFAULT_GIB}")
    if settings.device == "cpu":
        return _compare_with_main_memory(context, estimate, server, trainer)
    return _compare_with_gpus(context, estimate, server, trainer)


def _team_check(context: Context) -> Check:
    """Compare the memory that a team with several base models needs with the free memory.

    The server has one engine per model, each with an equal part of its share. Each trainer process
    holds all models and computes with one at a time.
    """
    settings = context.settings
    members = [context.with_model(name) for name in base_models(settings)]
    for member in members:
        if ModelSizes.from_config(member.config) is None:
            name = member.settings.model
            return skip("memory", f"needs {name}, and its sizes in config.json")
    engines = []
    if context.serves and not context.server_is_up:
        engines = [_server_bytes(member) for member in members]
    trainer = _team_trainer_bytes(members) if context.trains else 0.0
    estimates = []
    if engines:
        estimates.append(f"server about {sum(engines) / _GIB:.1f} GiB in {len(engines)} engines")
    if trainer:
        estimates.append(f"trainer up to {trainer / _GIB:.1f} GiB")
    if not estimates:
        return skip("memory", "the server is running already")
    estimate = " and ".join(estimates)
    if settings.device == "cpu":
        free = psutil.virtual_memory().available
        return _main_memory_result(estimate, sum(engines) + trainer, free, [])
    problems = []
    ways = []
    if engines:
        total, reason = _gpu_bytes(context, "server")
        if not total:
            return _unknown_memory(estimate, reason)
        limit = gpu_limits(context, total).server / len(engines)
        largest = max(engines)
        if largest > limit:
            name = members[engines.index(largest)].settings.model
            problems.append(
                f"the engine of {name} needs {largest / _GIB:.1f} GiB but gets "
                f"{limit / _GIB:.1f} GiB, an equal part"
            )
            share = len(engines) * largest / total
            ways.append(_larger_share("HANABI_GPU_MEMORY_UTILIZATION", share, _MOST_ENGINE_SHARE))
    if trainer:
        total, reason = _gpu_bytes(context, "trainer")
        if not total:
            return _unknown_memory(estimate, reason)
        limit = gpu_limits(context, total).trainer
        if trainer > limit:
            problems.append(f"the trainer has {limit / _GIB:.1f} GiB")
            ways.append(_larger_share("HANABI_TRAINER_MEMORY", trainer / total, 1.0))
    return _gpu_result(f"{estimate} on each GPU", problems, ways)


_HELD = ("weights", "adapters", "gradients and moments")
"""Parts that a trainer holds for every base model; the others are for one model at a time."""


def _team_trainer_bytes(members: Sequence[Context]) -> float:
    """Return the bytes of a trainer process that holds several base models."""
    held = 0.0
    at_once = [0.0]
    for member in members:
        parts = trainer_parts(member, _sizes(member))
        held += sum(parts[name] for name in _HELD)
        at_once.append(sum(size for name, size in parts.items() if name not in _HELD))
    return held + max(at_once)


_KV_CACHE = "KV cache of one conversation"
_RESERVED = "VLLM_CPU_KVCACHE_SPACE"
"""vLLM's variable for the KV cache on a CPU."""
_DEFAULT_GIB = 1
"""The server's own default for it."""
_LENGTH_UNIT = 256
"""A proposed HANABI_MAX_MODEL_LEN is a multiple of it."""
_LEAST_TOKENS = 1024
"""Smallest HANABI_TOKENS_PER_MICRO_BATCH that is proposed; smaller ones are slow."""
_MOST_ENGINE_SHARE = 0.95
"""Largest HANABI_GPU_MEMORY_UTILIZATION that is proposed."""


def _compare_with_main_memory(
    context: Context, estimate: str, server: float, trainer: float
) -> Check:
    free = psutil.virtual_memory().available
    needed = server + trainer
    ways = _smaller_batch(context, free - server) if trainer and needed > free else []
    return _main_memory_result(estimate, needed, free, ways)


def _main_memory_result(estimate: str, needed: float, free: float, ways: Sequence[str]) -> Check:
    free_gib = free / _GIB
    if needed > free:
        finding = f"{estimate}, but only {free_gib:.1f} GiB are free"
        return warn("memory", finding, "\n".join(["free -h", *ways]))
    return ok("memory", f"{estimate}; {free_gib:.1f} GiB are free")


def _compare_with_gpus(context: Context, estimate: str, server: float, trainer: float) -> Check:
    """Compare each terminal with its share of the smallest of its GPUs."""
    problems = []
    ways = []
    smallest = []
    if server:
        total, reason = _gpu_bytes(context, "server")
        if not total:
            return _unknown_memory(estimate, reason)
        smallest.append(total)
        limit = gpu_limits(context, total).server
        if server > limit:
            problems.append(f"the engine gets {limit / _GIB:.1f} GiB")
            ways.append(_smaller_server(context, limit, total))
    if trainer:
        total, reason = _gpu_bytes(context, "trainer")
        if not total:
            return _unknown_memory(estimate, reason)
        smallest.append(total)
        limit = gpu_limits(context, total).trainer
        if trainer > limit:
            problems.append(f"the trainer has {limit / _GIB:.1f} GiB")
            ways.append(_smaller_trainer(context, limit, total))
    of_size = f" of {min(smallest) / _GIB:.1f} GiB" if not problems else ""
    return _gpu_result(f"{estimate} on each GPU{of_size}", problems, ways)


def _gpu_result(estimate: str, problems: Sequence[str], ways: Sequence[str]) -> Check:
    if problems:
        # Both may need the same smaller model.
        remedy = "\n".join(dict.fromkeys(ways))
        return warn("memory", f"{estimate}, but {' and '.join(problems)}", remedy)
    return ok("memory", estimate)


def _gpu_bytes(context: Context, terminal: Terminal) -> tuple[int, str]:
    mebibytes, reason = smallest_gpu(context, terminal)
    return mebibytes << 20, reason


def _unknown_memory(estimate: str, reason: str) -> Check:
    return skip("memory", f"{estimate} on each GPU; the available memory is unknown ({reason})")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimits:
    """Bytes of each GPU that a terminal may take."""

    server: float
    trainer: float


def gpu_limits(context: Context, total: float) -> GpuLimits:
    """Return what each terminal may take of GPUs with `total` bytes."""
    settings = context.settings
    return GpuLimits(
        server=settings.gpu_memory_utilization * total, trainer=settings.trainer_memory * total
    )


def _smaller_server(context: Context, limit: float, total: float) -> str:
    """Return lines to type, each of which makes the server fit.

    Args:
        context: What is checked.
        limit: Bytes of each GPU that the server may take.
        total: Bytes of each GPU.
    """
    settings = context.settings
    parts = server_parts(context, _sizes(context))
    cache = parts[_KV_CACHE]
    room = limit - (sum(parts.values()) - cache)
    ways = []
    fitting = int(settings.max_model_len * room / cache) // _LENGTH_UNIT * _LENGTH_UNIT
    if fitting >= _least_length(context):
        ways.append(f"export HANABI_MAX_MODEL_LEN={fitting}")
    ways += _divided_server(context, limit)
    if ways:
        return "\n".join(ways)
    return _smaller_model(context, _server_bytes, limit) or _larger_share(
        "HANABI_GPU_MEMORY_UTILIZATION", sum(parts.values()) / total, _MOST_ENGINE_SHARE
    )


def _divided_server(context: Context, limit: float) -> list[str]:
    """Return a line that splits each copy of the model over more GPUs, as few as possible."""
    settings = context.settings
    num_gpus = settings.vllm_tensor_parallel_size * settings.vllm_data_parallel_size
    for parallel in range(settings.vllm_tensor_parallel_size + 1, num_gpus + 1):
        if num_gpus % parallel or _sizes(context).heads % parallel:
            continue
        copies = num_gpus // parallel
        divided = context.with_settings(
            vllm_tensor_parallel_size=parallel, vllm_data_parallel_size=copies
        )
        if _server_bytes(divided) <= limit:
            return [
                f"export VLLM_TENSOR_PARALLEL_SIZE={parallel} VLLM_DATA_PARALLEL_SIZE={copies}   "
                f"# {parallel} GPUs share a copy of the model"
            ]
    return []


def _smaller_trainer(context: Context, limit: float, total: float) -> str:
    """Return lines to type, each of which makes the trainer fit.

    Args:
        context: What is checked.
        limit: Bytes of each GPU that the trainer may take.
        total: Bytes of each GPU.
    """
    ways = [*_smaller_batch(context, limit), *_divided_trainer(context, limit)]
    if ways:
        return "\n".join(ways)
    return _smaller_model(context, _trainer_bytes, limit) or _larger_share(
        "HANABI_TRAINER_MEMORY", _trainer_bytes(context) / total, 1.0
    )


def _smaller_batch(context: Context, limit: float) -> list[str]:
    """Return a line with smaller micro-batches and, if necessary, shorter conversations."""
    settings = context.settings
    given_tokens = tokens_per_micro_batch(settings)
    length = settings.max_model_len
    while length >= _least_length(context):
        tokens = given_tokens or length
        while tokens >= _LEAST_TOKENS:
            smaller = context.with_settings(tokens_per_micro_batch=tokens, max_model_len=length)
            if _trainer_bytes(smaller) <= limit:
                line = f"export HANABI_TOKENS_PER_MICRO_BATCH={tokens}"
                if length < settings.max_model_len:
                    line += f" HANABI_MAX_MODEL_LEN={length}   # the latter in both terminals"
                return [line]
            tokens //= 2
        length //= 2
    return []


def _divided_trainer(context: Context, limit: float) -> list[str]:
    """Return a line that shards the base model over the trainer's processes."""
    settings = context.settings
    if context.num_processes == 1 or deepspeed_stage(settings) == ZERO_3:
        return []
    in_turn = {"overlap": 0} if settings.overlap else {}
    divided = context.with_settings(deepspeed="zero3", **in_turn)
    try:
        batch_plan(divided.settings)
    except SettingsError:
        # Another setting of the run needs unsharded weights.
        return []
    if _trainer_bytes(divided) > limit:
        return []
    if in_turn:
        return ["export DEEPSPEED=zero3 HANABI_OVERLAP=0   # the latter in both terminals"]
    return ["export DEEPSPEED=zero3"]


def _smaller_model(context: Context, needed_bytes: Callable[[Context], float], limit: float) -> str:
    """Return a line with the largest model of the docs that fits; "" if none does."""
    smaller = {}
    for name, config in PUBLISHED.items():
        num_parameters = num_parameters_of(config)
        if num_parameters < context.num_parameters:
            smaller[num_parameters] = name
    for num_parameters in sorted(smaller, reverse=True):
        name = smaller[num_parameters]
        if needed_bytes(context.with_published(name)) <= limit:
            return f"export MODEL={name}   # or another smaller one, or a larger GPU"
    return ""


def _larger_share(variable: str, share: float, most: float) -> str:
    """Return a line that gives a terminal the share of each GPU that it needs."""
    rounded = math.ceil(100 * share) / 100
    if rounded > most:
        return "nvidia-smi   # the model needs a GPU with more memory"
    return f"export {variable}={rounded:g}   # or a larger GPU"


def _least_length(context: Context) -> int:
    """Return the smallest HANABI_MAX_MODEL_LEN to propose: one that has room for a move."""
    budget = context.budget
    least = _LENGTH_UNIT if budget is None else budget.first_reply_ends
    return max(least, _LENGTH_UNIT)


def _sizes(context: Context) -> ModelSizes:
    """Return the sizes of a model that is known to have them."""
    sizes = ModelSizes.from_config(context.config)
    assert sizes is not None
    return sizes


def _server_bytes(context: Context) -> float:
    return sum(server_parts(context, _sizes(context)).values())


def _trainer_bytes(context: Context) -> float:
    return sum(trainer_parts(context, _sizes(context)).values())


def server_parts(context: Context, sizes: ModelSizes) -> dict[str, float]:
    """Return the bytes of each part of the server, on one GPU or on the CPU."""
    settings = context.settings
    bytes_per_number = BYTES[settings.dtype]
    cache = sizes.cache_bytes(bytes_per_number) * settings.max_model_len
    cache_name = _KV_CACHE
    if settings.device == "cpu":
        cache = max(cache, (_reserved_gib(context) or _DEFAULT_GIB) * _GIB)
        cache_name = "KV cache"
    adapter = context.adapter_parameters * bytes_per_number
    weights: float = context.num_parameters * bytes_per_number
    if sizes.experts is not None:
        # vLLM (0.32) divides experts over all copies too; the rest of each copy is complete.
        routed = sizes.experts.routed_parameters * bytes_per_number
        weights -= routed * (1 - 1 / settings.vllm_data_parallel_size)
    # Tensor parallelism divides these, but each process has its own libraries.
    divided = {
        "weights": weights,
        cache_name: cache,
        "adapters": _ADAPTER_COPIES * settings.players * adapter,
    }
    parts = {}
    for name, size in divided.items():
        parts[name] = size / settings.vllm_tensor_parallel_size
    parts["process"] = _PROCESS
    return parts


def _reserved_gib(context: Context) -> int | None:
    """Return the GiB of VLLM_CPU_KVCACHE_SPACE; None if it is not a whole number."""
    text = context.environ.get(_RESERVED) or str(_DEFAULT_GIB)
    try:
        return max(0, int(text))
    except ValueError:
        return None


def trainer_parts(context: Context, sizes: ModelSizes) -> dict[str, float]:
    """Return the bytes of each part of one trainer process, with its largest micro-batch."""
    settings = context.settings
    is_sharded = deepspeed_stage(settings) == ZERO_3
    weights: float = context.num_parameters * BYTES[settings.dtype]
    if is_sharded:
        weights /= context.num_processes
    # Adapters are float32, whatever the base model's dtype.
    adapters = 4.0 * context.run_adapter_parameters
    if settings.critic == "adapter":
        # Critics have adapters of the same size.
        adapters *= 2
    tokens, reply_tokens = _largest_micro_batch(context)
    batch = batch_parts(
        sizes,
        tokens,
        reply_tokens,
        bytes_per_number=BYTES[settings.dtype],
        rank=settings.largest_rank,
        checkpointed=settings.device != "cpu",
        whole=is_sharded,
    )
    return {
        "weights": weights,
        "adapters": adapters,
        "gradients and moments": 3 * adapters,
        **batch,
        "process": _PROCESS,
    }


def _largest_micro_batch(context: Context) -> tuple[float, float]:
    """Return the tokens of the largest micro-batch, and how many of them are reply tokens."""
    settings = context.settings
    budget = context.budget
    longest = settings.max_model_len
    reply_share = 1.0
    if budget is not None:
        longest = budget.longest(budget.memory)
        replies = budget.num_turns(budget.memory) * settings.max_completion_length
        reply_share = min(replies / longest, 1.0)
    length = min(settings.max_model_len, longest)
    limit = tokens_per_micro_batch(settings)
    # A sequence longer than the limit forms its own micro-batch.
    tokens = max(limit, length) if limit else settings.per_device_train_batch_size * length
    return tokens, tokens * reply_share


def batch_parts(
    sizes: ModelSizes,
    tokens: float,
    reply_tokens: float,
    *,
    bytes_per_number: int,
    rank: int,
    checkpointed: bool,
    whole: bool,
) -> dict[str, float]:
    """Return the bytes that a micro-batch's gradient needs besides the weights.

    Adapters are float32 and on all linear layers. The numbers are fitted to the allocator's peaks
    of eight shapes on the CPU, in float32 and bfloat16; R19 of `tools/bench` checks them again.
    With gradient checkpointing, each layer keeps only its input, and one layer at a time is
    recomputed after the logits are freed.

    Args:
        sizes: Sizes of the model.
        tokens: Tokens of the micro-batch.
        reply_tokens: How many of them are reply tokens.
        bytes_per_number: 4 in float32, 2 in bfloat16.
        rank: Rank of the adapters.
        checkpointed: Activations are recomputed for the gradient.
        whole: The logits of all replies are held at once, otherwise those of a chunk.

    Returns:
        The bytes of each part; "logits" and "a layer computed again" are never needed at the same
        time, so with gradient checkpointing only the larger one is included.
    """
    queries = sizes.head * sizes.heads
    values = sizes.head * sizes.key_value_heads
    bytes_per_token_and_layer = (
        18 * sizes.hidden
        + 3.3 * bytes_per_number * sizes.inner
        + (9 + bytes_per_number) * queries
        + (2 + 2.6 * bytes_per_number) * values
        + 92 * rank
    )
    logits = _logit_bytes(sizes, reply_tokens, bytes_per_number=bytes_per_number, whole=whole)
    if not checkpointed:
        activations = tokens * bytes_per_token_and_layer * sizes.layers
        return {"activations": activations, "logits": logits}
    recomputed = _RECOMPUTED_SHARE * tokens * bytes_per_token_and_layer
    parts = {"activations": float(tokens * sizes.hidden * sizes.layers * bytes_per_number)}
    if logits > recomputed:
        parts["logits"] = logits
    else:
        parts["a layer computed again"] = recomputed
    return parts


def _logit_bytes(
    sizes: ModelSizes, reply_tokens: float, *, bytes_per_number: int, whole: bool
) -> float:
    is_16_bit = bytes_per_number < BYTES["float32"]
    if whole:
        per_logit = _BYTES_PER_WHOLE_LOGIT_16_BIT if is_16_bit else _BYTES_PER_LOGIT
        return per_logit * sizes.vocabulary * reply_tokens
    chunk = _BYTES_PER_LOGIT * sizes.vocabulary * min(reply_tokens, _CHUNK)
    # Chunks are computed in float32, which needs a float32 copy of a 16-bit head.
    head_copy = 4.0 * sizes.vocabulary * sizes.hidden if is_16_bit else 0.0
    return chunk + head_copy
