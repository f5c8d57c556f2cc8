"""What an adapter upload may hold."""

import json
import struct
from typing import Any

import pytest
import torch
from safetensors.torch import save

from hanabi_grpo.errors import AdapterError
from hanabi_grpo.server.adapter_files import check_adapter, max_adapter_bytes
from server_app import PEFT_CONFIG, RANK, SHAPES, adapter_bytes

FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
UNREADABLE = "not a readable safetensors file"


def check(body: bytes, config: Any = PEFT_CONFIG, dtype: str = "float32") -> None:
    check_adapter(body, config, adapter="player_0", lora_rank=RANK, shapes=SHAPES, dtype=dtype)


def refusal(body: bytes, config: Any = PEFT_CONFIG) -> str:
    with pytest.raises(AdapterError) as caught:
        check(body, config)
    return str(caught.value)


def header_of(body: bytes) -> dict[str, Any]:
    size = struct.unpack("<Q", body[:8])[0]
    return json.loads(body[8 : 8 + size])


def with_header(**entries: Any) -> bytes:
    body = adapter_bytes()
    text = json.dumps({**header_of(body), **entries}).encode()
    return struct.pack("<Q", len(text)) + text + body[8 + struct.unpack("<Q", body[:8])[0] :]


def edited(**fields: Any) -> bytes:
    return with_header(**{FIRST: {**header_of(adapter_bytes())[FIRST], **fields}})


def test_three_number_formats_are_accepted_if_every_value_is_finite_and_others_are_refused_by_name() -> (
    None
):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        check(adapter_bytes(dtype=dtype))
        for value in ("nan", "inf", "-inf"):
            assert "holds values that are not finite" in refusal(
                adapter_bytes(float(value), dtype=dtype)
            )
    for dtype in (torch.float64, torch.int8, torch.bool, torch.float8_e4m3fn):
        name = str(dtype).removeprefix("torch.")
        expected = f"has dtype {name}; allowed are float32, bfloat16, float16."
        assert expected in refusal(adapter_bytes(1.0, dtype=dtype))


def test_the_largest_legal_upload_fits_the_limit_and_little_more_does() -> None:
    assert len(adapter_bytes()) <= max_adapter_bytes(SHAPES, RANK)
    # 2 layers × 2 modules × rank 8 × (8 out + 6 in) × 4 bytes, 1 MiB of header, 8 bytes that say
    # its length.
    assert max_adapter_bytes(SHAPES, RANK) == 4 * 8 * 14 * 4 + (1 << 20) + 8


def test_a_malformed_file_is_refused_with_the_reason() -> None:
    shared = header_of(adapter_bytes())[FIRST]["data_offsets"]
    for body, problem in (
        (b"", UNREADABLE),
        (struct.pack("<Q", 2**63) + b"{}", UNREADABLE),
        (struct.pack("<Q", 3) + b"{}", UNREADABLE),
        (struct.pack("<Q", 2) + b"{}", "0 tensors, the base model needs 8; missing"),
        (struct.pack("<Q", 30000) + b"[" * 30000, UNREADABLE),
        (adapter_bytes()[:-4], UNREADABLE),
        (adapter_bytes() + b"\x00", UNREADABLE),
        (edited(dtype="F99"), UNREADABLE),
        (edited(shape=[6, 8]), "has shape (6, 8), this model needs (8, 6)"),
        (edited(data_offsets=[0, 2**60]), UNREADABLE),
        (with_header(**{FIRST.replace("q_proj", "v_proj"): {"dtype": "F32", "shape": [8, 6], "data_offsets": shared}}),
         UNREADABLE),
        (save({"x" * 5000: torch.zeros(1)}), "1 tensors, the base model needs 8"),
    ):  # fmt: skip
        message = refusal(body)
        assert problem in message and len(message) < 1000, body[:200]
    check(with_header(__metadata__={"format": "pt"}))


def test_a_configuration_that_is_no_plain_lora_is_refused() -> None:
    for change, problem in (
        ({"lora_alpha": 0}, "lora_alpha=0"),
        ({"lora_alpha": float("nan")}, "lora_alpha=nan"),
        ({"lora_alpha": 1e300}, "lora_alpha=1e+300"),
        ({"r": 16}, "r=16; this session takes LORA of rank 8"),
        ({"r": 8.0}, "r=8.0"),
        ({"target_modules": []}, "target_modules=[]"),
        (
            {"target_modules": ["proj"]},
            "target_modules names 'proj', which the base model does not have",
        ),
        ({"target_modules": ["(a+)+$"]}, "target_modules names '(a+)+$'"),
        ({"target_modules": ["x" * 300]}, "target_modules names 'xxx"),
        ({"lora_dropout": 0.1}, "lora_dropout=0.1"),
        ({"use_dora": True}, "use_dora=True: Extra inputs are not permitted"),
    ):
        assert problem in refusal(adapter_bytes(), {**PEFT_CONFIG, **change})
    assert refusal(adapter_bytes(), {}).startswith(
        "player_0: PEFT config: peft_type={}: Field required"
    )


def test_the_configurations_that_training_writes_are_accepted() -> None:
    for change in (
        {"use_rslora": True},
        {"lora_alpha": 16.5},
        {"target_modules": "all-linear"},
        {"task_type": None},
    ):
        check(adapter_bytes(), {**PEFT_CONFIG, **change})
    check(
        adapter_bytes(),
        {**PEFT_CONFIG, "target_modules": ["layers.0.self_attn.q_proj", "v_proj", "q_proj"]},
    )
    minimal = {
        name: PEFT_CONFIG[name] for name in ("peft_type", "r", "lora_alpha", "target_modules")
    }
    check(adapter_bytes(), minimal)


def test_values_whose_product_could_overflow_are_refused_by_the_tensors_name() -> None:
    cases = (
        # (A, B, alpha, served format, tensor, what is wrong with it); alpha / r is 125000 and 2.
        (
            0.0,
            3e38,
            1e6,
            "float32",
            "lora_B",
            "times lora_alpha / r (125000) is not finite in float32",
        ),
        (1e5, 0.0, 16, "float16", "lora_A", "is not finite in float16"),
        (0.0, 4e4, 16, "float16", "lora_B", "times lora_alpha / r (2) is not finite in float16"),
        # 8 ranks × 2 × 10 × 6 inputs × 1e5: a hidden state of one may grow to 9.6e7.
        (1e5, 10.0, 16, "float32", "lora_B", "9.6e+07 times as large; allowed is 1e+06 in float32"),
        (
            4e3,
            1.0,
            16,
            "float16",
            "lora_B",
            "3.84e+05 times as large; allowed is 6.55e+04 in float16",
        ),
    )
    for down, up, alpha, dtype, tensor, reason in cases:
        body = adapter_bytes(down, up)
        with pytest.raises(AdapterError) as caught:
            check(body, {**PEFT_CONFIG, "lora_alpha": alpha}, dtype)
        named = f"base_model.model.model.layers.0.self_attn.q_proj.{tensor}.weight"
        assert named in str(caught.value) and reason in str(caught.value), str(caught.value)
    for dtype in ("float32", "bfloat16", "float16"):
        check(adapter_bytes(1e1, 1e1), PEFT_CONFIG, dtype)
    # rsLoRA divides by the root of the rank: 3e38 × 16 / 2.83 overflows where 3e38 / 8 × 2 would
    # not.
    assert "not finite in float32" in refusal(
        adapter_bytes(0.0, 1e38), {**PEFT_CONFIG, "use_rslora": True}
    )
