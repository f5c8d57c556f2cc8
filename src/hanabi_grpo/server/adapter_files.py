"""What an adapter upload must look like before anything is loaded."""

import struct
from collections.abc import Mapping
from typing import Any

from hanabi_grpo.adapter_config import WIRE_KEYS
from hanabi_grpo.errors import AdapterError


def check_adapter(body: bytes, config: Mapping[str, Any], *, adapter: str, lora_rank: int) -> None:
    """Check configuration, names, shapes, rank and finiteness of an upload.

    Args:
        body: safetensors bytes in PEFT's naming.
        config: The PEFT configuration.
        adapter: Name for messages.
        lora_rank: The rank that the session was opened with.

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
    if not tensors:
        raise AdapterError(f"{adapter}: the upload holds no tensors.")
    for name, tensor in tensors.items():
        kind = "A" if ".lora_A.weight" in name else "B" if ".lora_B.weight" in name else None
        if kind is None or tensor.dim() != 2 or tensor.shape[0 if kind == "A" else 1] != lora_rank:
            raise AdapterError(
                f"{adapter}: tensor {name!r} of shape {tuple(tensor.shape)} is not a lora_A [{lora_rank}, in] "
                f"or lora_B [out, {lora_rank}] weight."
            )
        if not tensor.isfinite().all():
            raise AdapterError(f"{adapter}: tensor {name!r} holds values that are not finite.")
        twin = name.replace(".lora_A.", ".lora_B.") if kind == "A" else name.replace(".lora_B.", ".lora_A.")
        if twin not in tensors:
            raise AdapterError(f"{adapter}: {name!r} came without {twin!r}.")
