"""Which weights a folder holds, and which folders are refused."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.fingerprint import model_fingerprint, resolve_model
from hanabi_grpo.server.assembly import read_bases
from hanabi_grpo.settings import load_settings


def _model(folder: Path, **config: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"hidden_size": 4, **config}))
    save_file({"weight": torch.arange(8.0)}, folder / "model.safetensors")
    return folder


def test_one_changed_weight_or_setting_changes_the_fingerprint_and_no_place_does(
    tmp_path: Path,
) -> None:
    plain = _model(tmp_path / "a")
    other_weight = _model(tmp_path / "b")
    changed = torch.arange(8.0)
    changed[5] += 1e-3
    save_file({"weight": changed}, other_weight / "model.safetensors")
    other_setting = _model(tmp_path / "c", rope_theta=1.0)
    other_place = _model(tmp_path / "d", _name_or_path="d")
    # Checkpoints of earlier versions name it.
    expected = "4be26f26a13a24b6"
    assert model_fingerprint(plain) == expected
    assert model_fingerprint(other_place) == expected
    others = {model_fingerprint(other_weight), model_fingerprint(other_setting)}
    assert len(others) == 2
    assert expected not in others


def test_every_weight_of_a_large_file_counts_and_it_is_read_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = _model(tmp_path / "a")
    weights = folder / "model.safetensors"
    save_file({"weight": torch.zeros(18 << 20)}, weights)
    first = model_fingerprint(folder)
    assert [message.split()[0] for message in caplog.messages] == ["fingerprint:"]
    assert model_fingerprint(folder) == first
    assert len(caplog.messages) == 1, "the second time nothing is read"
    before = weights.stat()
    with weights.open("r+b") as file:
        file.seek(-20 << 20, os.SEEK_END)
        file.write(b"\x01")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.stat().st_mtime_ns == before.st_mtime_ns
    assert weights.stat().st_size == before.st_size
    assert model_fingerprint(folder) != first
    # A cache that cannot be read or written does no harm.
    (tmp_path / "cache" / "hanabi-grpo" / "fingerprints.json").write_text("[")
    assert model_fingerprint(folder) != first
    monkeypatch.setenv("XDG_CACHE_HOME", str(weights))
    assert model_fingerprint(folder) != first
    assert "not cached" in caplog.messages[-1]


def test_a_folder_that_lacks_a_part_of_a_model_is_refused(tmp_path: Path) -> None:
    folder = _model(tmp_path / "a")
    no_tokenizer = f"MODEL={folder}: no tokenizer there (no tokenizer.json or other file with its"
    with pytest.raises(SettingsError, match=re.escape(no_tokenizer)):
        resolve_model(str(folder))
    # Settings of a tokenizer are none.
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(SettingsError, match=re.escape(no_tokenizer)):
        resolve_model(str(folder))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text('{"cut off')
        damaged = f"MODEL={folder}: its {name} cannot be read (Unterminated string"
        with pytest.raises(SettingsError, match=re.escape(damaged)):
            resolve_model(str(folder))
        (folder / name).write_text("{}")
    assert resolve_model(str(folder)) == folder
    config = folder / "config.json"
    for text, problem in (
        ("{", "its config.json cannot be read (Expecting property name"),
        ("[]", "its config.json does not hold an object."),
    ):
        config.write_text(text)
        with pytest.raises(SettingsError, match=re.escape(f"MODEL={folder}: {problem}")):
            resolve_model(str(folder))
    for part in (config, folder / "model.safetensors"):
        config.write_text("{}")
        part.unlink()
        no_model = f"MODEL={folder}: no config.json with *.safetensors weights there."
        with pytest.raises(SettingsError, match=re.escape(no_model)):
            resolve_model(str(folder))


def test_a_folder_that_is_missing_empty_or_brings_code_is_refused_and_not_looked_up_on_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    empty = r"no config.json with \*.safetensors weights there.*tiny-model"
    with pytest.raises(SettingsError, match=empty):
        model_fingerprint(tmp_path)
    with_code = _model(tmp_path / "a", auto_map={"AutoConfig": "evil.Config"})
    with pytest.raises(SettingsError, match="names its own Python code"):
        resolve_model(str(with_code))
    shipped = r"no such folder in /.*is shipped with the repository; run commands in its root"
    with pytest.raises(SettingsError, match=shipped):
        resolve_model("data/tiny-model")
    missing = r"MODEL=outputs/nothing: no such folder in /.*tiny-model --out outputs/nothing"
    with pytest.raises(SettingsError, match=missing):
        resolve_model("outputs/nothing")


def test_a_server_without_its_model_names_the_command_that_makes_that_of_its_game(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_settings({"HANABI_ENV": "kuhn_poker", "MODEL": "outputs/none"}, Path("no"))
    command = r"tiny-model --env kuhn_poker --preset kuhn_poker --out outputs/none"
    with pytest.raises(SettingsError, match=command):
        read_bases(loaded.settings)
