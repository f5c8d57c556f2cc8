import json
from pathlib import Path

import pytest

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.saved_adapters import read_adapters


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


def test_the_step_of_a_renamed_folder_comes_from_its_manifest(tmp_path: Path) -> None:
    save(tmp_path / "best", "shared")
    (tmp_path / "best" / "manifest.json").write_text('{"step": 7}')
    assert read_adapters(tmp_path / "best").step == 7


@pytest.mark.parametrize(
    ("ranks", "folder", "message"),
    [
        ({}, "checkpoint-1", "no such folder"),
        ({"player_0": 8, "player_1": 16}, "checkpoint-1", "need one LoRA rank"),
        ({"player_0": 8}, "best", "how many steps"),
    ],
)
def test_a_checkpoint_that_cannot_be_served_is_refused(
    tmp_path: Path, ranks: dict[str, int], folder: str, message: str
) -> None:
    for name, rank in ranks.items():
        save(tmp_path / folder, name, rank)
    with pytest.raises(SettingsError, match=message):
        read_adapters(tmp_path / folder)


def test_a_folder_without_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no \*/adapter_model\.safetensors"):
        read_adapters(tmp_path)


def test_a_torn_configuration_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "checkpoint-1", "player_0")
    (tmp_path / "checkpoint-1" / "player_0" / "adapter_config.json").write_text('{"r": ')
    with pytest.raises(SettingsError, match="cannot be read as a PEFT adapter"):
        read_adapters(tmp_path / "checkpoint-1")
