"""Checks of an adapter upload before anything is loaded."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hanabi_grpo.errors import AdapterError, shown
from hanabi_grpo.runs.adapter_config import is_covered, is_mixture

if TYPE_CHECKING:
    import torch

Shapes = Mapping[str, tuple[int, int]]
"""Module path to (out, in) of its weight, e.g. {"model.layers.0.self_attn.q_proj": (128, 128)}."""

DTYPES = ("float32", "bfloat16", "float16")
"""Number formats of an upload's tensors."""

_NOT_COVERED = ("embed_tokens", "lm_head")
"""Matrices of a model that no adapter covers."""
_LENGTH_BYTES = 8
"""Size of the header's length, at the beginning of a safetensors file."""
_HEADER_BYTES = 1 << 20
"""Maximum size of a safetensors file's header."""
_FLOAT32_BYTES = 4
_MAX_ALPHA = 1e6
_MAX_GAIN = 1e6
"""Maximum gain of one module, see `_check_values`; a well-trained adapter has 10 to 100."""
_SURELY_WITHIN = 0.9
"""Share of the limit up to which a gain computed in float32 is accepted without a second check."""
_NUM_SHOWN = 2
"""Number of tensor names in a message."""
_SHOWN_NAME = 200
"""Characters of a tensor's name in a message."""


