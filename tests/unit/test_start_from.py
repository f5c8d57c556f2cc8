"""A run that starts from adapters of earlier runs has their tensors, bit by bit, or does not
start.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs.manifest import read_manifest
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
    given = {**FACTS, **facts}
    return save_checkpoint(model, names, run, step, given)


def _tensors(model: PeftModel, name: str) -> dict[str, torch.Tensor]:
    return adapters.adapter_tensors(model, name, torch.float32)


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def _settings(*entries: str, **values: Any) -> Settings:
    return Settings(**{"lora_rank": 8, "lora_alpha": 16, "start_from": entries, **values})


def test_one_folder_gives_each_player_the_adapter_of_its_name_or_the_shared_one(
    tmp_path: Path,
) -> None:
    source, fresh = _model(seed=5), _model(seed=1)
    start_adapters(fresh, _settings(str(_checkpoint(tmp_path / "a", source))), None)
    for name in NAMES:
        assert _equal(_tensors(fresh, name), _tensors(source, name))
    assert not _equal(_tensors(fresh, "player_0"), _tensors(fresh, "player_1"))
    assert all(value.requires_grad for key, value in fresh.named_parameters() if "lora_" in key)
    shared = _model(seed=6, names=("shared",))
    start_adapters(
        fresh, _settings(str(_checkpoint(tmp_path / "b", shared, names=("shared",)))), None
    )
    for name in NAMES:
        assert _equal(_tensors(fresh, name), _tensors(shared, "shared"))


def test_players_may_start_from_different_runs_and_from_each_others_adapters(
    tmp_path: Path,
) -> None:
    one, two, fresh = _model(seed=5), _model(seed=6), _model(seed=1)
    first = _checkpoint(tmp_path / "a", one)
    _checkpoint(tmp_path / "b", two, step=3)
    _checkpoint(tmp_path / "b", two, step=9)
    settings = _settings(f"player_0={first}", f"player_1={tmp_path / 'b'}:player_0")
    start_adapters(fresh, settings, None)
    assert _equal(_tensors(fresh, "player_0"), _tensors(one, "player_0"))
    assert _equal(_tensors(fresh, "player_1"), _tensors(two, "player_0"))
    alone = _model(seed=1)
    start_adapters(alone, _settings(f"player_0={first}"), None)
    assert _equal(_tensors(alone, "player_1"), _tensors(_model(seed=1), "player_1")), (
        "no entry: a new adapter"
    )
    recorded = recorded_start(settings, None)
    assert json.loads(json.dumps(recorded)) == recorded
    assert recorded_start(_settings(), None) == {}
    assert recorded["player_0"]["folder"] == str(first)
    assert (recorded["player_1"]["step"], recorded["player_1"]["adapter"]) == (9, "player_0")
    weights = (tmp_path / "b/checkpoint-9/player_0/adapter_model.safetensors").read_bytes()
    assert recorded["player_1"]["sha256"] == hashlib.sha256(weights).hexdigest()


def test_a_resumed_run_keeps_its_weights_and_hands_on_what_it_started_from(tmp_path: Path) -> None:
    settings = _settings(str(_checkpoint(tmp_path / "a", _model(seed=5))))
    recorded = recorded_start(settings, None)
    later = _checkpoint(tmp_path / "run", _model(seed=8), step=20, started_from=recorded)
    resume = ResumePoint(checkpoint=later, step=20)
    fresh = _model(seed=1)
    start_adapters(fresh, settings, resume)
    assert _equal(_tensors(fresh, "player_0"), _tensors(_model(seed=1), "player_0"))
    assert (
        recorded_start(_settings(), resume)
        == recorded
        == read_manifest(later).facts["started_from"]
    )
    check_base(_settings("outputs/gone"), resume, FACTS)


def test_adapters_of_another_rank_scale_or_model_are_refused_and_named(tmp_path: Path) -> None:
    fresh = _model(seed=2)
    for number, (other, message) in enumerate(
        (
            ({"rank": 16}, "r is 16 there and 8 here; set LORA_RANK and LORA_ALPHA"),
            ({"alpha": 32}, "lora_alpha is 32 there and 16 here; set LORA_RANK"),
            ({"width": 32}, "tensors that are not those of adapter player_0 of this model"),
        )
    ):
        folder = _checkpoint(tmp_path / str(number), _model(**other))
        with pytest.raises(
            (SettingsError, RunFolderError), match=rf"HANABI_START_FROM={folder}: .*{message}"
        ):
            start_adapters(fresh, _settings(str(folder)), None)
    assert _equal(_tensors(fresh, "player_0"), _tensors(_model(seed=2), "player_0"))


def test_another_base_model_tokenizer_or_chat_format_is_refused(tmp_path: Path) -> None:
    for number, fact in enumerate(FACTS):
        settings = _settings(str(_checkpoint(tmp_path / str(number), _model(), **{fact: "zz"})))
        with pytest.raises(
            SettingsError, match=f"was trained with another .*: zz, the server has {FACTS[fact]}"
        ):
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


def test_an_entry_of_its_own_wins_over_the_one_for_everybody_and_two_of_a_kind_are_refused() -> (
    None
):
    for entries, message in (
        (("a/b", "c/d"), "'a/b' and 'c/d' are both for every player"),
        (
            ("player_0=a", "player_0=c"),
            "'player_0=a' and 'player_0=c' are both for player_0; name each player once",
        ),
        (("player_3=a/b",), "this run has no adapter player_3; allowed: player_0, player_1"),
        (("shared=a/b",), "this run has no adapter shared"),
    ):
        with pytest.raises(SettingsError, match=message):
            parse_start(entries, NAMES)
    assert parse_start(("runs/a", "player_1=runs/b/checkpoint-9:player_0"), NAMES) == {
        "player_0": ("runs/a", CheckpointRef(place=Path("runs/a"))),
        "player_1": (
            "player_1=runs/b/checkpoint-9:player_0",
            CheckpointRef(place=Path("runs/b/checkpoint-9"), adapter="player_0"),
        ),
    }
