"""R19: the memory that the doctor predicts for a micro-batch, and the allocator's peak on a CPU."""

import itertools
from typing import TYPE_CHECKING, Any

from bench.context import Bench
from bench.logit_rows import peak
from bench.row import Row, at_most
from bench.training_rows import made_rows, with_adapter
from hanabi_grpo.commands.doctor.memory import BYTES, ModelSizes, batch_parts

if TYPE_CHECKING:
    import torch

TARGET = at_most(0.15)
SHAPES = (
    {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "head_dim": 64,
    },
    {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "head_dim": 32,
    },
)
VOCABULARY, RANK = 4096, 16


async def predicted_peaks(bench: Bench) -> list[Row]:
    """R19, without an engine: float32 and bfloat16, with and without checkpoints and chunks."""
    import torch

    told: dict[str, tuple[float, float]] = {}
    for sizes, name, checkpointed, whole in itertools.product(
        SHAPES, ("float32", "bfloat16"), (False, True), (False, True)
    ):
        # Attention's gradient is slow in bfloat16 on most CPUs.
        tokens = 4096 if name == "float32" else 2048
        rows = made_rows(num_games=8, turns=1, prompt=tokens // 16, reply=tokens // 16, seed=0)
        config = {**sizes, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
        model_sizes = ModelSizes.from_config(config)
        assert model_sizes is not None
        predicted = batch_parts(
            model_sizes,
            tokens,
            tokens // 2,
            bytes_per_number=BYTES[name],
            rank=RANK,
            checkpointed=checkpointed,
            whole=whole,
        )
        expected = sum(predicted.values())
        measured = peak(_model(config, checkpointed), getattr(torch, name), rows, whole)
        words = (
            f"{sizes['hidden_size']} wide",
            name,
            "checkpoints" * checkpointed,
            "whole logits" * whole,
        )
        told[", ".join(filter(None, words))] = expected, measured
    return [
        Row(
            id="R19",
            name="memory of a micro-batch: distance of predicted ÷ measured from 1",
            arms=("the doctor's formula", "the allocator's peak"),
            ratios=tuple(abs(expected / measured - 1) for expected, measured in told.values()),
            target=TARGET,
            how="forward and backward on the CPU: "
            + "; ".join(
                f"{name} {expected / measured:.2f}" for name, (expected, measured) in told.items()
            ),
            details={name: list(pair) for name, pair in told.items()},
        )
    ]


def _model(config: dict[str, Any], checkpointed: bool) -> "torch.nn.Module":
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model: Any = with_adapter(lambda: Qwen3ForCausalLM(Qwen3Config(**config)), "cpu")
    if checkpointed:
        model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return model
