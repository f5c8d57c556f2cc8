"""What is played, by the settings or by what `hanabi-grpo dataset` wrote, and its tiny model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from doctor_machines import NOWHERE, find, only
from hanabi_grpo.cli import app
from hanabi_grpo.commands.doctor.games import dataset_checks
from hanabi_grpo.commands.training_plan import plan_training
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


MY_HANABI = {"HANABI_COLORS": "4", "HANABI_RANKS": "3", "HANABI_HAND_SIZE": "4"}
"""A board that is no preset."""


def make_dataset(*arguments: object) -> tuple[int, str]:
    """Run `hanabi-grpo dataset`; returns its exit code and output."""
    words = [str(argument) for argument in arguments]
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["dataset", *words])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("given", "preset", "players"),
    [
        ({}, "laptop", 2),
        ({"HANABI_PRESET": "marshal-mini"}, "marshal-mini", 2),
        ({"HANABI_PLAYERS": 3}, "mini", 3),
        ({"HANABI_PRESET": "full", "HANABI_PLAYERS": 5}, "full", 5),
    ],
)
def test_without_a_dataset_the_settings_are_the_row(
    given: dict[str, object],
    preset: str,
    players: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    now = settings(SEED=7, **given)
    [row] = training_rows(now)
    assert row.env_config["preset"] == preset
    assert row.env_config["players"] == players
    assert row.suite == "train"
    assert row.seeds is None
    assert num_steps(now, [row]) == 500
    assert tasks([row], 3, 1)[0].seed == 7 * 2**32 + 3


@pytest.mark.parametrize(
    ("given", "steps", "reason"),
    [
        (
            {"NUM_TRAIN_EPOCHS": 20, "HANABI_TASKS_PER_STEP": 6},
            20,
            "NUM_TRAIN_EPOCHS=20, an epoch is 6 tasks; a row without seeds counts as one step",
        ),
        (
            {"NUM_TRAIN_EPOCHS": 1.5, "HANABI_TASKS_PER_STEP": 6},
            2,
            "NUM_TRAIN_EPOCHS=1.5, an epoch is 6 tasks; a row without seeds counts as one step",
        ),
        (
            {"NUM_TRAIN_EPOCHS": 20, "MAX_STEPS": 7},
            7,
            "MAX_STEPS=7 takes precedence over NUM_TRAIN_EPOCHS=20",
        ),
        ({"MAX_STEPS": 7}, 7, ""),
    ],
)
def test_without_a_dataset_an_epoch_is_one_step_and_max_steps_wins(
    given: dict[str, object], steps: int, reason: str
) -> None:
    now = settings(**given)
    plan = plan_training(now, training_rows(now), {})
    assert plan.num_steps == steps
    assert plan.steps_reason == reason
    because = f" ({reason})" if reason else ""
    assert plan.line(now).startswith(f"{steps} steps{because} of ")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"HANABI_OVERLAP": 1, "HANABI_TASKS_PER_STEP": 4096},
            "HANABI_TASKS_PER_STEP=4096 with NUM_GENERATIONS=16 and HANABI_OVERLAP=1: .*65536",
        ),
        (
            {"NUM_GENERATIONS": 40_000, "HANABI_TASKS_PER_STEP": 1},
            "NUM_GENERATIONS=40000: .*at most 32768 games",
        ),
    ],
)
def test_a_step_whose_games_cannot_be_requested_is_refused_before_it_begins(
    given: dict[str, object], message: str
) -> None:
    now = settings(**given)
    with pytest.raises(SettingsError, match=message):
        plan_training(now, training_rows(now), {})


def test_more_games_than_a_server_checks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    boards = []
    for number in range(65):
        row = dataset_row("laptop", players=None, suite="train", num_tasks=0)
        row["env_config"] = {**row["env_config"], "max_turns": 10 + number}
        boards.append(row)
    write_dataset(path, boards)
    now = settings(DATASET=path, HANABI_PRESET="laptop")
    rows = training_rows(now)
    with pytest.raises(SettingsError, match=r"65 different games .*: a run may have at most 64"):
        plan_training(now, rows, {})
    plan_training(now, rows[1:], {})


def test_with_overlap_only_a_steps_games_are_one_request() -> None:
    now = settings(HANABI_OVERLAP=1, HANABI_TASKS_PER_STEP=4096, NUM_GENERATIONS=8)
    assert plan_training(now, training_rows(now), {}).num_steps


def test_a_dataset_of_another_board_is_refused_with_remedies_that_work(tmp_path: Path) -> None:
    path = tmp_path / "laptop.jsonl"
    write_dataset(path, [dataset_row("laptop", players=None, suite="train", num_tasks=0)])
    given = {"DATASET": path, "HANABI_PRESET": "marshal-mini"}
    refusal = r"but HANABI_PRESET='marshal-mini' is set as well\. Unset DATASET to use"
    with pytest.raises(SettingsError, match=refusal):
        training_rows(settings(**given))
    check = only(find(dataset_checks, **given))
    assert (check.status, check.remedy.split("   #")[0]) == ("fail", "unset DATASET")
    assert only(find(dataset_checks, HANABI_PRESET="marshal-mini")).status == "ok"


def test_rows_that_name_no_board_need_one_that_is_set(tmp_path: Path) -> None:
    bare = tmp_path / "bare.jsonl"
    bare.write_text(json.dumps({"messages": [{"role": "user", "content": ""}], "env_config": {}}))
    refusal = "no board: add a preset to env_config, or set HANABI_PRESET"
    with pytest.raises(SettingsError, match=refusal):
        load_rows(bare, settings(DATASET=bare))


UNSET = {"HANABI_PRESET": "", "HANABI_PLAYERS": "", "MODEL": ""}
"""What the environment of a test must not decide."""


@pytest.mark.parametrize(
    ("environ", "options", "folder", "presets", "players"),
    [
        # Where the one of the default board is not shipped, it is made like the others.
        ({}, [], "data/tiny-model", ("laptop",), 2),
        (
            {"HANABI_PRESET": "marshal-mini"},
            [],
            "outputs/tiny-marshal-mini",
            ("marshal-mini",),
            2,
        ),
        ({"HANABI_PLAYERS": "3"}, [], "outputs/tiny-mini-3-players", ("mini",), 3),
        (
            {"HANABI_PRESET": "full", "HANABI_PLAYERS": "3", **MY_HANABI},
            [],
            "outputs/tiny-4x3-hand4-info8-life3-3-players",
            ("4x3-hand4-info8-life3",),
            3,
        ),
        (
            {},
            ["--preset", "mini", "--players", "3"],
            "outputs/tiny-mini-3-players",
            ("mini",),
            3,
        ),
        (
            {},
            ["--preset", "laptop", "--preset", "mini"],
            "outputs/tiny-laptop-mini",
            ("laptop", "mini"),
            2,
        ),
    ],
)
def test_the_tiny_model_is_that_of_the_board_that_is_set(
    environ: dict[str, str],
    options: list[str],
    folder: str,
    presets: tuple[str, ...],
    players: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[tuple[str, Any]] = []

    def record(out: Path, recipe: Any, force: bool) -> None:
        made.append((str(out), recipe))

    monkeypatch.setattr(tiny_model, "build_tiny_model", record)
    result = CliRunner().invoke(app, ["tiny-model", *options], env={**UNSET, **environ})
    assert result.exit_code == 0, result.output
    [(out, recipe)] = made
    assert out == folder
    assert recipe.presets == presets
    assert recipe.players == players
    if not options:
        # What the script of terminal 1 makes is what both terminals take.
        assert settings(**environ).model == folder


def test_training_names_the_command_of_a_missing_tiny_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {
        **UNSET,
        "HANABI_PRESET": "mini",
        "HANABI_PLAYERS": "3",
        # Named, so that nobody waits for terminal 1 to make it.
        "MODEL": "outputs/tiny-mini-3-players",
    }
    result = CliRunner().invoke(app, ["train"], env=environ)
    assert result.exit_code == 2
    command = "hanabi-grpo tiny-model --preset mini --players 3 --out outputs/tiny-mini-3-players"
    assert command in result.stderr


def test_a_dataset_is_made_of_boards_with_shares_and_by_adding_rows(tmp_path: Path) -> None:
    out = tmp_path / "mix.jsonl"
    printed = f"wrote {out} (laptop); train on it with DATASET={out}\n"
    assert make_dataset("--preset", "laptop", "--out", out) == (0, printed)
    # A last line without an end is ended first.
    out.write_bytes(out.read_bytes().rstrip(b"\n"))
    options = ("--preset", "marshal-mini=2", "--preset", "laptop", "--observation", "full")
    code, output = make_dataset(*options, "--out", out)
    assert code == 2
    refusal = "already exists; choose another name, remove it, or append the rows with --add"
    assert refusal in output
    code, _ = make_dataset(*options, "--out", out, "--add")
    assert code == 0
    rows = load_rows(out, Settings())
    assert [row.share for row in rows] == [1, 2, 1]
    assert [row.env_config["observation"] for row in rows] == ["compact", "full", "full"]
    assert mix_line(rows) == "laptop (compact) 25 %, marshal-mini (full) 50 %, laptop (full) 25 %"
    own = replace(rows[0], env_config={"preset": "mini", "colors": 4, "ranks": 3, "hand_size": 4})
    assert mix_line([own]).startswith("4x3-hand4-")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--preset", "laptop=0"), "share=0: Expected"),
        (("--preset", "laptop=much"), "--preset 'laptop=much': a share is"),
        (("--preset", "laptop=nan"), "--preset 'laptop=nan': a share is"),
        (("--preset", "labtop=3"), "did you mean 'laptop'"),
        (("--preset", "laptop", "--observation", "long"), "observation='long'"),
        (
            ("--preset", "mini", "--players", 3, "--preset", "laptop"),
            "preset 'laptop' is for 2 players",
        ),
    ],
)
def test_what_could_not_be_trained_on_is_refused_and_nothing_is_written(
    options: tuple[object, ...], problem: str, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "mix.jsonl"
    code, output = make_dataset(*options, "--out", out)
    assert code == 2
    assert problem in output
    assert not out.exists()


def test_a_free_board_is_played_by_settings_and_by_a_row_of_a_dataset(tmp_path: Path) -> None:
    chosen = settings(HANABI_PRESET="full", HANABI_PLAYERS=3, **MY_HANABI)
    assert chosen.board == "4x3-hand4-info8-life3"
    assert chosen.setup().spec.max_score == 12
    board = {"preset": "full", "colors": 4, "ranks": 3, "hand_size": 4}
    other = {"preset": "mini", "life_tokens": 1}
    path = tmp_path / "boards.jsonl"
    messages = [{"role": "user", "content": "Play."}]
    rows_as_text = [json.dumps({"messages": messages, "env_config": row}) for row in (board, other)]
    path.write_text("\n".join(rows_as_text))
    rows = training_rows(settings(DATASET=path, HANABI_PLAYERS=3))
    assert [row.setup.spec.preset for row in rows] == [
        "4x3-hand4-info8-life3",
        "2x2-hand2-info3-life1",
    ]
    assert rows[0].setup.spec.hash == chosen.setup().spec.hash


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("HANABI_COLORS", 7, "HANABI_COLORS=7: a board has 1 to 5 colours."),
        ("HANABI_RANKS", 0, "HANABI_RANKS=0: a board has 1 to 5 ranks."),
        ("HANABI_HAND_SIZE", 8, "2 players need 16 cards, but the 2x2 deck has 8"),
        ("HANABI_LIFE_TOKENS", 0, "HANABI_LIFE_TOKENS=0: a board has 1 to 100 lives."),
        ("HANABI_INFORMATION_TOKENS", "many", "HANABI_INFORMATION_TOKENS"),
    ],
)
def test_an_impossible_board_is_refused_before_openspiel_sees_it(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(**{name: value})
