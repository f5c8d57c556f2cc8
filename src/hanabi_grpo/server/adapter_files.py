"""What an adapter upload must look like before anything is loaded."""

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hanabi_grpo.errors import AdapterError, shown
from hanabi_grpo.runs.adapter_config import WIRE_KEYS
from hanabi_grpo.server.strict_json import strict_json

if TYPE_CHECKING:
    import torch

Shapes = Mapping[str, tuple[int, int]]
"""Module path to (out, in) of its weight, e.g. {"model.layers.0.self_attn.q_proj": (128, 128)}."""

DTYPE_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
"""Number formats that an upload may have, by their safetensors names."""
_HEADER_BYTES = 1 << 20
_MAX_ALPHA = 1e6
_MAX_GAIN = 1e6
"""Of one module, see `_check_values`; an adapter that trains well has 10 to 100."""


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


def max_adapter_bytes(shapes: Shapes, rank: int) -> int:
    """Return the size of the largest legal upload: every module at `rank` in float32, and the file's header."""
    return 8 + _HEADER_BYTES + sum(4 * rank * (num_out + num_in) for num_out, num_in in shapes.values())


class PeftConfig(BaseModel):
    """The PEFT configuration that the engine will read: plain LoRA, and nothing that changes what a file means."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    peft_type: Literal["LORA"]
    task_type: Literal["CAUSAL_LM"] | None = None
    r: int = Field(ge=1)
    lora_alpha: int | float = Field(gt=0, le=_MAX_ALPHA)
    target_modules: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=4096)]
        | Literal["all-linear"]
    )
    lora_dropout: Annotated[float, Field(ge=0, le=0)] = 0.0
    bias: Literal["none"] = "none"
    use_rslora: bool = False
    inference_mode: bool = False

    @property
    def scaling(self) -> float:
        """The factor that the engine multiplies B with when it loads the file."""
        return float(self.lora_alpha) / (math.sqrt(self.r) if self.use_rslora else self.r)


def check_adapter(
    body: bytes, config: Mapping[str, Any], *, adapter: str, lora_rank: int, shapes: Shapes, dtype: str
) -> None:
    """Check configuration, names, shapes, rank and values of an upload.

    All but the values is known from the file's header, and checked before a tensor is made.

    Args:
        body: safetensors bytes in PEFT's naming.
        config: The PEFT configuration.
        adapter: Name for messages.
        lora_rank: The rank that the session was opened with.
        shapes: What the adapter must cover, see `linear_shapes`.
        dtype: Number format in which the engine holds adapters, e.g. "bfloat16".

    Raises:
        AdapterError: Says what is wrong; the upload must not be loaded.
    """
    parsed = _check_config(config, adapter, lora_rank, shapes)
    _check_header(body, adapter, _expected_shapes(shapes, lora_rank))
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(body)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise AdapterError(f"{adapter}: not a readable safetensors file: {error}") from error
    for name, tensor in sorted(tensors.items()):
        if not tensor.isfinite().all():
            raise AdapterError(f"{adapter}: tensor {name!r} holds values that are not finite.")
    for module in shapes:
        _check_values(tensors, f"base_model.model.{module}", parsed.scaling, adapter=adapter, dtype=dtype)


def _check_values(
    tensors: "Mapping[str, torch.Tensor]", module: str, scaling: float, *, adapter: str, dtype: str
) -> None:
    """Refuse an adapter that could turn finite hidden states of one module into infinite ones.

    The engine holds A and s·B in `dtype`, with s the factor of alpha and rank; both must be finite there. What it adds
    to the module's output is sB(Ax), and for every hidden state x, with |x| the largest of its entries,

        |sB(Ax)| <= gain · |x|, gain = max_j Σ_i |sB_ji| Σ_k |A_ik|,

    and so is every partial sum. An adapter within the limit can therefore only overflow on hidden states above
    largest number / limit: 3e32 in float32 and bfloat16, which no base model that works comes near; the inputs of most
    modules come from a norm and stay below a thousand. float16 ends at 65504, where no limit that lets adapters learn
    could prove that: there the limit only says that a hidden state of one does not overflow.

    Raises:
        AdapterError: Names the tensor.
    """
    import torch

    served = getattr(torch, dtype)
    names = (f"{module}.lora_A.weight", f"{module}.lora_B.weight")
    down, up = (tensors[name].to(served) for name in names)
    up = up * scaling
    for name, held, what in ((names[0], down, ""), (names[1], up, f"times lora_alpha / r ({scaling:g}) ")):
        if not held.isfinite().all():
            raise AdapterError(f"{adapter}: tensor {name!r} {what}is not finite in {dtype}; send smaller weights.")
    gain = float((up.double().abs() @ down.double().abs().sum(1)).max())
    limit = min(_MAX_GAIN, torch.finfo(served).max)
    if gain > limit:
        raise AdapterError(
            f"{adapter}: tensor {names[1]!r} and its lora_A make a hidden state up to {gain:.3g} times as large; "
            f"allowed is {limit:.3g} in {dtype}. Has the training diverged? Send smaller weights."
        )


def _expected_shapes(shapes: Shapes, lora_rank: int) -> dict[str, tuple[int, int]]:
    expected = {}
    for module, (num_out, num_in) in shapes.items():
        expected[f"base_model.model.{module}.lora_A.weight"] = (lora_rank, num_in)
        expected[f"base_model.model.{module}.lora_B.weight"] = (num_out, lora_rank)
    return expected


def _check_config(config: Mapping[str, Any], adapter: str, lora_rank: int, shapes: Shapes) -> PeftConfig:
    if not isinstance(config, Mapping):
        raise AdapterError(f"{adapter}: the PEFT config is {type(config).__name__}; it must be a JSON object.")
    unknown = sorted(set(map(str, config)) - WIRE_KEYS)
    if unknown:
        raise AdapterError(f"{adapter}: PEFT config keys {unknown[:5]} are not accepted; allowed: {sorted(WIRE_KEYS)}.")
    if config.get("peft_type") != "LORA" or config.get("r") != lora_rank:
        raise AdapterError(
            f"{adapter}: peft_type={shown(config.get('peft_type'))} r={shown(config.get('r'))}; "
            f"this session takes LORA of rank {lora_rank}."
        )
    try:
        parsed = PeftConfig.model_validate(dict(config))
    except (ValidationError, RecursionError) as error:
        raise AdapterError(f"{adapter}: PEFT config: {_first_problem(error)}.") from None
    for target in parsed.target_modules if isinstance(parsed.target_modules, list) else []:
        if not any(module == target or module.endswith(f".{target}") for module in shapes):
            raise AdapterError(
                f"{adapter}: PEFT config: target_modules names {target!r}, which the base model does not have."
            )
    return parsed


def _first_problem(error: ValidationError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    item = error.errors(include_url=False, include_context=False)[0]
    return f"{item['loc'][0] if item['loc'] else 'all of it'}={shown(item['input'])}: {item['msg']}"


def _check_header(body: bytes, adapter: str, expected: Mapping[str, tuple[int, int]]) -> None:
    size = struct.unpack("<Q", body[:8])[0] if len(body) >= 8 else 0
    if not 2 <= size <= min(len(body) - 8, _HEADER_BYTES):
        raise AdapterError(f"{adapter}: {len(body)} bytes are not a safetensors file (its header does not fit).")
    try:
        header = strict_json(body[8 : 8 + size])
    except ValueError as error:
        raise AdapterError(f"{adapter}: not a safetensors file: its header is {error}.") from error
    if not isinstance(header, dict):
        raise AdapterError(f"{adapter}: not a safetensors file: its header is {type(header).__name__}, not an object.")
    header.pop("__metadata__", None)  # safetensors itself takes only text, and the header is bounded
    missing, unknown = sorted(set(expected) - set(header)), sorted(set(header) - set(expected))
    if missing or unknown:
        raise AdapterError(
            f"{adapter}: {len(header)} tensors, the base model needs {len(expected)}; missing {missing[:2]}, "
            f"not of this model {[name[:200] for name in unknown[:2]]}. Train all linear layers of the same base model."
        )
    total = 0
    for name, entry in sorted(header.items()):
        fields = entry if isinstance(entry, dict) else {}
        dtype, shape = fields.get("dtype"), fields.get("shape")
        if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
            raise AdapterError(f"{adapter}: {name!r} has dtype {shown(dtype)}; allowed are {', '.join(DTYPE_BYTES)}.")
        if not _same_numbers(shape, list(expected[name])):
            given = tuple(shape) if isinstance(shape, list) else shape
            raise AdapterError(f"{adapter}: {name!r} has shape {shown(given)}, this model needs {expected[name]}.")
        total += DTYPE_BYTES[dtype] * expected[name][0] * expected[name][1]
    if total != len(body) - 8 - size:
        raise AdapterError(
            f"{adapter}: {len(body) - 8 - size} bytes of tensors, its safetensors header says {total}; send it again."
        )


def _same_numbers(given: object, wanted: list[int]) -> bool:
    # JSON's true equals 1 in Python, and 4.0 equals 4.
    return isinstance(given, list) and given == wanted and all(type(number) is int for number in given)
