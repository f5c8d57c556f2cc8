"""Call A: the trainer's forward and backward pass alone, without a server and without ms-swift.

The conversations are made-up tokens.

    python -m gpu.trainer NAME cuda|cpu TOKENS...
"""

import json
import sys
import time
from typing import Any

from bench.training_rows import gradient_of, learn, made_rows, with_adapter
from gpu.random_model import dtype_for, random_model

_PROMPT_TOKENS = 156
_REPLY_TOKENS = 100
_TURN_TOKENS = _PROMPT_TOKENS + _REPLY_TOKENS
_TURNS = 8
"""Turns of a conversation, except in the largest micro-batch."""
_NO_LIMIT = 1 << 20
"""More tokens than the rows of a comparison have, so that they are one micro-batch."""
_NUM_KERNELS = 12
"""Number of longest kernels that are listed."""
_NAME_LENGTH = 100
"""Characters of a kernel's name that are shown."""


def measure(name: str, device: str, tokens: list[int]) -> dict[str, Any]:
    """Measure micro-batches of several sizes, and check the attention kernel's gradient.

    The first micro-batches hold conversations of 2048 tokens, the last one a single conversation of
    its size. Memory is None without a GPU, where torch does not count it.

    Args:
        name: The model, a key of `random_model.ARCHITECTURES`.
        device: "cuda" or "cpu".
        tokens: Sizes of the micro-batches.

    Returns:
        Seconds, tokens/s and peak memory by size, the kernels that take the longest, and the cosine
        between the gradients of the attention kernel and of plain attention.
    """
    cases = []
    model = _model(name, device, "sdpa")
    for size in tokens:
        turns = size // _TURN_TOKENS
        if size != max(tokens):
            turns = min(_TURNS, turns)
        num_games = max(1, size // (turns * _TURN_TOKENS))
        rows = _rows(num_games=num_games, turns=turns, seed=0)
        _learn(model, rows, size)  # kernels are chosen and compiled
        cases.append(_measure_case(model, rows, size, device))
    # Small, because plain attention holds tokens × tokens numbers per head.
    turns = min(_TURNS, min(tokens) // _TURN_TOKENS)
    rows = _rows(num_games=2, turns=turns, seed=1)
    kernels = _longest_kernels(model, rows, device)
    _learn(model, rows, _NO_LIMIT)
    gradient = gradient_of(model)
    del model
    plain_model = _model(name, device, "eager")
    _learn(plain_model, rows, _NO_LIMIT)
    expected = gradient_of(plain_model)
    cosine = (gradient @ expected) / (gradient.norm() * expected.norm())
    return {
        "model": name,
        "cases": cases,
        "cosine with eager attention": float(cosine),
        "kernels": kernels,
    }


def _rows(*, num_games: int, turns: int, seed: int) -> list[Any]:
    return made_rows(
        num_games=num_games,
        turns=turns,
        prompt=_PROMPT_TOKENS,
        reply=_REPLY_TOKENS,
        seed=seed,
    )


def _model(name: str, device: str, attention: str) -> Any:
    """Return a model with an adapter, with gradient checkpointing on a GPU."""

    def make() -> Any:
        return random_model(name, device, attention=attention, dtype=dtype_for(device))

    model = with_adapter(make, device)
    if device != "cpu":
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    return model


def _learn(model: Any, rows: list[Any], limit: int) -> None:
    """Learn as the trainer does: 16-bit models under autocast, adapters in float32."""
    import torch

    device = model.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
        learn(model, rows, limit)


def _measure_case(model: Any, rows: list[Any], limit: int, device: str) -> dict[str, Any]:
    """Return time and memory of learning from some rows."""
    import torch

    has_gpu = device == "cuda"
    if has_gpu:
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    _learn(model, rows, limit)
    seconds = time.perf_counter() - started
    num_tokens = sum(len(row.ids) for row in rows)
    return {
        "tokens": num_tokens,
        "conversations": len(rows),
        "replies": sum(sum(row.mask) for row in rows),
        "seconds": seconds,
        "tokens_per_second": num_tokens / seconds,
        "peak_bytes": torch.cuda.max_memory_allocated() if has_gpu else None,
    }


def _longest_kernels(model: Any, rows: list[Any], device: str) -> list[str]:
    """Return the kernels that take the longest and their shares, e.g. "31 % flash_fwd_kernel"."""
    from torch.profiler import ProfilerActivity, profile

    has_gpu = device == "cuda"
    activity = ProfilerActivity.CUDA if has_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        _learn(model, rows, _NO_LIMIT)
    clock = "self_device_time_total" if has_gpu else "self_cpu_time_total"
    times = {}
    for average in profiler.key_averages():
        times[average.key] = getattr(average, clock)
    total = sum(times.values()) or 1
    longest = sorted(times, key=lambda name: -times[name])[:_NUM_KERNELS]
    return [f"{100 * times[name] / total:.0f} % {name[:_NAME_LENGTH]}" for name in longest]


if __name__ == "__main__":
    sizes = [int(size) for size in sys.argv[3:]]
    print(json.dumps(measure(sys.argv[1], sys.argv[2], sizes), indent=1))
