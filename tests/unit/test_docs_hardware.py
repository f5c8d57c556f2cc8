"""docs/hardware.md: its table is that of the profiles, and its sums are those of the doctor."""

import json
import math
import re
import struct
from pathlib import Path

import pytest
from dotenv import dotenv_values

from doctor_machines import NOWHERE, ROOT
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.model import server_bytes, trainer_bytes
from hanabi_grpo.settings import load as load_module
from hanabi_grpo.settings import load_settings
from hanabi_grpo.settings.defaults import Device

TEXT = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
PROFILES = {path.stem: path for path in sorted((ROOT / "tools" / "profiles").glob("*.env"))}
GPU_GB = {"gpu-8": 80, "gpu-4": 80, "gpu-1": 80, "mig": 20}
QWEN3_4B = {
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}


def table(name: str) -> list[list[str]]:
    [between] = re.findall(rf"<!-- {name}:begin -->\n(.*?)<!-- {name}:end -->", TEXT, flags=re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in between.splitlines()]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sizes of Qwen3-4B; its weights are a hole in the file."""
    hidden, inner, vocabulary = 2560, 9728, 151936
    shapes = {"model.embed_tokens": (vocabulary, hidden), "model.norm": (hidden,)}
    layer = {
        **{f"self_attn.{name}_proj": (size, hidden) for name, size in (("q", 4096), ("k", 1024), ("v", 1024))},
        **{"self_attn.o_proj": (hidden, 4096), "self_attn.q_norm": (128,), "self_attn.k_norm": (128,)},
        **{"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)},
        **{"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)},
    }
    shapes |= {f"model.layers.{number}.{name}": shape for number in range(36) for name, shape in layer.items()}
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    folder = tmp_path_factory.mktemp("qwen")
    (folder / "config.json").write_text(json.dumps(QWEN3_4B))
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


def context(profile: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """Return what the doctor looks at on a GPU machine, for conversations of nothing but replies."""
    monkeypatch.setattr(load_module, "installed_device", lambda: Device(kind="gpu", reason="a test says so"))
    given = {"HANABI_PROFILE": str(profile), "MODEL": str(folder)}
    found = Context(loaded=load_settings(given, NOWHERE), shell={})
    found.__dict__["budget"] = None
    return found


def test_the_table_holds_exactly_what_the_profiles_set() -> None:
    head, _, *rows = table("profiles")
    assert head == ["variable", *PROFILES]
    told = {
        name: {row[0].strip("`"): cell.strip("`") for row in rows if (cell := row[place]) != "–"}
        for place, name in enumerate(head)
        if name in PROFILES
    }
    assert told == {name: dict(dotenv_values(path)) for name, path in PROFILES.items()}
    assert len({row[0] for row in rows}) == len(rows)


def test_the_sums_are_those_of_the_doctor(qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, memory in GPU_GB.items():
        found = context(PROFILES[name], qwen, monkeypatch)
        share = found.settings.gpu_memory_utilization * memory
        rest = memory - (share if name == "gpu-1" else 0)
        [row] = [row for row in table("memory") if row[0].startswith(f"`{name}`")]
        server, trainer = server_bytes(found) / 1e9, trainer_bytes(found) / 1e9
        assert row[1:] == [f"{server:.1f} GB of {share:g}", f"{trainer:.1f} GB of {rest:g}"]
