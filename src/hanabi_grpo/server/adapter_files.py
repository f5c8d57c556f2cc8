"""What an adapter upload must look like before anything is loaded."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hanabi_grpo.errors import AdapterError, shown

if TYPE_CHECKING:
    import torch

Shapes = Mapping[str, tuple[int, int]]
"""Module path to (out, in) of its weight, e.g. {"model.layers.0.self_attn.q_proj": (128, 128)}."""

DTYPES = ("float32", "bfloat16", "float16")
_HEADER_BYTES = 1 << 20
_MAX_GAIN = 1e6
"""Of one module, see `_check_values`; an adapter that trains well has 10 to 100."""


def linear_shapes(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the modules of a model folder that an adapter must cover: every matrix but embeddings
    and output head.

    vLLM ignores tensors of modules that it does not know, so an upload that misses or misnames one
    would be served as if it were trained."""
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


def max_adapter_bytes(shapes: Shapes, rank: int) -> int:
    """Return the size of the largest legal upload: every module at `rank` in float32, and the
    file's header.
    """
    return (
        8
        + _HEADER_BYTES
        + sum(4 * rank * (num_out + num_in) for num_out, num_in in shapes.values())
    )


class PeftConfig(BaseModel):
    """The PEFT configuration that the engine will read: plain LoRA, and nothing that changes what a
    file means.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    peft_type: Literal["LORA"]
    task_type: Literal["CAUSAL_LM"] | None = None
    r: int = Field(ge=1)
    lora_alpha: int | float = Field(gt=0, le=1e6)
    target_modules: Annotated[list[str], Field(min_length=1)] | Literal["all-linear"]
    lora_dropout: Annotated[float, Field(ge=0, le=0)] = 0.0
    bias: Literal["none"] = "none"
    use_rslora: bool = False
    inference_mode: bool = False


def check_adapter(
    body: bytes,
    config: Mapping[str, Any],
    *,
    adapter: str,
    lora_rank: int,
    shapes: Shapes,
    dtype: str,
) -> None:
    """Raise an AdapterError for an upload, safetensors bytes in PEFT's naming, that must not be
    loaded.

    `adapter` names it in messages, `shapes` say what it must cover (`linear_shapes`), and `dtype`
    is the number format in which the engine holds adapters."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    parsed = _check_config(config, adapter, lora_rank, shapes)
    try:
        tensors = load(body)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise AdapterError(f"{adapter}: not a readable safetensors file: {error}") from error
    _check_tensors(tensors, adapter, shapes, lora_rank)
    # What the engine multiplies B with when it loads the file.
    scaling = float(parsed.lora_alpha) / (math.sqrt(parsed.r) if parsed.use_rslora else parsed.r)
    for module in shapes:
        _check_values(tensors, f"base_model.model.{module}", scaling, adapter=adapter, dtype=dtype)


def _check_config(
    config: Mapping[str, Any], adapter: str, lora_rank: int, shapes: Shapes
) -> PeftConfig:
    try:
        parsed = PeftConfig.model_validate(dict(config))
    except ValidationError as error:
        item = error.errors(include_url=False, include_context=False)[0]
        raise AdapterError(
            f"{adapter}: PEFT config: {item['loc'][0]}={shown(item['input'])}: {item['msg']}."
        ) from None
    if parsed.r != lora_rank:
        raise AdapterError(
            f"{adapter}: PEFT config: r={parsed.r}; this session takes LORA of rank {lora_rank}."
        )
    for target in parsed.target_modules if isinstance(parsed.target_modules, list) else []:
        if not any(module == target or module.endswith(f".{target}") for module in shapes):
            text = f"target_modules names {shown(target)}, which the base model does not have."
            raise AdapterError(f"{adapter}: PEFT config: {text}")
    return parsed


def _check_tensors(
    tensors: "Mapping[str, torch.Tensor]", adapter: str, shapes: Shapes, lora_rank: int
) -> None:
    expected = {}
    for module, (num_out, num_in) in shapes.items():
        expected[f"base_model.model.{module}.lora_A.weight"] = (lora_rank, num_in)
        expected[f"base_model.model.{module}.lora_B.weight"] = (num_out, lora_rank)
    missing, unknown = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
    if missing or unknown:
        raise AdapterError(
            f"{adapter}: {len(tensors)} tensors, the base model needs {len(expected)}; missing "
            f"{missing[:2]}, "
            f"not of this model {[name[:200] for name in unknown[:2]]}. Train all linear layers "
            "of the same base model."
        )
    for name, tensor in sorted(tensors.items()):
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        if dtype not in DTYPES:
            raise AdapterError(
                f"{adapter}: {name!r} has dtype {dtype}; allowed are {', '.join(DTYPES)}."
            )
        if shape != expected[name]:
            raise AdapterError(
                f"{adapter}: {name!r} has shape {shape}, this model needs {expected[name]}."
            )
        if not tensor.isfinite().all():
            raise AdapterError(f"{adapter}: tensor {name!r} holds values that are not finite.")


def _check_values(
    tensors: "Mapping[str, torch.Tensor]", module: str, scaling: float, *, adapter: str, dtype: str
) -> None:
    """Refuse an adapter that could turn finite hidden states of one module into infinite ones.

    The engine holds A and s·B in `dtype`, with s the factor of alpha and rank; both must be finite
    there. What it adds to the module's output is sB(Ax), and for every hidden state x, with |x| the
    largest of its entries,

        |sB(Ax)| <= gain · |x|, gain = max_j Σ_i |sB_ji| Σ_k |A_ik|,

    and so is every partial sum. Within the limit only hidden states above largest number / limit
    can overflow: 3e32 in float32 and bfloat16, which no base model that works comes near. float16
    ends at 65504: there the limit only says that a hidden state of one does not overflow."""
    import torch

    served = getattr(torch, dtype)
    names = (f"{module}.lora_A.weight", f"{module}.lora_B.weight")
    down, up = (tensors[name].to(served) for name in names)
    up = up * scaling
    for name, held, what in (
        (names[0], down, ""),
        (names[1], up, f"times lora_alpha / r ({scaling:g}) "),
    ):
        if not held.isfinite().all():
            raise AdapterError(
                f"{adapter}: tensor {name!r} {what}is not finite in {dtype}; send smaller weights."
            )
    gain = float((up.double().abs() @ down.double().abs().sum(1)).max())
    limit = min(_MAX_GAIN, torch.finfo(served).max)
    if gain > limit:
        raise AdapterError(
            f"{adapter}: tensor {names[1]!r} and its lora_A make a hidden state up to {gain:.3g} "
            "times as large; "
            f"allowed is {limit:.3g} in {dtype}. Has the training diverged? Send smaller weights."
        )
