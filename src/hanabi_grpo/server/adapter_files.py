"""What an adapter upload must look like before anything is loaded."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hanabi_grpo.adapter_config import WIRE_KEYS
from hanabi_grpo.errors import AdapterError

Shapes = Mapping[str, tuple[int, int]]
"""Module path to (out, in) of its weight, e.g. {"model.layers.0.self_attn.q_proj": (128, 128)}."""


def linear_shapes(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the modules of a model folder that an adapter must cover: every matrix but embeddings and output head.

    vLLM ignores tensors of modules that it does not know, so an upload that misses or misnames one would be served
    as if it were trained.
    """
    from safetensors import safe_open

    shapes = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                shape = file.get_slice(name).get_shape()
                module = name.removesuffix(".weight")
                if len(shape) == 2 and module.rsplit(".", 1)[-1] not in ("embed_tokens", "lm_head"):
                    shapes[module] = (shape[0], shape[1])
    return shapes


def check_adapter(body: bytes, config: Mapping[str, Any], *, adapter: str, lora_rank: int, shapes: Shapes) -> None:
    """Check configuration, names, shapes, rank and finiteness of an upload.

    Args:
        body: safetensors bytes in PEFT's naming.
        config: The PEFT configuration.
        adapter: Name for messages.
        lora_rank: The rank that the session was opened with.
        shapes: What the adapter must cover, see `linear_shapes`.

    Raises:
        AdapterError: Says what is wrong; the upload must not be loaded.
    """
    unknown = sorted(set(config) - WIRE_KEYS)
    if unknown:
        raise AdapterError(f"{adapter}: PEFT config keys {unknown} are not accepted; allowed: {sorted(WIRE_KEYS)}.")
    if config.get("peft_type") != "LORA" or config.get("r") != lora_rank:
        raise AdapterError(
            f"{adapter}: peft_type={config.get('peft_type')!r} r={config.get('r')!r}; "
            f"this session takes LORA of rank {lora_rank}."
        )
    if len(body) < 8 or struct.unpack("<Q", body[:8])[0] > min(len(body), 16 << 20):
        raise AdapterError(f"{adapter}: {len(body)} bytes are not a safetensors file (its header does not fit).")
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(body)
    except (SafetensorError, ValueError, KeyError) as error:
        raise AdapterError(f"{adapter}: not a readable safetensors file: {error}") from error
    expected = {}
    for module, (num_out, num_in) in shapes.items():
        expected[f"base_model.model.{module}.lora_A.weight"] = (lora_rank, num_in)
        expected[f"base_model.model.{module}.lora_B.weight"] = (num_out, lora_rank)
    missing, unknown_names = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
    if missing or unknown_names:
        raise AdapterError(
            f"{adapter}: {len(tensors)} tensors, the base model needs {len(expected)}; missing {missing[:2]}, "
            f"not of this model {unknown_names[:2]}. Train all linear layers of the same base model."
        )
    for name, tensor in sorted(tensors.items()):
        shape = tuple(tensor.shape)
        if shape != expected[name]:
            raise AdapterError(f"{adapter}: {name!r} has shape {shape}, this model needs {expected[name]}.")
        if not tensor.isfinite().all():
            raise AdapterError(f"{adapter}: tensor {name!r} holds values that are not finite.")
