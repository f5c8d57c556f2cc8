"""The model: its folder, its chat template, and the memory that both processes need for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from hanabi_grpo.commands.doctor.check import Check, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.context import Context, amount, broken_weights
from hanabi_grpo.commands.doctor.gpus import list_gpus
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.vocabulary import boards_of
from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model
from hanabi_grpo.server.adapter_files import linear_shapes
from hanabi_grpo.settings.defaults import LAPTOP, is_local_model, tiny_model_command
from hanabi_grpo.settings.steps import tokens_per_micro_batch

_GIB = 1 << 30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_PROCESS = 2.0 * _GIB
"""Of each process, whatever the model: libraries, or the CUDA context."""
_CHUNK = 1024
"""`training.model.output_head.CHUNK`. R17 of `tools/bench` measures 16 bytes for each logit in it,
and none beyond.
"""


def model_checks(context: Context) -> Check:
    """Tell whether the folder holds a whole model that both processes can load."""
    settings, folder, name = context.settings, context.located_folder, context.settings.model
    if folder is None and is_local_model(name):
        # The script of terminal 1 makes the default one itself.
        judge = warn if context.loaded.origins["model"].startswith("default") else fail
        return judge("model", f"MODEL={name}: no such folder", f"{_make(context)} --out {name}")
    if folder is None and "HF_HUB_OFFLINE" in context.shell:
        finding = f"MODEL={name}: not on this machine, and HF_HUB_OFFLINE forbids to fetch it"
        return fail("model", finding, f"HF_HUB_OFFLINE=0 .venv/bin/hf download {name}")
    if folder is None:
        finding = f"MODEL={name}: not on this machine; both terminals would fetch it from the hub"
        return warn("model", finding, f".venv/bin/hf download {name}")
    try:
        resolve_model(str(folder))
        model_fingerprint(folder)
    except SettingsError as error:
        return fail("model", str(error), _other_model(context))
    if broken := broken_weights(folder):
        way = (
            _other_model(context)
            if Path(name).is_dir()
            else f".venv/bin/hf download {name} --force-download"
        )
        return fail("model", f"{name}: {'; '.join(broken[:3])}", way)
    modules = {module.rsplit(".", 1)[-1] for module in linear_shapes(folder)}
    if not modules:
        return fail(
            "model", f"{name}: no linear layers for adapters in its weights", _other_model(context)
        )
    sizes = f"{amount(context.num_parameters)} parameters; {context.num_adapters} adapters of rank "
    sizes += f"{settings.lora_rank}, {amount(context.adapter_parameters)} each"
    return ok(
        "model",
        f"{name}: {context.config.get('model_type')}, {sizes}, on {', '.join(sorted(modules))}",
    )


def chat_checks(context: Context) -> Check:
    """Tell whether conversations can grow token by token with the model's chat template."""
    try:
        chat = context.chat
    except SettingsError as error:
        return fail("chat template", str(error), _other_model(context))
    if chat is None:
        return skip("chat template", "needs the model")
    return ok(
        "chat template", f"usable; a reply ends with {chat.eos}, {len(chat.tokenizer)} tokens"
    )


def memory_checks(context: Context) -> Check:
    """Compare a rough estimate of what both processes need with what is free."""
    settings, needed = (
        context.settings,
        ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"),
    )
    if not all(key in context.config for key in needed):
        return skip("memory", "needs the model, and its sizes in config.json")
    server = (
        0.0 if context.server_is_up or not context.serves else sum(server_parts(context).values())
    )
    trainer = sum(trainer_parts(context).values()) if context.trains else 0.0
    if not server + trainer:
        return skip("memory", "the server is running already")
    parts = [f"server about {server / _GIB:.1f} GiB"] if server else []
    text = " and ".join(parts + ([f"trainer up to {trainer / _GIB:.1f} GiB"] if trainer else []))
    smaller = "export HANABI_TOKENS_PER_MICRO_BATCH=1024 HANABI_MAX_MODEL_LEN=1024"
    if settings.device == "cpu":
        free = psutil.virtual_memory().available
        if server + trainer > free:
            return warn(
                "memory", f"{text}, but {free / _GIB:.1f} GiB are free", f"free -h\n{smaller}"
            )
        return ok("memory", f"{text}; {free / _GIB:.1f} GiB are free")
    gpus, reason = list_gpus(context.shell.get("PATH"))
    total = min((gpu.total for gpu in gpus), default=0) << 20
    room = settings.gpu_memory_utilization * total
    if not total:
        why = reason or "nvidia-smi does not tell"
        return skip("memory", f"{text} on each GPU; what there is is not known ({why})")
    if server > room:
        finding = f"{text} on each GPU, but the engine gets {room / _GIB:.1f} GiB"
        return warn(
            "memory", finding, "export HANABI_MAX_MODEL_LEN=4096 VLLM_TENSOR_PARALLEL_SIZE=2"
        )
    if trainer > total:
        finding = f"{text} on each GPU, which has {total / _GIB:.1f} GiB"
        return warn("memory", finding, f"export DEEPSPEED=zero3\n{smaller}")
    return ok("memory", f"{text} on each GPU of {total / _GIB:.1f} GiB")


