import json
from datetime import datetime
from pathlib import Path

import pytest

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.runs import append_jsonl, prepare_run_folder, run_folder_name, write_json_atomic
from hanabi_grpo.settings import Settings

NOW = datetime(2026, 1, 31, 9, 5, 7)


def test_a_run_is_named_after_the_preset_or_else_the_dataset_and_the_time() -> None:
    assert run_folder_name(Settings(preset="laptop"), NOW) == "laptop-20260131-090507"
    assert run_folder_name(Settings(dataset="data/hanabi.grpo.jsonl"), NOW) == "hanabi.grpo-20260131-090507"


def test_a_new_run_gets_a_folder_in_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = prepare_run_folder(Settings(preset="laptop"), NOW)
    assert folder == Path("outputs/laptop-20260131-090507") and folder.is_dir()


def test_a_used_folder_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = Settings(output_dir=folder)
    assert prepare_run_folder(settings) == folder
    (folder / "server.log").touch()
    assert prepare_run_folder(settings) == folder
    (folder / "settings.json").touch()
    with pytest.raises(RunFolderError) as caught:
        prepare_run_folder(settings)
    assert str(caught.value) == (
        f"OUTPUT_DIR={str(folder)!r}: holds another run already (settings.json). Choose another OUTPUT_DIR, unset it "
        f"for a new folder in outputs/, or remove this one: rm -r {folder}"
    )


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(RunFolderError, match="is a file"):
        prepare_run_folder(Settings(output_dir=tmp_path / "run"))
    with pytest.raises(RunFolderError, match="cannot be used"):
        prepare_run_folder(Settings(output_dir=tmp_path / "run" / "below"))


def test_a_json_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_json_atomic(path, {"step": 1, "loss": float("nan")})
    assert json.loads(path.read_text()) == {"step": 1, "loss": None}
    with pytest.raises(TypeError):
        write_json_atomic(path, {"step": object()})
    assert json.loads(path.read_text()) == {"step": 1, "loss": None}
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_rows_are_appended_one_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_jsonl(path, {"step": 1})
    append_jsonl(path, {"step": 2, "kl": float("inf")}, {"name": "é"})
    assert path.read_text(encoding="utf-8") == '{"step": 1}\n{"step": 2, "kl": null}\n{"name": "é"}\n'
