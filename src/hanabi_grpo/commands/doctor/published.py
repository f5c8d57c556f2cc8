"""Sizes of models that the docs name, for plans on machines without these models.

The numbers are from each model's published config.json, https://huggingface.co/Qwen.
"""

import math
from collections.abc import Mapping
from typing import Any

from hanabi_grpo.commands.doctor.experts import experts_of
from hanabi_grpo.runs.adapter_config import is_covered, is_mixture, text_config_of

SIZE_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Keys that a config.json needs to determine a model's size."""
_ATTENTION_KINDS = ("full_attention", "sliding_attention", "chunked_attention")
"""Values of `layer_types` whose layers have the same matrices as Llama's attention."""
_WITH_HEAD_NORMS = ("qwen3", "qwen3_moe")
"""Models that normalize queries and keys."""
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


def unknown_part(config: Mapping[str, Any]) -> str:
    """Return why a config.json does not determine the size of its model; "" if it does.

    Example:
        "it has no hidden_size"
    """
    text_config = text_config_of(config)
    missing = [key for key in SIZE_KEYS if not text_config.get(key)]
    if missing:
        return f"it has no {missing[0]}"
    if text_config.get("kv_lora_rank"):
        return "its attention is latent (kv_lora_rank)"
    kinds = set(text_config.get("layer_types") or ()) - set(_ATTENTION_KINDS)
    if kinds:
        return f"it has layers of an unknown kind ({', '.join(sorted(map(str, kinds)))})"
    if is_mixture(config) and experts_of(config) is None:
        return "its experts have unknown names for their sizes"
    return ""


def linear_shapes_of(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return (out, in) of every matrix that an adapter covers; for a mixture, only attention.

    Args:
        config: A config.json with sizes, of an architecture like Llama or Qwen3.
    """
    mixture = is_mixture(config)
    layer = {
        name: shape
        for name, shape in _layer_shapes(config).items()
        if is_covered(name, mixture=mixture)
    }
    shapes = {}
    for number in range(text_config_of(config)["num_hidden_layers"]):
        for name, shape in layer.items():
            shapes[f"model.layers.{number}.{name}"] = shape
    return shapes


def num_parameters_of(config: Mapping[str, Any]) -> int:
    """Return the parameters of a transformer: matrices, experts, embeddings and norms.

    Args:
        config: As in `linear_shapes_of`, without an `unknown_part`.
    """
    text_config = text_config_of(config)
    hidden = text_config["hidden_size"]
    heads = text_config["num_attention_heads"]
    head = text_config.get("head_dim") or hidden // heads
    num_layers = text_config["num_hidden_layers"]
    shapes = _layer_shapes(config)
    dense_layer = sum(math.prod(shape) for shape in shapes.values())
    matrices = num_layers * dense_layer
    experts = experts_of(config)
    if experts is not None:
        attention = 0
        for name, shape in shapes.items():
            if is_covered(name, mixture=True):
                attention += math.prod(shape)
        sparse_layer = attention + experts.layer_parameters
        matrices += experts.layers * (sparse_layer - dense_layer)
    is_tied = config.get("tie_word_embeddings") or text_config.get("tie_word_embeddings")
    num_embeddings = 1 if is_tied else 2
    embeddings = num_embeddings * text_config["vocab_size"] * hidden
    norms_of_a_layer = 2 * hidden
    if text_config.get("model_type") in _WITH_HEAD_NORMS:
        norms_of_a_layer += 2 * head
    return int(matrices + embeddings + num_layers * norms_of_a_layer + hidden)


def _layer_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return (out, in) of every matrix of a dense layer."""
    text_config = text_config_of(config)
    hidden = text_config["hidden_size"]
    inner = text_config.get("intermediate_size") or 4 * hidden
    heads = text_config["num_attention_heads"]
    head = text_config.get("head_dim") or hidden // heads
    query = heads * head
    value = (text_config.get("num_key_value_heads") or heads) * head
    return {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (value, hidden),
        "self_attn.v_proj": (value, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
