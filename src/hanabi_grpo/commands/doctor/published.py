"""Sizes of models that the docs name, for plans on machines that do not have the models.

The numbers are those of each model's published config.json, https://huggingface.co/Qwen.
"""

import math
from collections.abc import Mapping
from typing import Any

_QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-0.6B": {
        **_QWEN3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
    "Qwen/Qwen3-1.7B": {
        **_QWEN3,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
    "Qwen/Qwen3-4B": {
        **_QWEN3,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    "Qwen/Qwen3-8B": {
        **_QWEN3,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
}
"""Hub name to the sizes in its config.json."""


def linear_shapes_of(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return (out, in) of every matrix that an adapter covers, of a dense transformer.

    Args:
        config: A config.json with its sizes, of the kind of Llama and Qwen3.
    """
    hidden = config["hidden_size"]
    inner = config.get("intermediate_size", 4 * hidden)
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    query = heads * head
    value = config.get("num_key_value_heads", heads) * head
    layer = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (value, hidden),
        "self_attn.v_proj": (value, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes = {}
    for number in range(config["num_hidden_layers"]):
        for name, shape in layer.items():
            shapes[f"model.layers.{number}.{name}"] = shape
    return shapes


def num_parameters_of(config: Mapping[str, Any]) -> int:
    """Return the parameters of a dense transformer: matrices, embeddings and norms."""
    hidden = config["hidden_size"]
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    matrices = sum(math.prod(shape) for shape in linear_shapes_of(config).values())
    num_embeddings = 1 if config.get("tie_word_embeddings") else 2
    embeddings = num_embeddings * config["vocab_size"] * hidden
    norms_of_a_layer = 2 * hidden
    if config.get("model_type") == "qwen3":
        # It has a norm of queries and one of keys.
        norms_of_a_layer += 2 * head
    return int(matrices + embeddings + config["num_hidden_layers"] * norms_of_a_layer + hidden)
