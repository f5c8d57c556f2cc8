"""What is played: by HANABI_PRESET and HANABI_PLAYERS, or by what `hanabi-grpo dataset` wrote; and
its tiny model.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from doctor_machines import NOWHERE, find, only
from hanabi_grpo.cli import app
from hanabi_grpo.commands.doctor.games import dataset_checks
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.dataset_rows import dataset_row
from hanabi_grpo.rollout.datasets import (
    load_rows,
    mix_line,
    num_steps,
    tasks,
    training_rows,
    write_dataset,
)
from hanabi_grpo.settings import Settings, load_settings
from hanabi_grpo.sft import tiny_model


def settings(**environ: object) -> Settings:
    return load_settings({name: str(value) for name, value in environ.items()}, NOWHERE).settings


def command(*words: object) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["dataset", *map(str, words)])
    return result.exit_code, result.output


def test_without_a_dataset_the_settings_are_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert tasks([row], 3, 1)[0]["seed"] == 7 * 2**32 + 3
    with pytest.raises(
        SettingsError, match="NUM_TRAIN_EPOCHS=2: without DATASET a run has a row without seeds"
    ):
        num_steps(settings(NUM_TRAIN_EPOCHS=2), training_rows(settings()))


def test_a_dataset_of_another_board_is_refused_with_remedies_that_work(tmp_path: Path) -> None:
    path = tmp_path / "laptop.jsonl"
    write_dataset(path, [dataset_row("laptop", players=None, suite="train", num_tasks=0)])
    given = {"DATASET": path, "HANABI_PRESET": "marshal-mini"}
    with pytest.raises(
        SettingsError, match=r"but HANABI_PRESET='marshal-mini' is set as well\. Unset DATASET,"
    ):
        training_rows(settings(**given))
    check = only(find(dataset_checks, **given))
    assert (check.status, check.remedy.split("   #")[0]) == ("fail", "unset DATASET")
    assert only(find(dataset_checks, HANABI_PRESET="marshal-mini")).status == "ok"
    # Rows that name no board need one that is set.
    bare = tmp_path / "bare.jsonl"
    bare.write_text(json.dumps({"messages": [{"role": "user", "content": ""}], "env_config": {}}))
    with pytest.raises(
        SettingsError, match="no board: put a preset into env_config, or set HANABI_PRESET"
    ):
        load_rows(bare, settings(DATASET=bare))


def test_the_tiny_model_is_that_of_the_board_that_is_set_and_a_missing_one_names_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where the one of the default board is not shipped, it is made like the others.
    monkeypatch.chdir(tmp_path)
    made: list[tuple[str, Any]] = []
    monkeypatch.setattr(
        tiny_model, "build_tiny_model", lambda out, recipe, force: made.append((str(out), recipe))
    )
    for environ, words, folder, boards in (
        ({}, [], "data/tiny-model", ("laptop",)),
        ({"HANABI_PRESET": "marshal-mini"}, [], "outputs/tiny-marshal-mini", ("marshal-mini",)),
        ({"HANABI_PLAYERS": "3"}, [], "outputs/tiny-mini-3-players", ("mini",)),
        ({}, ["--preset", "mini", "--players", "3"], "outputs/tiny-mini-3-players", ("mini",)),
        (
            {},
            ["--preset", "laptop", "--preset", "mini"],
            "outputs/tiny-laptop-mini",
            ("laptop", "mini"),
        ),
    ):
        given = {"HANABI_PRESET": "", "HANABI_PLAYERS": "", "MODEL": "", **environ}
        result = CliRunner().invoke(app, ["tiny-model", *words], env=given)
        assert result.exit_code == 0, result.output
        assert (made[-1][0], made[-1][1].presets) == (folder, boards)
        if not words:
            # What the script of terminal 1 makes is what both terminals take.
            assert settings(**environ).model == folder
    assert (made[2][1].players, made[3][1].players) == (3, 3)
    result = CliRunner().invoke(
        app, ["train"], env={**given, "HANABI_PRESET": "mini", "HANABI_PLAYERS": "3"}
    )
    assert result.exit_code == 2
    assert (
        "hanabi-grpo tiny-model --preset mini --players 3 --out outputs/tiny-mini-3-players"
        in result.stderr
    )


def test_a_dataset_is_made_of_boards_with_shares_and_by_adding_rows(tmp_path: Path) -> None:
    out = tmp_path / "mix.jsonl"
    said = f"wrote {out} (laptop); train on it with DATASET={out}\n"
    assert command("--preset", "laptop", "--out", out) == (0, said)
    # A last line without an end is ended first.
    out.write_bytes(out.read_bytes().rstrip(b"\n"))
    options = ("--preset", "marshal-mini=2", "--preset", "laptop", "--observation", "full")
    code, output = command(*options, "--out", out)
    assert (
        code == 2
        and "exists already; choose another name, remove it, or put the rows behind its own"
        in output
    )
    assert command(*options, "--out", out, "--add")[0] == 0
    rows = load_rows(out, Settings())
    assert [row["share"] for row in rows] == [1, 2, 1]
    assert [row["env_config"]["observation"] for row in rows] == ["compact", "full", "full"]
    assert mix_line(rows) == "laptop (compact) 25 %, marshal-mini (full) 50 %, laptop (full) 25 %"


def test_what_could_not_be_trained_on_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    out = tmp_path / "new" / "mix.jsonl"
    for words, problem in (
        (("--preset", "laptop=0"), "share=0: Expected"),
        (("--preset", "laptop=much"), "--preset 'laptop=much': a share is"),
        (("--preset", "labtop=3"), "did you mean 'laptop'"),
        (("--preset", "laptop", "--observation", "long"), "observation='long'"),
        (
            ("--preset", "mini", "--players", 3, "--preset", "laptop"),
            "preset 'laptop' is for 2 players",
        ),
    ):
        code, output = command(*words, "--out", out)
        assert code == 2 and problem in output and not out.exists(), output
