"""The layers that adapters cover, the PEFT configuration sent with them, and names by digest."""

import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

from hanabi_grpo.settings.refs import FROZEN_PREFIX

_SHAPE_KEYS = ("r", "lora_alpha", "target_modules", "lora_dropout", "bias", "use_rslora")
"""Keys that decide what the tensors of an adapter mean."""
WIRE_KEYS = frozenset({"peft_type", "task_type", "inference_mode", *_SHAPE_KEYS})
"""Keys that the rollout server accepts: no path, no base-model name, nothing that names code."""
_UNSUPPORTED_KEYS = (
    "alpha_pattern",
    "fan_in_fan_out",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_dora",
)
"""Keys that give the tensors another meaning, which neither trainer nor server implements."""
NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names by which configurations give the number of experts of a layer."""
_ATTENTION = "attn"
"""Part of the names of attention layers, as in `self_attn` and `linear_attn`."""
_NAME_DIGITS = 16
"""Digits of a digest in the name of a frozen adapter."""


def is_mixture(config: Mapping[str, Any]) -> bool:
    """Tell whether a model is a mixture of experts.

    Args:
        config: Its config.json; if the model also reads images, the language model's part may be
            under `text_config`.
    """
    text_config = text_config_of(config)
    return any((text_config.get(name) or 0) > 1 for name in NUM_EXPERTS)


def text_config_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a config.json, which is usually all of it."""
    return config.get("text_config") or config


def is_covered(module: str, *, mixture: bool) -> bool:
    """Tell whether an adapter covers a linear layer of a model.

    In a mixture of experts it covers only attention. Experts and their router are stacked
    parameters in the trainer but separate kernels in the engine, and with an adapter on a router
    the two could send the same token to different experts.

    Args:
        module: Its path, e.g. "model.layers.0.self_attn.q_proj".
        mixture: Whether the model is a mixture of experts.
    """
    return not mixture or any(_ATTENTION in part for part in module.split("."))


def adapter_config_for_wire(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a PEFT configuration that is sent to a server, as JSON values.

    Args:
        config: A PEFT configuration, e.g. `LoraConfig.to_dict()`.
    """
    sent_config = {}
    for key, value in config.items():
        if key in WIRE_KEYS:
            sent_config[key] = _plain(value)
    return sent_config


def unsupported_keys(config: Mapping[str, Any]) -> list[str]:
    """Return the keys of a PEFT configuration without which its tensors would mean something else.

    Args:
        config: The content of an adapter_config.json. Keys that are false or empty have no meaning.
    """
    return [key for key in _UNSUPPORTED_KEYS if config.get(key)]


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the sha256 of a PEFT configuration.

    The configuration decides what the tensors mean, so a receipt includes both digests.
    """
    content = json.dumps(config, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def frozen_name(weights_sha256: str, config: Mapping[str, Any]) -> str:
    """Return the name of a guest adapter on a server.

    The same weights and PEFT configuration always have the same name.

    Args:
        weights_sha256: Digest of the weights' file.
        config: The PEFT configuration that is sent with them.
    """
    digest = hashlib.sha256(f"{weights_sha256} {config_digest(config)}".encode()).hexdigest()
    return f"{FROZEN_PREFIX}{digest[:_NAME_DIGITS]}"


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    # Sets have no defined order; sorted, the same adapter always gives the same bytes.
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value
