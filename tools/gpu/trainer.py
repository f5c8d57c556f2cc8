"""Call A: the trainer's forward and backward pass alone, over conversations of made-up tokens; no
server, no swift.

python -m gpu.trainer NAME cuda|cpu TOKENS...
"""

import json
import sys
import time
from typing import Any

from bench.training_rows import gradient_of, learn, made_rows, with_adapter
from gpu.random_model import random_model

_TURN = {"prompt": 156, "reply": 100}
_TURNS = 8
_LIMIT = 1 << 20
_KERNELS = 12


def measure(name: str, device: str, tokens: list[int]) -> dict[str, Any]:
    """Return seconds, tokens/s and peak memory of a micro-batch of each size, and what the
    attention kernel computes.

    The first micro-batches hold conversations of 2048 tokens, the last one a single conversation of
    its size. Memory is None without a GPU, where torch does not count it."""
    cases, turn = [], sum(_TURN.values())
    model = _model(name, device, "sdpa")
    for size in tokens:
        turns = size // turn if size == max(tokens) else min(_TURNS, size // turn)
        rows = made_rows(num_games=max(1, size // (turns * turn)), turns=turns, seed=0, **_TURN)
        learn(model, rows, size)  # kernels are chosen and compiled
        cases.append(_timed(model, rows, size, device))
    # Small: plain attention holds tokens × tokens numbers a head.
    rows = made_rows(num_games=2, turns=min(_TURNS, min(tokens) // turn), seed=1, **_TURN)
    kernels = _kernels(model, rows, device)
    learn(model, rows, _LIMIT)
    found = gradient_of(model)
    del model
    control = _model(name, device, "eager")
    learn(control, rows, _LIMIT)
    expected = gradient_of(control)
    cosine = float((found @ expected) / (found.norm() * expected.norm()))
    return {
        "model": name,
        "cases": cases,
        "cosine with eager attention": cosine,
        "kernels": kernels,
    }


def _model(name: str, device: str, attention: str) -> Any:
    dtype = "float32" if device == "cpu" else "bfloat16"
    model = with_adapter(
        lambda: random_model(name, device, attention=attention, dtype=dtype), device
    )
    if device != "cpu":
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    return model


def _timed(model: Any, rows: list[Any], limit: int, device: str) -> dict[str, Any]:
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    learn(model, rows, limit)
    seconds, tokens = time.perf_counter() - started, sum(len(row.ids) for row in rows)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    rate = {"seconds": seconds, "tokens_per_second": tokens / seconds, "peak_bytes": peak}
    return {
        "tokens": tokens,
        "conversations": len(rows),
        "replies": sum(sum(row.mask) for row in rows),
        **rate,
    }


def _kernels(model: Any, rows: list[Any], device: str) -> list[str]:
    """Return the names of what takes longest, with its share of all, e.g. "31 %
    flash_fwd_kernel".
    """
    from torch.profiler import ProfilerActivity, profile

    kind = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with profile(activities=[kind]) as seen:
        learn(model, rows, _LIMIT)
    clock = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    spent = {one.key: getattr(one, clock) for one in seen.key_averages()}
    whole = sum(spent.values()) or 1
    longest = sorted(spent, key=lambda key: -spent[key])[:_KERNELS]
    return [f"{100 * spent[key] / whole:.0f} % {key[:100]}" for key in longest]


if __name__ == "__main__":
    print(
        json.dumps(
            measure(sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3:]]), indent=1
        )
    )