def linear_shapes(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the modules of a model folder that an adapter must cover.

    These are all matrices except the embeddings and the output head; in a mixture of experts, only
    those of attention (`adapter_config.is_covered`). vLLM ignores tensors of unknown modules, so an
    upload with a missing or misnamed tensor would silently be served without it.

    Args:
        folder: A model folder with safetensors files.

    Returns:
        Module path to (out, in) of its weight.
    """
    from safetensors import safe_open

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    mixture = is_mixture(config)
    shapes = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                shape = file.get_slice(name).get_shape()
                module = name.removesuffix(".weight")
                has_adapter = module.rsplit(".", 1)[-1] not in _NOT_COVERED and is_covered(
                    module, mixture=mixture
                )
                if len(shape) == 2 and has_adapter:
                    num_out, num_in = shape
                    shapes[module] = (num_out, num_in)
    return shapes


def max_adapter_bytes(shapes: Shapes, rank: int) -> int:
    """Return the size of the largest legal upload: every module at `rank` in float32, and a header.

    Args:
        shapes: The modules that an adapter covers.
        rank: The largest rank.

    Returns:
        Bytes of the safetensors file.
    """
    num_values = 0
    for num_out, num_in in shapes.values():
        num_values += rank * (num_out + num_in)
    return _LENGTH_BYTES + _HEADER_BYTES + _FLOAT32_BYTES * num_values


class PeftConfig(BaseModel):
    """The PEFT configuration that the engine will read.

    It allows only plain LoRA, without options that change the meaning of the tensors.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    peft_type: Literal["LORA"]
    task_type: Literal["CAUSAL_LM"] | None = None
    r: int = Field(ge=1)
    lora_alpha: int | float = Field(gt=0, le=_MAX_ALPHA)
    target_modules: Annotated[list[str], Field(min_length=1)] | Literal["all-linear"]
    lora_dropout: Annotated[float, Field(ge=0, le=0)] = 0.0
    bias: Literal["none"] = "none"
    use_rslora: bool = False
    inference_mode: bool = False

    @property
    def scaling(self) -> float:
        """The factor by which the engine multiplies B when it loads the file."""
        if self.use_rslora:
            return float(self.lora_alpha) / math.sqrt(self.r)
        return float(self.lora_alpha) / self.r


def check_adapter(
    body: bytes,
    config: Mapping[str, Any],
    *,
    adapter: str,
    lora_rank: int,
    shapes: Shapes,
    dtype: str,
) -> None:
    """Check an upload before it is loaded.

    Args:
        body: Safetensors bytes in PEFT's naming.
        config: The PEFT configuration.
        adapter: Name of the adapter in messages.
        lora_rank: The required rank.
        shapes: The modules that it must cover, see `linear_shapes`.
        dtype: Number format in which the engine holds adapters.

    Raises:
        AdapterError: The upload must not be loaded.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    parsed = _check_config(config, adapter, lora_rank, shapes)
    try:
        tensors = load(body)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise AdapterError(f"{adapter}: not a readable safetensors file: {error}") from error
    _check_tensors(tensors, adapter, shapes, lora_rank)
    for module in shapes:
        _check_values(
            tensors,
            f"base_model.model.{module}",
            parsed.scaling,
            adapter=adapter,
            dtype=dtype,
        )


def _check_config(
    config: Mapping[str, Any], adapter: str, lora_rank: int, shapes: Shapes
) -> PeftConfig:
    try:
        parsed = PeftConfig.model_validate(dict(config))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise AdapterError(
            f"{adapter}: PEFT config: {first['loc'][0]}={shown(first['input'])}: {first['msg']}."
        ) from None
    if parsed.r != lora_rank:
        raise AdapterError(
            f"{adapter}: PEFT config: r={parsed.r}; this session requires LoRA rank {lora_rank}."
        )
    if isinstance(parsed.target_modules, list):
        for target in parsed.target_modules:
            if not _is_module(target, shapes):
                raise AdapterError(
                    f"{adapter}: PEFT config: target_modules names {shown(target)}, which is not a "
                    "module of the base model."
                )
    return parsed


def _is_module(target: str, shapes: Shapes) -> bool:
    """Tell whether an entry of `target_modules` names a module: its path, or the end of it."""
    return any(module == target or module.endswith(f".{target}") for module in shapes)


def _check_tensors(
    tensors: "Mapping[str, torch.Tensor]", adapter: str, shapes: Shapes, lora_rank: int
) -> None:
    """Reject an upload whose tensor names, number formats or shapes do not match the model."""
    expected = {}
    for module, (num_out, num_in) in shapes.items():
        expected[f"base_model.model.{module}.lora_A.weight"] = (lora_rank, num_in)
        expected[f"base_model.model.{module}.lora_B.weight"] = (num_out, lora_rank)
    missing = sorted(set(expected) - set(tensors))
    unknown = sorted(set(tensors) - set(expected))
    if missing or unknown:
        shown_unknown = [name[:_SHOWN_NAME] for name in unknown[:_NUM_SHOWN]]
        raise AdapterError(
            f"{adapter}: {len(tensors)} tensors, but the base model needs {len(expected)}; missing "
            f"{missing[:_NUM_SHOWN]}, not of this model {shown_unknown}. Train all linear layers "
            "of the same base model."
        )
    for name, tensor in sorted(tensors.items()):
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        if dtype not in DTYPES:
            raise AdapterError(
                f"{adapter}: {name!r} has dtype {dtype}; allowed are {', '.join(DTYPES)}."
            )
        if shape != expected[name]:
            raise AdapterError(
                f"{adapter}: {name!r} has shape {shape}, this model needs {expected[name]}."
            )


def _check_values(
    tensors: "Mapping[str, torch.Tensor]", module: str, scaling: float, *, adapter: str, dtype: str
) -> None:
    """Reject an adapter that could turn finite hidden states of one module into infinite ones.

    The engine holds A and s·B in `dtype`, where s is the factor from alpha and rank; both must be
    finite in it. It adds sB(Ax) to the module's output, and for every hidden state x, with |x| its
    largest absolute entry,

        |sB(Ax)| <= gain · |x|, gain = max_j Σ_i |sB_ji| Σ_k |A_ik|,

    which also bounds every partial sum. Within the limit, only hidden states above largest number /
    limit can overflow: 3e32 in float32 and bfloat16, far beyond any working base model. The largest
    number of float16 is 65504, so there the limit only ensures that a hidden state of 1 does not
    overflow.

    Args:
        tensors: The upload's tensors by name.
        module: The module's path with PEFT's prefix.
        scaling: The factor s.
        adapter: Name of the adapter in messages.
        dtype: Number format in which the engine holds adapters.
    """
    import torch

    served_dtype = getattr(torch, dtype)
    name_a = f"{module}.lora_A.weight"
    name_b = f"{module}.lora_B.weight"
    matrix_a = tensors[name_a].to(served_dtype)  # [rank, in]
    matrix_b = tensors[name_b].to(served_dtype) * scaling  # [out, rank]
    limit = min(_MAX_GAIN, torch.finfo(served_dtype).max)
    # A non-finite value anywhere makes this gain infinite or NaN.
    rough_gain = _gain(matrix_a, matrix_b, torch.float32)
    if rough_gain <= _SURELY_WITHIN * limit:
        return
    for name in (name_a, name_b):
        if not tensors[name].isfinite().all():
            raise AdapterError(f"{adapter}: tensor {name!r} contains values that are not finite.")
    if not matrix_a.isfinite().all():
        raise AdapterError(
            f"{adapter}: tensor {name_a!r} is not finite in {dtype}; upload smaller weights."
        )
    if not matrix_b.isfinite().all():
        raise AdapterError(
            f"{adapter}: tensor {name_b!r} times lora_alpha / r ({scaling:g}) is not finite in "
            f"{dtype}; upload smaller weights."
        )
    gain = _gain(matrix_a, matrix_b, torch.float64)
    if gain > limit:
        raise AdapterError(
            f"{adapter}: tensor {name_b!r} and its lora_A make a hidden state up to {gain:.3g} "
            f"times as large; allowed is {limit:.3g} in {dtype}. The training may have diverged. "
            "Upload smaller weights."
        )


def _gain(matrix_a: "torch.Tensor", matrix_b: "torch.Tensor", dtype: "torch.dtype") -> float:
    """Return max_j Σ_i |b_ji| Σ_k |a_ik|, computed in a number format.

    Args:
        matrix_a: A [rank, in].
        matrix_b: s·B [out, rank].
        dtype: The number format.
    """
    row_sums = matrix_a.abs().sum(1, dtype=dtype)
    # Not a matrix product: some libraries skip factors of 0 even if the other factor is NaN.
    return float((matrix_b.abs().to(dtype) * row_sums).sum(1).max())
