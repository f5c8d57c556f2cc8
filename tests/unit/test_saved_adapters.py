import json
from pathlib import Path

import pytest

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.saved_adapters import read_adapters


def save(folder: Path, name: str, rank: int = 8) -> None:
    (folder / name).mkdir(parents=True)
    config = {"peft_type": "LORA", "r": rank, "base_model_name_or_path": "/models/tiny"}
    (folder / name / "adapter_config.json").write_text(json.dumps(config))
    (folder / name / "adapter_model.safetensors").write_bytes(name.encode())


def test_every_players_adapter_is_read_with_rank_and_step(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-60"
    save(folder, "player_1")
    save(folder, "player_0")
    saved = read_adapters(folder)
    assert (saved.step, saved.lora_rank) == (60, 8)
    assert dict(saved.adapters) == {
        "player_0": (b"player_0", {"peft_type": "LORA", "r": 8}),
        "player_1": (b"player_1", {"peft_type": "LORA", "r": 8}),
    }
    assert list(saved.adapters) == ["player_0", "player_1"]


def test_a_checkpoint_that_cannot_be_served_is_refused(tmp_path: Path) -> None:
    cases: tuple[tuple[dict[str, int], str, str], ...] = (
        ({}, "checkpoint-1", "no such folder"),
        ({"player_0": 8, "player_1": 16}, "checkpoint-1", "need one LoRA rank"),
        ({"player_0": 8}, "best", "how many steps"),
    )
    for ranks, folder, message in cases:
        for name, rank in ranks.items():
            save(tmp_path / folder, name, rank)
        with pytest.raises(SettingsError, match=message):
            read_adapters(tmp_path / folder)


def saved_checkpoint(run_folder: Path) -> Path:
    def fill(partial: Path) -> None:
        save(partial, "player_0")
        save(partial, "player_1")
        (partial / "trainer").mkdir()
        (partial / "trainer" / "moments.safetensors").write_bytes(b"moments")

    return write_checkpoint(run_folder, 60, fill, {}, needed_bytes=0)


def test_what_training_needs_may_be_missing_from_a_checkpoint_that_is_only_played(tmp_path: Path) -> None:
    folder = saved_checkpoint(tmp_path)
    (folder / "trainer" / "moments.safetensors").unlink()
    assert list(read_adapters(folder).adapters) == ["player_0", "player_1"]
    assert read_adapters(folder.rename(tmp_path / "best")).step == 60


def test_adapters_that_are_not_those_of_the_manifest_are_refused(tmp_path: Path) -> None:
    folder = saved_checkpoint(tmp_path)
    weights = folder / "player_0" / "adapter_model.safetensors"
    weights.write_bytes(b"player_1")
    with pytest.raises(SettingsError, match=r"player_0/adapter_model\.safetensors has sha256 .* Take another"):
        read_adapters(folder)
    weights.write_bytes(b"player_0")
    assert read_adapters(folder).step == 60
    config = folder / "player_0" / "adapter_config.json"
    text = config.read_text()
    config.write_text(text.replace("8", "16"))
    with pytest.raises(SettingsError, match=r"player_0/adapter_config\.json has sha256"):
        read_adapters(folder)
    config.write_text(text)
    save(folder, "player_2")
    with pytest.raises(SettingsError, match=r"player_2/adapter_config\.json is not listed"):
        read_adapters(folder)


def test_a_manifest_that_cannot_be_read_or_is_of_another_step_is_refused(tmp_path: Path) -> None:
    folder = saved_checkpoint(tmp_path)
    moved = folder.rename(tmp_path / "checkpoint-50")
    with pytest.raises(SettingsError, match=r"manifest\.json is that of step 60"):
        read_adapters(moved)
    for text in ("{", "[]", "7", '{"format": 1, "files": {}}'):
        (moved / "manifest.json").write_text(text)
        with pytest.raises(SettingsError, match=r"manifest\.json"):
            read_adapters(moved)
