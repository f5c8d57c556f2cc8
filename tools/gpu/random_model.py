"""Models of real sizes with random weights, to measure time and memory without a download.

python -m gpu.random_model NAME FOLDER cuda|cpu      # with tools/ on PYTHONPATH
"""

import sys
from pathlib import Path
from typing import Any

_QWEN3 = {
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
"""Config values that all models of the family share."""

_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
}
"""Config values that the models for machines without a GPU share."""

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        **_QWEN3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
    "qwen3-1.7b": {
        **_QWEN3,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
    "qwen3-4b": {
        **_QWEN3,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    # For machines without a GPU.
    "small": {**_QWEN3, **_SMALL},
    "small-deep": {**_QWEN3, **_SMALL, "num_hidden_layers": 3},
}
"""Names to the config sizes of Qwen/Qwen3-0.6B, -1.7B and -4B, and of two small models."""


def dtype_for(device: str) -> str:
    """Return the dtype in which a device computes."""
    return "float32" if device == "cpu" else "bfloat16"


def random_model(
    name: str, device: str, *, attention: str = "sdpa", dtype: str = "bfloat16"
) -> Any:
    """Return the causal language model of an architecture, the same on every call for a device.

    Args:
        name: A key of `ARCHITECTURES`.
        device: "cuda" or "cpu".
        attention: The attention implementation that transformers uses.
        dtype: Name of the weights' torch dtype.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**ARCHITECTURES[name])
    cuda_devices = [0] if device == "cuda" else []
    with torch.random.fork_rng(devices=cuda_devices), torch.device(device):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation=attention
        )


def save_random_model(name: str, folder: Path, device: str) -> None:
    """Write a model folder for both terminals, with a word-level tokenizer of the board `laptop`.

    As in real models, the model's vocabulary is larger than the tokenizer's: ids without a word
    decode to nothing, so a reply is rarely a move and hardly ever ends before its limit.

    Args:
        name: A key of `ARCHITECTURES`.
        folder: The folder to write.
        device: "cuda" or "cpu".
    """
    from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
    from hanabi_grpo.envs.hanabi.rules import make_spec
    from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

    model = random_model(name, device, dtype=dtype_for(device))
    tokenizer = build_tokenizer(compact_vocabulary(make_spec("laptop")))
    for config in (model.config, model.generation_config):
        config.eos_token_id = tokenizer.eos_token_id
        config.pad_token_id = tokenizer.pad_token_id
        config.bos_token_id = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    save_random_model(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
