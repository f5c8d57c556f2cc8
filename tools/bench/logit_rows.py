"""R17: memory for each further logit of a micro-batch, in chunks and whole, by the slope of the
allocator's peak.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench.context import Bench
from bench.row import Row, at_most
from bench.training_rows import learn, made_rows, with_adapter

if TYPE_CHECKING:
    import torch

    from hanabi_grpo.training.batching import TokenRow

TARGET = at_most(0.1)
VOCABULARY = 4096
"""Large beside the layers, so that logits are most of what is held."""
_TURN = 512


async def logit_memory(bench: Bench) -> list[Row]:
    """R17, without an engine; on the CPU, whose allocations are all seen."""
    import torch

    found = {
        f"{dtype}".removeprefix("torch."): [
            bytes_per_logit(dtype, whole=whole) for whole in (False, True)
        ]
        for dtype in (torch.float32, torch.bfloat16)
    }
    told = ", ".join(
        f"{name} {chunked:.3g} instead of {whole:.3g}" for name, (chunked, whole) in found.items()
    )
    return [
        Row(
            id="R17",
            name="memory for each further logit: head in chunks ÷ whole logits",
            arms=(
                "peak bytes of a further token ÷ vocabulary, in chunks",
                "the same with whole logits",
            ),
            ratios=tuple(chunked / whole for chunked, whole in found.values()),
            target=TARGET,
            how="forward and backward of 2,048 and 3,072 reply tokens, the layers' part taken "
            "off; bytes a logit: "
            f"{told}",
            details={
                name: {"chunks": chunked, "whole": whole}
                for name, (chunked, whole) in found.items()
            },
        )
    ]


def bytes_per_logit(dtype: "torch.dtype", *, whole: bool) -> float:
    """Return by how much the peak grows with each further logit, beyond what the same tokens cost
    in the layers.
    """
    small, large = 4 * _TURN, 6 * _TURN
    grown = {}
    for vocabulary in (VOCABULARY // 2, VOCABULARY):
        found = []
        for tokens in (small, large):
            rows = made_rows(num_games=tokens // _TURN, turns=1, prompt=1, reply=_TURN, seed=0)
            found.append(peak(wide_model(vocabulary), dtype, rows, whole))
        grown[vocabulary] = found[1] - found[0]
    return (grown[VOCABULARY] - grown[VOCABULARY // 2]) / (large - small) / (VOCABULARY // 2)


def peak(model: Any, dtype: "torch.dtype", rows: Sequence["TokenRow"], whole: bool) -> int:
    """Return the most bytes allocated at once, beyond weights, while rows' gradient is made on the
    CPU.

    The model is brought to `dtype`, its adapters stay in float32; `whole`: with whole logits, else
    in chunks.
    """
    import torch

    model = model.to(dtype)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        learn(model, rows[:1], 1 << 30, whole_logits=whole)
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            learn(model, rows, 1 << 30, whole_logits=whole)
    held = most = 0
    found: Any = profile.profiler
    memory = [one for one in found.kineto_results.events() if one.name() == "[memory]"]
    for event in sorted(memory, key=lambda one: one.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def wide_model(vocabulary: int) -> Any:
    """Return a model of one narrow layer with one adapter that is not zero."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 32}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    return with_adapter(
        lambda: Qwen3ForCausalLM(Qwen3Config(vocab_size=vocabulary, **sizes, **heads)), "cpu"
    )
