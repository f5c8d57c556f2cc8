"""docs/hardware.md: its table is that of the profiles, and its sums are those of the doctor."""

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from dotenv import dotenv_values

from doctor_machines import NOWHERE, ROOT, make_gpu_machine
from gpu.random_model import ARCHITECTURES
from hanabi_grpo.commands.doctor.budget import (
    Step,
    budget_checks,
    game_seconds,
    learning_seconds,
    step_seconds,
)
from hanabi_grpo.commands.doctor.context import Context
from hanabi_grpo.commands.doctor.memory import ModelSizes, server_parts, trainer_parts
from hanabi_grpo.rollout.budget import Budget
from hanabi_grpo.settings import load as load_module
from hanabi_grpo.settings import load_settings
from hanabi_grpo.settings.gpus import CARDS, find_card

TEXT = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
PROFILES = {path.stem: path for path in sorted((ROOT / "tools" / "profiles").glob("*.env"))}
GPU_GB = {"gpu-8": 80, "gpu-4": 80, "gpu-2": 80, "gpu-1": 80, "gpu-24gb": 24, "mig": 20}
"""Memory of the GPU that each profile is for."""


def table(name: str) -> list[list[str]]:
    """Return the cells of a table of the page, row by row."""
    [between] = re.findall(
        rf"<!-- {name}:begin -->\n(.*?)<!-- {name}:end -->", TEXT, flags=re.DOTALL
    )
    rows = []
    for line in between.splitlines():
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the sizes of two models; their weights are holes, their vocabularies empty."""
    made = {}
    for name in ("qwen3-4b", "qwen3-1.7b"):
        made[name] = write_sparse_model(tmp_path_factory.mktemp("model"), ARCHITECTURES[name])
    return made


def write_sparse_model(folder: Path, sizes: Mapping[str, Any]) -> Path:
    """Write a model folder whose weights have shapes and take no space on the disk."""
    header = {}
    end = 0
    for name, shape in shapes_of(sizes).items():
        start = end
        # Two bytes for each number in bfloat16.
        end = start + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "vocab.json").write_text("{}")
    header_text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header_text)) + header_text)
        file.truncate(8 + len(header_text) + end)
    return folder


def shapes_of(sizes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of a Qwen3 with tied embeddings, by name."""
    hidden = sizes["hidden_size"]
    inner = sizes["intermediate_size"]
    head = sizes["head_dim"]
    query = sizes["num_attention_heads"] * head
    value = sizes["num_key_value_heads"] * head
    layer = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (value, hidden),
        "self_attn.v_proj": (value, hidden),
        "self_attn.o_proj": (hidden, query),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (sizes["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for number in range(sizes["num_hidden_layers"]):
        for name, shape in layer.items():
            shapes[f"model.layers.{number}.{name}.weight"] = shape
    return shapes


def sizes_of(name: str) -> ModelSizes:
    sizes = ModelSizes.from_config(ARCHITECTURES[name])
    assert sizes is not None
    return sizes


def make_context(
    profile: Path,
    folders: Mapping[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    **variables: str,
) -> Context:
    """Return what the doctor examines on a GPU machine, for conversations of replies alone."""
    monkeypatch.setattr(load_module, "installed_device", lambda: ("gpu", "a test says so"))
    environ = {"HANABI_PROFILE": str(profile), **variables}
    name = load_settings(environ, NOWHERE).settings.model.removeprefix("Qwen/").lower()
    environ["MODEL"] = str(folders[name])
    context = Context(loaded=load_settings(environ, NOWHERE), shell={})
    set_budget(context, None)
    return context


def set_budget(context: Context, budget: Budget | None) -> None:
    """Put a budget in the place of the one that the context would measure."""
    context.__dict__["budget"] = budget


def test_the_table_holds_exactly_what_the_profiles_set() -> None:
    head, _, *rows = table("profiles")
    assert head == ["variable", *PROFILES]
    for column, name in enumerate(head):
        if name not in PROFILES:
            continue
        shown = {}
        for row in rows:
            if row[column] != "–":
                shown[row[0].strip("`")] = row[column].strip("`")
        assert shown == dict(dotenv_values(PROFILES[name]))
    assert len({row[0] for row in rows}) == len(rows)


@pytest.mark.parametrize("name", GPU_GB)
def test_the_sums_are_those_of_the_doctor_and_the_profile_fits_its_gpu(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    context = make_context(PROFILES[name], folders, monkeypatch)
    sizes = ModelSizes.from_config(context.config)
    assert sizes is not None
    engine_gb = context.settings.gpu_memory_utilization * GPU_GB[name]
    trainer_gb = context.settings.trainer_memory * GPU_GB[name]
    [row] = [row for row in table("memory") if row[0].startswith(f"`{name}`")]
    server = sum(server_parts(context, sizes).values()) / 1e9
    trainer = sum(trainer_parts(context, sizes).values()) / 1e9
    assert row[1:] == [f"{server:.1f} GB of {engine_gb:g}", f"{trainer:.1f} GB of {trainer_gb:g}"]
    assert server <= engine_gb
    assert trainer <= trainer_gb


def test_the_sizes_of_a_model_are_read_from_its_configuration() -> None:
    parameters = sum(math.prod(shape) for shape in shapes_of(ARCHITECTURES["qwen3-4b"]).values())
    assert parameters == QWEN3_4B_PARAMETERS
    # 2 × 36 layers × 8 heads × 128 numbers of 2 bytes.
    assert sizes_of("qwen3-4b").cache_bytes(2) == 147_456
    assert ModelSizes.from_config({"hidden_size": 16}) is None


QWEN3_4B_PARAMETERS = 4_022_468_096


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedOut:
    """A step whose seconds were worked out by hand."""

    turns: int
    reply: int
    game_seconds: float
    learning_seconds: float


@pytest.mark.parametrize(
    "example",
    [
        WorkedOut(turns=8, reply=200, game_seconds=21, learning_seconds=5),
        WorkedOut(turns=70, reply=512, game_seconds=750, learning_seconds=150),
    ],
)
def test_the_seconds_of_a_step_are_those_that_were_worked_out_by_hand(example: WorkedOut) -> None:
    """Qwen3-4B, 64 games of two players on four engines and four trainers of 80 GB."""
    sizes = sizes_of("qwen3-4b")
    message = 100
    length = example.turns // 2 * (message + example.reply)
    step = Step(
        games=64,
        turns=example.turns,
        reply=example.reply,
        context=length / 2,
        sampled=64 * example.turns * example.reply,
        trained=2 * 64 * length,
    )

    def seconds(card: str, **options: int) -> float:
        return game_seconds(step, CARDS[card], QWEN3_4B_PARAMETERS, sizes, 2, copies=4, **options)

    games = seconds("H100")
    learning = learning_seconds(step, CARDS["H100"], QWEN3_4B_PARAMETERS, sizes, processes=4)
    assert games == pytest.approx(example.game_seconds, rel=0.4)
    assert learning == pytest.approx(example.learning_seconds, rel=0.4)
    # A GPU with a fraction of the bandwidth takes longer, and so do games that have to queue.
    assert seconds("L4") > 2 * games
    assert seconds("H100", seats=8) > 1.2 * games


def test_gpus_are_known_by_the_names_that_nvidia_smi_tells() -> None:
    assert find_card("NVIDIA H100 80GB HBM3") == CARDS["H100"]
    assert find_card("NVIDIA A100-SXM4-80GB") == CARDS["A100"]
    assert find_card("NVIDIA L40S") == CARDS["L40S"]
    assert find_card("NVIDIA L4") == CARDS["L4"]
    assert find_card("Tesla T4") is None


FULL_HANABI = Budget(
    preset="full",
    players=2,
    memory="game",
    turns=35,
    reply=512,
    opening=400,
    later=100.0,
    alone=400,
    earlier=100.0,
)


@pytest.mark.parametrize(("places", "is_slower"), [(64, False), (16, True)])
def test_games_that_have_to_wait_for_a_place_take_longer(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, places: int, is_slower: bool
) -> None:
    """A step has 64 games."""

    def seconds(**variables: str) -> float:
        context = make_context(PROFILES["gpu-8"], folders, monkeypatch, **variables)
        return step_seconds(context, sizes_of("qwen3-4b"), CARDS["H100"], FULL_HANABI).games

    limited = seconds(HANABI_GAMES_AT_ONCE=str(places))
    assert (limited > 1.5 * seconds()) == is_slower


def test_the_doctor_tells_the_memory_of_each_part_and_the_seconds_of_a_step(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make_context(PROFILES["gpu-8"], folders, monkeypatch)
    context = replace(context, shell=make_gpu_machine(tmp_path, 8, free=80_000))
    set_budget(context, FULL_HANABI)
    server, trainer, seconds = [check.finding for check in budget_checks(context)]
    assert "weights 8.04 GB, KV cache of one conversation 6.04 GB, adapters" in server
    assert "weights 8.04 GB, adapters 264 MB, gradients and moments 793 MB, activations" in trainer
    assert re.search(
        r"at most about \d+ s, games \d+ s and learning \d+ s: 64 games of \d+ turns × 512", seconds
    )
    set_budget(context, None)
    assert [check.status for check in budget_checks(context)] == ["ok", "ok", "skip"]


def test_the_seconds_of_a_step_are_those_of_the_sizes_that_the_scripts_set(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = make_gpu_machine(tmp_path, 2, free=80_000)
    no_profile = tmp_path / "no-gpus-chosen.env"
    no_profile.write_text("HANABI_OVERLAP=1\nHANABI_TOKENS_PER_MICRO_BATCH=16384\n")
    findings = []
    for profile in (PROFILES["gpu-2"], no_profile):
        context = replace(make_context(profile, folders, monkeypatch), shell=shell)
        set_budget(context, FULL_HANABI)
        *_, seconds = [check.finding for check in budget_checks(context)]
        findings.append(seconds)
    # Without them they would be those of 8 GPUs, the defaults.
    assert findings[0] == findings[1]
    context = replace(make_context(PROFILES["gpu-8"], folders, monkeypatch), shell=shell)
    set_budget(context, FULL_HANABI)
    *_, seconds = [check.finding for check in budget_checks(context)]
    assert seconds != findings[0]
