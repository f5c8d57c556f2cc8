"""What an adapter upload may hold."""

import json
import math
import random
import struct
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from hanabi_grpo.errors import AdapterError
from hanabi_grpo.server.adapter_files import DTYPES, check_adapter, max_adapter_bytes
from server_app import PEFT_CONFIG, RANK, SHAPES, adapter_bytes

Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"
FIRST = f"{Q_PROJ}.lora_A.weight"
UNREADABLE = "not a readable safetensors file"


def check(body: bytes, config: Any = PEFT_CONFIG, dtype: str = "float32") -> None:
    check_adapter(body, config, adapter="player_0", lora_rank=RANK, shapes=SHAPES, dtype=dtype)


def refusal(body: bytes, config: Any = PEFT_CONFIG, dtype: str = "float32") -> str:
    """The message with which an upload is refused."""
    with pytest.raises(AdapterError) as caught:
        check(body, config, dtype)
    return str(caught.value)


def with_config(**changes: Any) -> dict[str, Any]:
    """The PEFT configuration with some changes."""
    return {**PEFT_CONFIG, **changes}


def header_length(body: bytes) -> int:
    [length] = struct.unpack("<Q", body[:8])
    return length


def header_of(body: bytes) -> dict[str, Any]:
    """The header of a safetensors file."""
    return json.loads(body[8 : 8 + header_length(body)])


def with_header(**entries: Any) -> bytes:
    """A valid upload but for some entries of its header."""
    body = adapter_bytes()
    header = {**header_of(body), **entries}
    text = json.dumps(header).encode()
    data = body[8 + header_length(body) :]
    return struct.pack("<Q", len(text)) + text + data


def with_first_tensor(**fields: Any) -> bytes:
    """A valid upload but for some fields of its first tensor's header."""
    entry = header_of(adapter_bytes())[FIRST]
    entry.update(fields)
    return with_header(**{FIRST: entry})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_three_number_formats_are_accepted_if_every_value_is_finite(dtype: torch.dtype) -> None:
    check(adapter_bytes(dtype=dtype))
    for value in ("nan", "inf", "-inf"):
        body = adapter_bytes(float(value), dtype=dtype)
        assert "contains values that are not finite" in refusal(body)