def server_parts(context: Context) -> dict[str, float]:
    """Return the bytes of each part of the server, on one GPU or the CPU."""
    settings, config = context.settings, context.config
    size, parallel = BYTES[settings.dtype], settings.vllm_tensor_parallel_size
    cache = cache_bytes(config, size) * settings.max_model_len
    if settings.device == "cpu":
        # The server's own default for this variable of vLLM.
        cache = max(cache, float(context.environ.get("VLLM_CPU_KVCACHE_SPACE") or 1) * _GIB)
    # As many on the device as there are players, three times as many beside it.
    adapters = 4.0 * settings.players * context.adapter_parameters * size
    held = "KV cache" if settings.device == "cpu" else "KV cache of one conversation"
    parts = {"weights": context.num_parameters * size, held: cache, "adapters": adapters}
    return {name: part / parallel for name, part in parts.items()} | {"process": _PROCESS}


def cache_bytes(config: Mapping[str, Any], size: int) -> float:
    """Return the bytes of one token's keys and values, of numbers of `size` bytes."""
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    return (
        2.0 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * head * size
    )


def trainer_parts(context: Context) -> dict[str, float]:
    """Return the bytes of each part of one trainer process, with the largest micro-batch."""
    settings, config, budget = context.settings, context.config, context.budget
    size = BYTES[settings.dtype]
    weights = (
        context.num_parameters
        * size
        / (settings.nproc_per_node if settings.deepspeed == "zero3" else 1)
    )
    adapters = 4.0 * context.num_adapters * context.adapter_parameters
    longest = budget.longest(budget.memory) if budget else settings.max_model_len
    length = min(settings.max_model_len, longest)
    by_tokens = tokens_per_micro_batch(settings)
    # A sequence that is longer than the limit makes a micro-batch of its own.
    tokens = max(by_tokens, length) if by_tokens else settings.per_device_train_batch_size * length
    replies = (
        budget.num_turns(budget.memory) * settings.max_completion_length / longest if budget else 1.0
    )
    replies = tokens * min(replies, 1.0)
    optimizer = {"adapters": adapters, "gradients and moments": 3 * adapters}
    batch = batch_parts(
        config,
        tokens,
        replies,
        size=size,
        rank=settings.lora_rank,
        checkpointed=settings.device != "cpu",
        whole=settings.deepspeed == "zero3",
    )
    return {"weights": weights, **optimizer, **batch, "process": _PROCESS}


def batch_parts(
    config: Mapping[str, Any],
    tokens: float,
    replies: float,
    *,
    size: int,
    rank: int,
    checkpointed: bool,
    whole: bool,
) -> dict[str, float]:
    """Return the bytes that a micro-batch's gradient needs beside weights, with float32 adapters on
    all linear layers.

    Fitted to the allocator's peaks of eight shapes on the CPU, in float32 and bfloat16; R19 of
    `tools/bench` compares it anew. With checkpoints layers keep what goes into them, and one is
    computed again when the logits are gone.

    `replies` are those of the micro-batch's `tokens` that are of replies, `size` is bytes of a
    number, `rank` that of the adapters. `checkpointed`: layers are computed again for their
    gradient. `whole`: the logits of all replies are held, else those of a chunk."""
    hidden, layers, heads = (
        config["hidden_size"],
        config["num_hidden_layers"],
        config["num_attention_heads"],
    )
    head = config.get("head_dim") or hidden // heads
    values, inner = (
        head * config.get("num_key_value_heads", heads),
        config.get("intermediate_size", 4 * hidden),
    )
    layer = (
        18 * hidden
        + 3.3 * size * inner
        + (9 + size) * head * heads
        + (2 + 2.6 * size) * values
        + 92 * rank
    )
    if whole:
        logits = (16.0 if size == 4 else 8.0) * config["vocab_size"] * replies
    else:
        # In float32, and so is the head's copy.
        copied = 4.0 * config["vocab_size"] * hidden if size < 4 else 0.0
        logits = 16.0 * config["vocab_size"] * min(replies, _CHUNK) + copied
    if not checkpointed:
        return {"activations": tokens * layer * layers, "logits": logits}
    again = 1.3 * tokens * layer
    kept = {"activations": float(tokens * hidden * layers * size)}
    return kept | ({"logits": logits} if logits > again else {"a layer computed again": again})


def _other_model(context: Context) -> str:
    return f"{_make(context)}; unset MODEL" if context.settings.device == "cpu" else "unset MODEL"


def _make(context: Context) -> str:
    settings = context.settings
    default = [settings.preset or LAPTOP], settings.players, settings.env
    return tiny_model_command(*(boards_of(context.setups) if context.setups else default))
