"""A run that starts from adapters of earlier runs has their tensors bit by bit, or stops."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs.manifest import MANIFEST, read_manifest
from hanabi_grpo.runs.resume import ResumePoint
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import CheckpointRef
from hanabi_grpo.training.checkpoint import save_checkpoint
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.model.start_from import (
    check_base,
    parse_start,
    recorded_start,
    start_adapters,
)
from small_models import small_model

NAMES = ("player_0", "player_1")
FACTS = {"model_fingerprint": "aa", "tokenizer_hash": "bb", "chat_hash": "cc"}


def _model(
    *,
    seed: int = 1,
    rank: int = 8,
    alpha: int = 16,
    names: tuple[str, ...] = NAMES,
    width: int = 16,
) -> PeftModel:
    model = adapters.add_adapters(
        small_model(hidden_size=width), names, rank=rank, alpha=alpha, seed=seed
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(seed))
    return model


def _checkpoint(
    run: Path, model: PeftModel, *, step: int = 7, names: tuple[str, ...] = NAMES, **facts: Any
) -> Path:
    run.mkdir(exist_ok=True)
    return save_checkpoint(model, names, run, step, {**FACTS, **facts})


def _tensors(model: PeftModel, name: str) -> dict[str, torch.Tensor]:
    return adapters.adapter_tensors(model, name, torch.float32)


def _equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    if first.keys() != second.keys():
        return False
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def _settings(*entries: str) -> Settings:
    """Return settings of models as `_model` makes them, with these entries of HANABI_START_FROM."""
    return Settings(lora_rank=8, lora_alpha=16, start_from=entries)


def test_one_folder_gives_each_player_the_adapter_of_its_name(tmp_path: Path) -> None:
    source = _model(seed=5)
    fresh = _model(seed=1)
    start_adapters(fresh, _settings(str(_checkpoint(tmp_path / "a", source))), None)
    for name in NAMES:
        assert _equal(_tensors(fresh, name), _tensors(source, name))
    assert not _equal(_tensors(fresh, "player_0"), _tensors(fresh, "player_1"))
    assert all(value.requires_grad for key, value in fresh.named_parameters() if "lora_" in key)


def test_the_shared_adapter_of_a_folder_is_every_players(tmp_path: Path) -> None:
    shared = _model(seed=6, names=("shared",))
    fresh = _model(seed=1)
    folder = _checkpoint(tmp_path / "b", shared, names=("shared",))
    start_adapters(fresh, _settings(str(folder)), None)
    for name in NAMES:
        assert _equal(_tensors(fresh, name), _tensors(shared, "shared"))


def test_players_may_start_from_different_runs_and_from_each_others_adapters(
    tmp_path: Path,
) -> None:
    first_model = _model(seed=5)
    second_model = _model(seed=6)
    first = _checkpoint(tmp_path / "a", first_model)
    _checkpoint(tmp_path / "b", second_model, step=3)
    _checkpoint(tmp_path / "b", second_model, step=9)
    settings = _settings(f"player_0={first}", f"player_1={tmp_path / 'b'}:player_0")
    fresh = _model(seed=1)
    start_adapters(fresh, settings, None)
    assert _equal(_tensors(fresh, "player_0"), _tensors(first_model, "player_0"))
    assert _equal(_tensors(fresh, "player_1"), _tensors(second_model, "player_0"))

    recorded = recorded_start(settings, None)
    assert json.loads(json.dumps(recorded)) == recorded
    assert recorded["player_0"]["folder"] == str(first)
    assert (recorded["player_1"]["step"], recorded["player_1"]["adapter"]) == (9, "player_0")
    weights = (tmp_path / "b/checkpoint-9/player_0/adapter_model.safetensors").read_bytes()
    assert recorded["player_1"]["sha256"] == hashlib.sha256(weights).hexdigest()


def test_a_player_without_an_entry_has_a_new_adapter(tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path / "a", _model(seed=5))
    fresh = _model(seed=1)
    start_adapters(fresh, _settings(f"player_0={folder}"), None)
    assert _equal(_tensors(fresh, "player_1"), _tensors(_model(seed=1), "player_1"))
    assert recorded_start(_settings(), None) == {}


def test_a_resumed_run_keeps_its_weights_and_hands_on_what_it_started_from(tmp_path: Path) -> None:
    settings = _settings(str(_checkpoint(tmp_path / "a", _model(seed=5))))
    recorded = recorded_start(settings, None)
    later = _checkpoint(tmp_path / "run", _model(seed=8), step=20, started_from=recorded)
    resume = ResumePoint(checkpoint=later, step=20)
    fresh = _model(seed=1)
    start_adapters(fresh, settings, resume)
    assert _equal(_tensors(fresh, "player_0"), _tensors(_model(seed=1), "player_0"))
    own = _settings().model_copy(update={"output_dir": tmp_path / "run"})
    assert recorded_start(own, resume) == recorded
    # A fork started from the checkpoint itself, whose record says where that started.
    fork = _settings().model_copy(update={"output_dir": tmp_path / "fork"})
    of_fork = recorded_start(fork, resume)
    assert set(of_fork) == {"player_0", "player_1"}
    for name, start in of_fork.items():
        weights = (later / name / "adapter_model.safetensors").read_bytes()
        assert start == {
            "folder": str(later),
            "adapter": name,
            "step": 20,
            "sha256": hashlib.sha256(weights).hexdigest(),
        }
    assert read_manifest(later).facts["started_from"] == recorded
    check_base(_settings("outputs/gone"), resume, FACTS)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"rank": 16}, "r is 16 there and 8 here; set LORA_RANK and LORA_ALPHA"),
        ({"alpha": 32}, "lora_alpha is 32 there and 16 here; set LORA_RANK"),
        ({"width": 32}, "tensors do not match those of adapter player_0 of this model"),
    ],
)
def test_adapters_of_another_rank_scale_or_model_are_refused_and_named(
    other: dict[str, int], message: str, tmp_path: Path
) -> None:
    fresh = _model(seed=2)
    folder = _checkpoint(tmp_path / "other", _model(**other))
    refusal = rf"HANABI_START_FROM={folder}: .*{message}"
    with pytest.raises((SettingsError, RunFolderError), match=refusal):
        start_adapters(fresh, _settings(str(folder)), None)
    assert _equal(_tensors(fresh, "player_0"), _tensors(_model(seed=2), "player_0"))


@pytest.mark.parametrize(
    ("key", "value"),
    [("alpha_pattern", {"q_proj": 64}), ("rank_pattern", {"q_proj": 4}), ("use_dora", True)],
)
def test_adapters_whose_configuration_means_more_are_refused_and_the_key_is_named(
    key: str, value: Any, tmp_path: Path
) -> None:
    folder = _checkpoint(tmp_path / "other", _model())
    (folder / MANIFEST).unlink()
    config_file = folder / "player_0" / "adapter_config.json"
    config = json.loads(config_file.read_text())
    config[key] = value
    config_file.write_text(json.dumps(config))
    with pytest.raises(SettingsError, match=rf"has {key}=.*which is not supported"):
        start_adapters(_model(seed=2), _settings(str(folder)), None)


@pytest.mark.parametrize("fact", FACTS)
def test_another_base_model_tokenizer_or_chat_format_is_refused(fact: str, tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path / "other", _model(), **{fact: "zz"})
    settings = _settings(str(folder))
    refusal = f"was trained with another .*: zz, the server has {FACTS[fact]}"
    with pytest.raises(SettingsError, match=refusal):
        check_base(settings, None, FACTS)
    check_base(settings, None, {**FACTS, fact: "zz"})


def test_damaged_missing_and_empty_folders_are_refused_with_the_entry(tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path / "a", _model())
    weights = folder / "player_1/adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    (tmp_path / "empty").mkdir()
    for entry, reason in (
        (str(folder), "sha256"),
        (str(tmp_path / "nowhere"), "no such folder"),
        (str(tmp_path / "empty"), "adapter_model.safetensors"),
        (str(tmp_path / "a"), "no valid checkpoint"),
        (f"player_0={folder}:player_4", "sha256"),
    ):
        with pytest.raises(SettingsError, match=rf"HANABI_START_FROM={entry}: (.|\n)*{reason}"):
            recorded_start(_settings(entry), None)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (("a/b", "c/d"), "'a/b' and 'c/d' are both for every player"),
        (
            ("player_0=a", "player_0=c"),
            "'player_0=a' and 'player_0=c' are both for player_0; name each player once",
        ),
        (("player_3=a/b",), "this run has no adapter player_3; allowed: player_0, player_1"),
        (("shared=a/b",), "this run has no adapter shared"),
    ],
)
def test_two_entries_of_a_kind_and_unknown_players_are_refused(
    entries: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_start(entries, NAMES)


def test_a_players_own_entry_wins_over_the_one_for_everybody() -> None:
    assert parse_start(("runs/a", "player_1=runs/b/checkpoint-9:player_0"), NAMES) == {
        "player_0": ("runs/a", CheckpointRef(place=Path("runs/a"))),
        "player_1": (
            "player_1=runs/b/checkpoint-9:player_0",
            CheckpointRef(place=Path("runs/b/checkpoint-9"), adapter="player_0"),
        ),
    }
