"""R17: memory per additional logit of a micro-batch, in chunks and whole.

It is measured as the slope of the allocator's peak.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bench.context import Bench
from bench.row import Row, at_most
from bench.training_rows import learn, made_rows, with_adapter

if TYPE_CHECKING:
    import torch

    from hanabi_grpo.training.micro_batch import TokenRow

TARGET = at_most(0.1)
VOCABULARY = 4096
"""Large compared with the layers, so that logits take most of the memory."""
_TURN = 512
"""Tokens of a reply."""
_NO_LIMIT = 1 << 30
"""A micro-batch limit in tokens that is never reached."""


async def logit_memory(bench: Bench) -> list[Row]:
    """R17, without an engine; on the CPU, where all allocations are visible."""
    import torch

    bytes_of: dict[str, _LogitBytes] = {}
    for name in ("float32", "bfloat16"):
        dtype = getattr(torch, name)
        bytes_of[name] = _LogitBytes(
            chunks=bytes_per_logit(dtype, whole=False), whole=bytes_per_logit(dtype, whole=True)
        )
    parts = [
        f"{name} {cost.chunks:.3g} instead of {cost.whole:.3g}" for name, cost in bytes_of.items()
    ]
    return [
        Row(
            id="R17",
            name="memory per additional logit: head in chunks ÷ whole logits",
            arms=(
                "peak bytes per additional token ÷ vocabulary, in chunks",
                "the same with whole logits",
            ),
            ratios=tuple(cost.chunks / cost.whole for cost in bytes_of.values()),
            target=TARGET,
            each=True,
            how="forward and backward of 2,048 and 3,072 reply tokens, minus the layers' part; "
            f"bytes per logit: {', '.join(parts)}",
            details={name: asdict(cost) for name, cost in bytes_of.items()},
        )
    ]


@dataclass(frozen=True, slots=True)
class _LogitBytes:
    """Peak bytes per additional logit."""

    chunks: float
    """With the head in chunks."""
    whole: float
    """With whole logits."""


def bytes_per_logit(dtype: "torch.dtype", *, whole: bool) -> float:
    """Return by how much the peak grows per additional logit.

    The cost of the same tokens in the layers is subtracted.

    Args:
        dtype: The model's dtype.
        whole: With whole logits, else in chunks.
    """
    small = VOCABULARY // 2
    large = VOCABULARY
    more_logits_a_token = large - small
    more_bytes_a_token = _bytes_per_token(large, dtype, whole) - _bytes_per_token(
        small, dtype, whole
    )
    return more_bytes_a_token / more_logits_a_token


def _bytes_per_token(vocabulary: int, dtype: "torch.dtype", whole: bool) -> float:
    """Return by how much the peak grows per additional token."""
    peaks = []
    sizes = (4 * _TURN, 6 * _TURN)
    for tokens in sizes:
        rows = made_rows(num_games=tokens // _TURN, turns=1, prompt=1, reply=_TURN, seed=0)
        peaks.append(peak(wide_model(vocabulary), dtype, rows, whole))
    return (peaks[1] - peaks[0]) / (sizes[1] - sizes[0])


def peak(model: Any, dtype: "torch.dtype", rows: Sequence["TokenRow"], whole: bool) -> int:
    """Return the peak of allocated bytes, beyond weights, while a gradient is computed on the CPU.

    Args:
        model: It is converted to `dtype`; its adapters stay in float32.
        dtype: The model's dtype.
        rows: The rows to learn from.
        whole: With whole logits, else in chunks.
    """
    import torch

    model = model.to(dtype)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        learn(model, rows[:1], _NO_LIMIT, whole_logits=whole)
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            learn(model, rows, _NO_LIMIT, whole_logits=whole)
    profiler: Any = profile.profiler
    events = [event for event in profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    allocated = 0
    most = 0
    for event in events:
        allocated += event.nbytes()
        most = max(most, allocated)
    return most


def wide_model(vocabulary: int) -> Any:
    """Return a model with one narrow layer and one nonzero adapter."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        head_dim=32,
        num_attention_heads=1,
        num_key_value_heads=1,
    )
    return with_adapter(lambda: Qwen3ForCausalLM(config), "cpu")
