"""Exported folders: read by PEFT and transformers themselves, and by our own commands."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from peft import PeftModel
from safetensors.torch import load_file, save
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner, Result

from hanabi_grpo.cli import app
from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.report.export.card import presets
from hanabi_grpo.report.export.origin import read_origin
from hanabi_grpo.runs.adapter_config import frozen_name
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.evaluation_result import EvaluationResult, result_to_json, write_document
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.runs.manifest import check_checkpoint
from hanabi_grpo.runs.saved_adapters import read_adapters
from hanabi_grpo.training.model.adapters import add_adapters, lora_layers, save_adapter
from small_models import SHIPPED
from tracked_runs import LAPTOP, SECRET, tracked_run
from training_runs import LAPTOP as SETUP
from training_runs import evaluate_scripted

PLAYERS = ("player_0", "player_1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, and in `run` two adapters on it that change its logits."""
    place = tmp_path_factory.mktemp("somebody")
    model = Path(shutil.copytree(SHIPPED, place / "model"))
    peft = add_adapters(
        AutoModelForCausalLM.from_pretrained(model), PLAYERS, rank=8, alpha=16, seed=1
    )
    generator = torch.Generator().manual_seed(5)
    for layer in lora_layers(peft):
        for name in PLAYERS:
            weight = layer.lora_B[name].weight
            weight.data = 0.05 * torch.randn(weight.shape, generator=generator)

    def fill(partial: Path) -> None:
        for name in PLAYERS:
            save_adapter(peft, name, partial / name)
        (partial / "trainer").mkdir()
        (partial / "trainer/moments.safetensors").write_bytes(b"moments")

    facts = {
        "adapters": list(PLAYERS),
        "board_hashes": [LAPTOP.spec().hash],
        "model": str(model),
        "model_fingerprint": model_fingerprint(model),
        "taught_by": {"player_0": {"teacher": "save-bot", "labels": "reply"}},
        "trained_with": {"iggi": 40, f"{place}/other/checkpoint-3": 8},
        "started_from": {"player_0": {"folder": f"{place}/first/checkpoint-9", "step": 9}},
    }
    run = tracked_run(place / "run", steps=50, MODEL=str(model))
    write_checkpoint(run, 50, fill, facts, needed_bytes=1_000_000)
    return place


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODEL", "WANDB_MODE", "OUTPUT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def run_export(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def played_by(
    result: EvaluationResult, seats: tuple[str, ...], policies: Mapping[str, str] | None = None
) -> EvaluationResult:
    """Return a result as if others had played.

    Args:
        result: The result.
        seats: What the seats were on the server.
        policies: Digest of the weights of each adapter that a trainer pushed.
    """
    order = replace(result.orders[0], seats=seats)
    return replace(result, orders=(order,), policies=dict(policies or {}))


def base_model_of(adapter: Path) -> str:
    """Return the base model that an adapter's configuration names."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    return str(config["base_model_name_or_path"])


def logits(model: Any) -> torch.Tensor:
    """Return the model's logits for two rows of ten tokens."""
    with torch.no_grad():
        return model.eval()(torch.arange(5, 25).reshape(2, 10)).logits


def test_each_player_is_the_trained_adapter_to_peft_and_names_no_path_key_or_machine(
    trained: Path,
) -> None:
    assert run_export(trained / "run", "--out", "hub").exit_code == 0
    hub = Path("hub")
    for name in PLAYERS:
        source = trained / "run/checkpoint-50" / name
        weights = (hub / name / "adapter_model.safetensors").read_bytes()
        assert weights == (source / "adapter_model.safetensors").read_bytes()
        trained_base = AutoModelForCausalLM.from_pretrained(trained / "model")
        exported_base = AutoModelForCausalLM.from_pretrained(trained / "model")
        trained_player = PeftModel.from_pretrained(trained_base, source)
        exported_player = PeftModel.from_pretrained(exported_base, "hub", subfolder=name)
        assert torch.equal(logits(trained_player), logits(exported_player))
    files = [path for path in hub.rglob("*") if path.is_file()]
    assert len(files) == 7
    assert not list(hub.rglob("*moments*"))
    for path in files:
        content = path.read_bytes()
        assert SECRET.encode() not in content
        assert str(trained).encode() not in content
    assert base_model_of(hub / "player_0") == "model"
    names = sorted(path.name for path in hub.iterdir())
    assert names == ["README.md", "episodes", "manifest.json", "player_0", "player_1"]


def test_what_was_exported_is_a_checkpoint_as_a_team_and_as_one_player(trained: Path) -> None:
    assert run_export(trained / "run/checkpoint-50", "--out", "hub").exit_code == 0
    assert run_export("hub:player_1", "--out", "one").exit_code == 0
    check_checkpoint(Path("hub"))
    team = read_adapters(Path("hub"))
    alone = read_adapters(Path("one"))
    before = read_adapters(trained / "run/checkpoint-50")
    assert team.step == 50
    assert team.lora_rank == 8
    assert list(team.adapters) == ["player_0", "player_1"]
    assert alone.step == 50
    assert list(alone.adapters) == ["player_1"]
    # A server calls the guest adapter the same, so evaluations of the one are evaluations of the
    # other.
    names = set()
    for saved in (before, team, alone):
        weights, config = saved.adapters["player_1"]
        names.add(frozen_name(hashlib.sha256(weights).hexdigest(), config))
    assert len(names) == 1
    assert team.facts["model_fingerprint"] == model_fingerprint(trained / "model")
    assert parse_lineup("./hub:player_1,iggi", 2).needs_server
    # Whom the players have met goes with them, without the folders of this machine.
    assert team.facts["taught_by"] == before.facts["taught_by"]
    assert team.facts["trained_with"] == {"iggi": 40, "other/checkpoint-3": 8}
    assert team.facts["started_from"]["player_0"]["folder"] == "first/checkpoint-9"
    assert "HANABI_OBSERVATION" in Path("one/README.md").read_text()


def test_the_card_has_results_of_these_weights_only_with_their_errors(
    trained: Path, tmp_path: Path
) -> None:
    saved = read_adapters(trained / "run/checkpoint-50")
    weights, config = saved.adapters["player_0"]
    guest = f"{frozen_name(hashlib.sha256(weights).hexdigest(), config)}@50"
    pushed_digests = {}
    for name in PLAYERS:
        tensors = load_file(trained / f"run/checkpoint-50/{name}/adapter_model.safetensors")
        pushed_digests[name] = hashlib.sha256(save(tensors)).hexdigest()
    other_digests = {name: "0" * 64 for name in PLAYERS}
    result = evaluate_scripted("random", SETUP, 20)
    seats = ("player_0@50", "player_1@50")
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    for path, played in (
        (run / "evaluation-team.json", played_by(result, seats, pushed_digests)),
        (run / "evaluation-other.json", played_by(result, seats, other_digests)),
        (run / "evaluations" / "mixed.json", played_by(result, (guest, "iggi"))),
    ):
        write_document(path, result_to_json(played))
    for source, out in ((run, "team"), (f"{run}:player_1", "partner")):
        answer = run_export(source, "--out", out)
        assert answer.exit_code == 0, answer.output
    team = ModelCard.load("team/README.md")
    partner = ModelCard.load("partner/README.md")
    assert team.data.library_name == "peft"
    assert team.data.base_model is None
    assert f"{result.mean:.3f} ± {result.standard_error:.3f}" in partner.content
    assert "| player_0, iggi |" in team.content
    assert "| player_0, iggi |" not in partner.content
    for text in ("## Limits", "exactly the base model", "5.45 ± 0.10 over 10 steps"):
        assert text in team.content
    assert str(tmp_path) not in team.content


def test_the_command_of_the_card_plays_what_was_trained(trained: Path) -> None:
    settings_file = trained / "run" / "settings.json"
    before = settings_file.read_text()
    document = json.loads(before)
    settings = document["settings"]
    settings |= {
        "HANABI_PRESET": "laptop",
        "HANABI_MEMORY": "turn",
        "HANABI_DEDUCTIONS": "counted",
        "HANABI_COLORS": 2,
    }
    settings |= {"HANABI_REWARD_ILLEGAL": -0.1, "HANABI_OTHER_PLAY": True}
    settings_file.write_text(json.dumps(document))
    try:
        assert run_export(trained / "run", "--out", "counted").exit_code == 0
    finally:
        settings_file.write_text(before)
    card = Path("counted/README.md").read_text()
    [command] = [line for line in card.splitlines() if "hanabi-grpo evaluate" in line]
    for part in ("PRESET=laptop", "MEMORY=turn", "DEDUCTIONS=counted", "COLORS=2"):
        assert f"HANABI_{part} " in command
    assert "REWARD" not in command
    assert "OTHER_PLAY" not in command


def test_a_board_is_known_by_its_hash_whatever_its_messages_deduce(trained: Path) -> None:
    saved = read_adapters(trained / "run/checkpoint-50")
    board_hash = LAPTOP.spec().hash
    facts = {"spec_hashes": [f"{board_hash}-counted", board_hash, "0123456789ab"]}
    origin = replace(read_origin(trained / "run/checkpoint-50"), saved=replace(saved, facts=facts))
    assert presets(replace(origin, settings={})) == ["laptop", "0123456789ab"]


def test_a_hub_name_of_the_base_model_is_in_card_and_configuration(trained: Path) -> None:
    answer = run_export(f"{trained}/run:player_1", "--out", "hub", "--base-model", "Qwen/Qwen3-4B")
    assert answer.exit_code == 0, answer.output
    assert not Path("hub/player_0").exists()
    card = ModelCard.load("hub/README.md")
    assert card.data.base_model == "Qwen/Qwen3-4B"
    assert base_model_of(Path("hub/player_1")) == "Qwen/Qwen3-4B"


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(trained: Path) -> None:
    Path("there").mkdir()
    Path("there/file").write_text("mine")
    damaged = (
        Path(shutil.copytree(trained / "run", "damaged"))
        / "checkpoint-50/player_1/adapter_model.safetensors"
    )
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for source, words, message in (
        (trained / "run", ["--out", "there"], "already exists; choose"),
        (
            f"{trained}/run:shared",
            ["--out", "hub"],
            "no adapter shared in it; it has player_0, player_1",
        ),
        (trained / "nowhere/run", ["--out", "hub"], "no such folder"),
        (trained / "model", ["--out", "hub"], "no */adapter_model.safetensors"),
        (trained / "run", ["--out", "hub", "--base-model", "../x"], "give the name on the hub"),
        (trained / "run", ["--out", "there/file/hub"], "cannot be written"),
        ("damaged", ["--out", "hub"], "player_1/adapter_model.safetensors has"),
        ("damaged/checkpoint-50", ["--out", "hub"], "player_1/adapter_model.safetensors has"),
    ):
        answer = run_export(source, *words)
        assert (answer.exit_code, message in answer.output) == (2, True), answer.output
    assert sorted(path.as_posix() for path in (*Path().iterdir(), *Path("there").iterdir())) == [
        "damaged", "there", "there/file"
    ]  # fmt: skip


def test_an_export_that_fails_halfway_leaves_nothing(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, filepath: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ModelCard, "save", full)
    answer = run_export(trained / "run", "--out", "hub")
    assert answer.exit_code == 2 and "No space left on device" in answer.output
    assert list(Path().iterdir()) == []