@given(
    value=st.sampled_from([math.nan, math.inf, -math.inf]),
    others=st.sampled_from([0.0, 0.01, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    served=st.sampled_from(DTYPES),
    choice=st.randoms(use_true_random=False),
)
def test_one_value_that_is_not_finite_is_found_wherever_it_is(
    value: float, others: float, dtype: torch.dtype, served: str, choice: random.Random
) -> None:
    tensors = load(adapter_bytes(others, dtype=dtype))
    name = choice.choice(sorted(tensors))
    flat = tensors[name].flatten()
    flat[choice.randrange(len(flat))] = value
    tensors[name] = flat.view_as(tensors[name])
    assert f"tensor {name!r} contains values that are not finite" in refusal(
        save(tensors), dtype=served
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.bool, torch.float8_e4m3fn])
def test_other_number_formats_are_refused_by_name(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    expected = f"has dtype {name}; allowed are float32, bfloat16, float16."
    assert expected in refusal(adapter_bytes(1.0, dtype=dtype))


def test_the_largest_legal_upload_fits_the_limit_and_little_more_does() -> None:
    assert len(adapter_bytes()) <= max_adapter_bytes(SHAPES, RANK)
    # 2 layers x 2 modules x rank 8 x (8 out + 6 in) x 4 bytes, 1 MiB of header, and 8 bytes for
    # the header's length.
    assert max_adapter_bytes(SHAPES, RANK) == 4 * 8 * 14 * 4 + (1 << 20) + 8


def test_a_malformed_file_is_refused_with_the_reason() -> None:
    offsets = header_of(adapter_bytes())[FIRST]["data_offsets"]
    other_name = FIRST.replace("q_proj", "v_proj")
    overlapping = {"dtype": "F32", "shape": [8, 6], "data_offsets": offsets}
    for body, reason in (
        (b"", UNREADABLE),
        (struct.pack("<Q", 2**63) + b"{}", UNREADABLE),
        (struct.pack("<Q", 3) + b"{}", UNREADABLE),
        (struct.pack("<Q", 2) + b"{}", "0 tensors, but the base model needs 8; missing"),
        (struct.pack("<Q", 30000) + b"[" * 30000, UNREADABLE),
        (adapter_bytes()[:-4], UNREADABLE),
        (adapter_bytes() + b"\x00", UNREADABLE),
        (with_first_tensor(dtype="F99"), UNREADABLE),
        (with_first_tensor(shape=[6, 8]), "has shape (6, 8), this model needs (8, 6)"),
        (with_first_tensor(data_offsets=[0, 2**60]), UNREADABLE),
        (with_header(**{other_name: overlapping}), UNREADABLE),
        (save({"x" * 5000: torch.zeros(1)}), "1 tensors, but the base model needs 8"),
    ):
        message = refusal(body)
        assert reason in message, body[:200]
        assert len(message) < 1000, body[:200]


def test_a_file_may_have_metadata() -> None:
    check(with_header(__metadata__={"format": "pt"}))


def test_a_configuration_that_is_no_plain_lora_is_refused() -> None:
    for change, reason in (
        ({"lora_alpha": 0}, "lora_alpha=0"),
        ({"lora_alpha": float("nan")}, "lora_alpha=nan"),
        ({"lora_alpha": 1e300}, "lora_alpha=1e+300"),
        ({"r": 16}, "r=16; this session requires LoRA rank 8"),
        ({"r": 8.0}, "r=8.0"),
        ({"target_modules": []}, "target_modules=[]"),
        (
            {"target_modules": ["proj"]},
            "target_modules names 'proj', which is not a module of the base model",
        ),
        ({"target_modules": ["(a+)+$"]}, "target_modules names '(a+)+$'"),
        ({"target_modules": ["x" * 300]}, "target_modules names 'xxx"),
        ({"lora_dropout": 0.1}, "lora_dropout=0.1"),
        ({"use_dora": True}, "use_dora=True: Extra inputs are not permitted"),
    ):
        assert reason in refusal(adapter_bytes(), with_config(**change))


def test_an_empty_configuration_is_refused_by_its_first_missing_field() -> None:
    message = refusal(adapter_bytes(), {})
    assert message.startswith("player_0: PEFT config: peft_type={}: Field required")


def test_the_configurations_that_training_writes_are_accepted() -> None:
    for config in (
        with_config(use_rslora=True),
        with_config(lora_alpha=16.5),
        with_config(target_modules="all-linear"),
        with_config(target_modules=["layers.0.self_attn.q_proj", "v_proj", "q_proj"]),
        with_config(task_type=None),
        {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": ["q_proj"]},
    ):
        check(adapter_bytes(), config)


@dataclass(frozen=True, kw_only=True)
class Overflow:
    """An upload whose values are finite, but whose product may not be."""

    a: float
    """Every value of A."""
    b: float
    """Every value of B."""
    alpha: float = 16
    """The rank is 8, so alpha / r is 2 unless another is given."""
    dtype: str
    """What the engine holds adapters in."""
    tensor: str
    """Which one the message names."""
    reason: str


@pytest.mark.parametrize(
    "case",
    [
        Overflow(
            a=0.0,
            b=3e38,
            alpha=1e6,
            dtype="float32",
            tensor="lora_B",
            reason="times lora_alpha / r (125000) is not finite in float32",
        ),
        Overflow(a=1e5, b=0.0, dtype="float16", tensor="lora_A", reason="is not finite in float16"),
        Overflow(
            a=0.0,
            b=4e4,
            dtype="float16",
            tensor="lora_B",
            reason="times lora_alpha / r (2) is not finite in float16",
        ),
        # 8 ranks x 2 x 10 x 6 inputs x 1e5: a hidden state of one may grow to 9.6e7.
        Overflow(
            a=1e5,
            b=10.0,
            dtype="float32",
            tensor="lora_B",
            reason="9.6e+07 times as large; allowed is 1e+06 in float32",
        ),
        Overflow(
            a=4e3,
            b=1.0,
            dtype="float16",
            tensor="lora_B",
            reason="3.84e+05 times as large; allowed is 6.55e+04 in float16",
        ),
    ],
    ids=["B in float32", "A in float16", "B in float16", "product", "product in float16"],
)
def test_values_whose_product_could_overflow_are_refused_by_the_tensors_name(
    case: Overflow,
) -> None:
    config = with_config(lora_alpha=case.alpha)
    message = refusal(adapter_bytes(case.a, case.b), config, case.dtype)
    assert f"{Q_PROJ}.{case.tensor}.weight" in message
    assert case.reason in message


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_large_values_whose_product_is_small_enough_are_accepted(dtype: str) -> None:
    check(adapter_bytes(1e1, 1e1), PEFT_CONFIG, dtype)


def test_rank_stabilized_lora_divides_by_the_root_of_the_rank() -> None:
    # 1e38 x 16 / 2.83 overflows where 1e38 x 16 / 8 would not.
    body = adapter_bytes(0.0, 1e38)
    assert "not finite in float32" in refusal(body, with_config(use_rslora=True))
