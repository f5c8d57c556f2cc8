"""The part of a PEFT configuration that travels with an adapter, and names by digest."""

import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

from hanabi_grpo.settings.refs import FROZEN_PREFIX

_SHAPE_KEYS = ("r", "lora_alpha", "target_modules", "lora_dropout", "bias", "use_rslora")
"""What the tensors of an adapter mean."""
WIRE_KEYS = frozenset({"peft_type", "task_type", "inference_mode", *_SHAPE_KEYS})
"""What the rollout server accepts: no path, no base-model name, nothing that names code."""
_NAME_DIGITS = 16
"""Digits of a digest in the name of a frozen adapter."""


def adapter_config_for_wire(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a PEFT configuration that may travel, as values that JSON has.

    Args:
        config: For example `LoraConfig.to_dict()`.
    """
    return {key: _plain(value) for key, value in config.items() if key in WIRE_KEYS}


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the sha256 of a PEFT configuration.

    It decides what the tensors mean, so a receipt names it beside theirs.
    """
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def frozen_name(weights_sha256: str, config: Mapping[str, Any]) -> str:
    """Return the name of a guest adapter on a server.

    The same weights and PEFT configuration always have the same name.

    Args:
        weights_sha256: Of the weights' file.
        config: The PEFT configuration that travels with them.
    """
    digest = hashlib.sha256(f"{weights_sha256} {config_digest(config)}".encode()).hexdigest()
    return f"{FROZEN_PREFIX}{digest[:_NAME_DIGITS]}"


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    # A set has no order of its own: sorted, the same adapter gives the same bytes.
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value
