"""docs/hardware.md: its table is that of the profiles, and its sums are those of the doctor."""

import json
import math
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dotenv import dotenv_values

from doctor_machines import NOWHERE, ROOT, make_gpu_machine
from gpu.random_model import ARCHITECTURES
from hanabi_grpo.commands.doctor.budget import Step, budget_checks, game_seconds, learning_seconds
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.model import cache_bytes, server_parts, trainer_parts
from hanabi_grpo.rollout.budget import Budget
from hanabi_grpo.settings import load as load_module
from hanabi_grpo.settings import load_settings
from hanabi_grpo.settings.gpus import CARDS, find_card

TEXT = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
PROFILES = {path.stem: path for path in sorted((ROOT / "tools" / "profiles").glob("*.env"))}
GPU_GB = {"gpu-8": 80, "gpu-4": 80, "gpu-1": 80, "gpu-24gb": 24, "mig": 20}


def table(name: str) -> list[list[str]]:
    [between] = re.findall(
        rf"<!-- {name}:begin -->\n(.*?)<!-- {name}:end -->", TEXT, flags=re.DOTALL
    )
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in between.splitlines()]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the sizes of two models; their weights are holes in the files."""
    return {
        name: holes(tmp_path_factory.mktemp("model"), ARCHITECTURES[name])
        for name in ("qwen3-4b", "qwen3-1.7b")
    }


def holes(folder: Path, sizes: dict[str, Any]) -> Path:
    header, end = {}, 0
    for name, shape in shapes_of(sizes).items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    (folder / "config.json").write_text(json.dumps(sizes))
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


def shapes_of(sizes: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every weight of a Qwen3 with these sizes, output and input embedding
    in one.
    """
    hidden, inner, head = sizes["hidden_size"], sizes["intermediate_size"], sizes["head_dim"]
    query, value = sizes["num_attention_heads"] * head, sizes["num_key_value_heads"] * head
    layer = {
        **{
            f"self_attn.{name}_proj": (size, hidden)
            for name, size in (("q", query), ("k", value), ("v", value))
        },
        **{
            "self_attn.o_proj": (hidden, query),
            "self_attn.q_norm": (head,),
            "self_attn.k_norm": (head,),
        },
        **{
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        },
        **{"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)},
    }
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens": (sizes["vocab_size"], hidden),
        "norm": (hidden,),
    }
    for number in range(sizes["num_hidden_layers"]):
        shapes |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    return {f"model.{name}.weight": shape for name, shape in shapes.items()}


def context(profile: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Context:
    """Return what the doctor looks at on a GPU machine, for conversations of nothing but
    replies.
    """
    monkeypatch.setattr(load_module, "installed_device", lambda: ("gpu", "a test says so"))
    given = {"HANABI_PROFILE": str(profile)}
    name = load_settings(given, NOWHERE).settings.model.removeprefix("Qwen/").lower()
    found = Context(loaded=load_settings({**given, "MODEL": str(folders[name])}, NOWHERE), shell={})
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


def test_the_sums_are_those_of_the_doctor_and_every_profile_fits_its_gpu(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, memory in GPU_GB.items():
        found = context(PROFILES[name], folders, monkeypatch)
        share = found.settings.gpu_memory_utilization * memory
        rest = memory - (share if name in ("gpu-1", "gpu-24gb") else 0)
        [row] = [row for row in table("memory") if row[0].startswith(f"`{name}`")]
        server, trainer = (
            sum(parts(found).values()) / 1e9 for parts in (server_parts, trainer_parts)
        )
        assert row[1:] == [f"{server:.1f} GB of {share:g}", f"{trainer:.1f} GB of {rest:g}"]
        assert server <= share and trainer <= rest


def test_the_seconds_of_a_step_are_those_that_were_worked_out_by_hand() -> None:
    """Estimates for Qwen3-4B, 64 games on four engines and four trainers of 80 GB: 7 s + 5 s, and
    430 s + 115 s.
    """
    sizes, parameters = ARCHITECTURES["qwen3-4b"], 4_022_468_096
    assert sum(math.prod(shape) for shape in shapes_of(sizes).values()) == parameters
    assert cache_bytes(sizes, 2) == 147_456
    for turns, reply, message, expected in ((8, 200, 100, (7, 5)), (70, 512, 100, (430, 115))):
        length = turns // 2 * (message + reply)
        sampled, trained = 64 * turns * reply, 128 * length
        step = Step(
            games=64, turns=turns, reply=reply, context=length / 2, sampled=sampled, trained=trained
        )
        card, work = CARDS["H100"], (parameters, sizes, 2)
        games = game_seconds(step, card, *work, copies=4)
        learning = learning_seconds(step, card, parameters, sizes, processes=4)
        assert (games, learning) == (
            pytest.approx(expected[0], rel=0.4),
            pytest.approx(expected[1], rel=0.4),
        )
        # A GPU with a fraction of the bandwidth, or games that have to queue, take longer.
        assert game_seconds(step, CARDS["L4"], *work, copies=4) > 5 * games
        assert game_seconds(step, card, *work, copies=4, seats=8) > 1.2 * games
    names = (
        "NVIDIA H100 80GB HBM3",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA L40S",
        "NVIDIA L4",
        "Tesla T4",
    )
    assert [find_card(name) for name in names] == [
        *(CARDS[one] for one in ("H100", "A100", "L40S", "L4")),
        None,
    ]


def test_the_doctor_tells_the_memory_of_each_part_and_the_seconds_of_a_step(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = context(PROFILES["gpu-8"], folders, monkeypatch)
    found = replace(found, shell=make_gpu_machine(tmp_path, 8, free=80000))
    found.__dict__["budget"] = Budget(
        **{"preset": "full", "players": 2, "memory": "game", "turns": 35, "reply": 512},
        **{"opening": 400, "later": 100.0, "alone": 400, "earlier": 100.0},
    )
    server, trainer, seconds = [check.finding for check in budget_checks(found)]
    assert "weights 8.04 GB, KV cache of one conversation 6.04 GB, adapters" in server
    assert "weights 8.04 GB, adapters 264 MB, gradients and moments 793 MB, activations" in trainer
    assert re.search(
        r"about \d+ s at most, games \d+ s and learning \d+ s: 64 games of \d+ turns × 512", seconds
    )
    found.__dict__["budget"] = None
    assert [check.status for check in budget_checks(found)] == ["ok", "ok", "skip"]
