"""HANABI_PRESET and HANABI_PLAYERS choose the board without a dataset, and the tiny model follows."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from doctor_machines import NOWHERE, find, free_port, make_model, only
from hanabi_grpo.cli import app
from hanabi_grpo.commands.doctor import games
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.dataset_rows import dataset_row
from hanabi_grpo.rollout.datasets import deals, load_rows, num_steps, training_rows, write_dataset
from hanabi_grpo.settings import Settings, load_settings
from hanabi_grpo.sft import tiny_model


def settings(**environ: object) -> Settings:
    return load_settings({name: str(value) for name, value in environ.items()}, NOWHERE).settings


def test_without_a_dataset_the_settings_are_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given, board in (
        ({}, ("laptop", 2)),
        ({"HANABI_PRESET": "marshal-mini"}, ("marshal-mini", 2)),
        ({"HANABI_PLAYERS": 3}, ("mini", 3)),
        ({"HANABI_PRESET": "full", "HANABI_PLAYERS": 5}, ("full", 5)),
    ):
        now = settings(SEED=7, **given)
        [row] = training_rows(now)
        assert (row["env_config"]["preset"], row["env_config"]["players"]) == board
        assert (row["suite"], row["seeds"], num_steps(now, [row])) == ("train", None, 500)
        assert deals([row], 3, 1)[0]["seed"] == 7 * 2**32 + 3
    with pytest.raises(SettingsError, match="NUM_TRAIN_EPOCHS=2: without DATASET a run has a row without seeds"):
        num_steps(settings(NUM_TRAIN_EPOCHS=2), training_rows(settings()))


def test_a_dataset_of_another_board_is_refused_with_remedies_that_work(tmp_path: Path) -> None:
    path = tmp_path / "laptop.jsonl"
    write_dataset(path, [dataset_row("laptop", players=None, suite="train", num_deals=0)])
    given = {"DATASET": path, "HANABI_PRESET": "marshal-mini"}
    with pytest.raises(SettingsError, match=r"but HANABI_PRESET='marshal-mini' is set as well\. Unset DATASET,"):
        training_rows(settings(**given))
    check = only(find(games.dataset_checks, **given))
    assert (check.status, check.remedy.split("   #")[0]) == ("fail", "unset DATASET")
    assert only(find(games.dataset_checks, HANABI_PRESET="marshal-mini")).status == "ok"
    # Rows that name no board need one that is set.
    bare = tmp_path / "bare.jsonl"
    bare.write_text(json.dumps({"messages": [{"role": "user", "content": ""}], "env_config": {}}))
    with pytest.raises(SettingsError, match="no board: put a preset into env_config, or set HANABI_PRESET"):
        load_rows(bare, settings(DATASET=bare))


def test_training_starts_in_any_folder(tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    port = str(free_port())
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HANABI_")}
    environ |= {"MODEL": str(make_model(tmp_path / "model")), "VLLM_SERVER_PORT": port, "HANABI_SERVER_TIMEOUT": "0.1"}
    done = subprocess.run(
        [sys.executable, "-m", "hanabi_grpo.cli", "train"],
        env=environ | {"HANABI_PRESET": "marshal-mini"},
        cwd=away,
        capture_output=True,
        text=True,
    )
    assert "boards: marshal-mini\n" in done.stdout
    assert done.returncode == 2 and "127.0.0.1" in done.stderr and "DATASET" not in done.stderr


def test_the_tiny_model_is_that_of_the_board_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the one of the default board is not shipped, it is made like the others.
    monkeypatch.chdir(tmp_path)
    made: list[tuple[str, Any]] = []
    monkeypatch.setattr(tiny_model, "build_tiny_model", lambda out, recipe, force: made.append((str(out), recipe)))
    for environ, words, folder, boards in (
        ({}, [], "data/tiny-model", ("laptop",)),
        ({"HANABI_PRESET": "marshal-mini"}, [], "outputs/tiny-marshal-mini", ("marshal-mini",)),
        ({"HANABI_PLAYERS": "3"}, [], "outputs/tiny-mini-3-players", ("mini",)),
        ({}, ["--preset", "mini", "--players", "3"], "outputs/tiny-mini-3-players", ("mini",)),
        ({}, ["--preset", "laptop", "--preset", "mini"], "outputs/tiny-laptop-mini", ("laptop", "mini")),
    ):
        result = CliRunner().invoke(
            app, ["tiny-model", *words], env={"HANABI_PRESET": "", "HANABI_PLAYERS": "", **environ}
        )
        assert result.exit_code == 0, result.output
        assert (made[-1][0], made[-1][1].presets) == (folder, boards)
        if not words:
            # What the script of terminal 1 makes is what both terminals take.
            assert settings(**environ).model == folder
    assert (made[2][1].players, made[3][1].players) == (3, 3)


def test_a_missing_model_names_the_command_for_its_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("HANABI_PRESET", "mini"), ("HANABI_PLAYERS", "3")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MODEL", raising=False)
    result = CliRunner().invoke(app, ["train"])
    assert result.exit_code == 2
    assert "hanabi-grpo tiny-model --preset mini --players 3 --out outputs/tiny-mini-3-players" in result.stderr
