"""R19: the memory that the doctor predicts for a micro-batch, against the CPU allocator's peak."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
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
VOCABULARY = 4096
RANK = 16
_NUM_GAMES = 8


@dataclass(frozen=True, slots=True)
class _Peak:
    """Bytes that a micro-batch's gradient needs."""

    predicted: float
    """By the doctor's formula."""
    measured: float
    """By the allocator."""

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured


async def predicted_peaks(bench: Bench) -> list[Row]:
    """R19, without an engine: float32 and bfloat16, with and without checkpointing and chunks."""
    peaks: dict[str, _Peak] = {}
    for sizes, dtype, checkpointed, whole in itertools.product(
        SHAPES, ("float32", "bfloat16"), (False, True), (False, True)
    ):
        name = f"{sizes['hidden_size']} wide, {dtype}"
        if checkpointed:
            name += ", checkpoints"
        if whole:
            name += ", whole logits"
        peaks[name] = _compare(sizes, dtype, checkpointed=checkpointed, whole=whole)
    ratios = [f"{name} {compared.ratio:.2f}" for name, compared in peaks.items()]
    return [
        Row(
            id="R19",
            name="memory of a micro-batch: deviation of predicted ÷ measured from 1",
            arms=("the doctor's formula", "the allocator's peak"),
            ratios=tuple(abs(compared.ratio - 1) for compared in peaks.values()),
            target=TARGET,
            each=True,
            how=f"forward and backward on the CPU: {'; '.join(ratios)}",
            details={
                name: [compared.predicted, compared.measured] for name, compared in peaks.items()
            },
        )
    ]


def _compare(sizes: Mapping[str, int], dtype: str, *, checkpointed: bool, whole: bool) -> _Peak:
    """Return the predicted and the measured peak of one micro-batch.

    Args:
        sizes: The model's sizes.
        dtype: The model's dtype.
        checkpointed: Whether layers are recomputed for their gradient.
        whole: Whether the logits of all replies are held, else those of a chunk.
    """
    import torch

    # Attention's gradient is slow in bfloat16 on most CPUs.
    tokens = 4096 if dtype == "float32" else 2048
    # Half of each game is a prompt, half a reply.
    half = tokens // _NUM_GAMES // 2
    rows = made_rows(num_games=_NUM_GAMES, turns=1, prompt=half, reply=half, seed=0)
    config = {**sizes, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
    model_sizes = ModelSizes.from_config(config)
    assert model_sizes is not None
    parts = batch_parts(
        model_sizes,
        tokens,
        tokens // 2,
        bytes_per_number=BYTES[dtype],
        rank=RANK,
        checkpointed=checkpointed,
        whole=whole,
    )
    measured = peak(_model(config, checkpointed), getattr(torch, dtype), rows, whole)
    return _Peak(predicted=sum(parts.values()), measured=measured)


def _model(config: dict[str, Any], checkpointed: bool) -> "torch.nn.Module":
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model: Any = with_adapter(lambda: Qwen3ForCausalLM(Qwen3Config(**config)), "cpu")
    if checkpointed:
        model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return model
