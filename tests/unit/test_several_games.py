"""`collect` and `evaluate` with a dataset of several games, and their figures by REPORT_TO."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.evaluation.chosen import choose_all
from hanabi_grpo.rollout.dataset_rows import dataset_row
from hanabi_grpo.rollout.datasets import write_dataset
from hanabi_grpo.rollout.recordings import read_recordings, recording_files
from hanabi_grpo.runs.evaluation_result import read_result
from hanabi_grpo.tracking.mirror import unsent_folders
from wandb_files import history, offline_records

GAMES = ["laptop", "kuhn_poker"]


@pytest.fixture(autouse=True)
def _dataset_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, whose dataset has two games; `random` plays both."""
    monkeypatch.chdir(tmp_path)
    rows = [
        dataset_row("laptop", suite="train", num_tasks=0),
        dataset_row("kuhn_poker", env="kuhn_poker", suite="train", num_tasks=0),
    ]
    write_dataset(tmp_path / "two.jsonl", rows)
    monkeypatch.setenv("DATASET", "two.jsonl")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def collect(*arguments: str) -> Result:
    return run("collect", "random", "--out", "games", *arguments)


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(name)]


def test_each_game_is_collected_into_its_folder_with_its_own_group_size() -> None:
    answer = collect("--tasks", "3,4", "--games", "2,5")
    assert answer.exit_code == 0, answer.output
    counts = {}
    for name in GAMES:
        recordings, notes = read_recordings(recording_files(Path("games") / name))
        assert notes == []
        episodes = [recording.episode for recording in recordings]
        assert {episode.preset for episode in episodes} == {name}
        counts[name] = (len({episode.seed for episode in episodes}), len(episodes))
    assert counts == {"laptop": (3, 6), "kuhn_poker": (4, 20)}
    assert "games/laptop: 6 games of 3 tasks" in answer.stdout
    assert "games/kuhn_poker: 20 games of 4 tasks" in answer.stdout
    assert not Path("games/figures").exists(), "REPORT_TO is none"
    # The same command goes on.
    assert collect("--tasks", "3,6", "--games", "2,5").exit_code == 0
    assert len(read_recordings(recording_files(Path("games/kuhn_poker")))[0]) == 30


def test_one_number_counts_for_every_game_and_preset_chooses_one() -> None:
    assert collect("--tasks", "2").exit_code == 0
    assert sorted(path.name for path in Path("games").iterdir()) == sorted(GAMES)
    alone = run("collect", "random", "--out", "alone", "--tasks", "2", "--preset", "laptop")
    assert alone.exit_code == 0
    assert len(read_recordings(recording_files(Path("alone")))[0]) == 2
    again = run("collect", "random", "--out", "alone", "--tasks", "2")
    assert again.exit_code == 2
    refusal = "already holds a collection of a single game, but this command collects 2"
    assert f"--out alone: {refusal}" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ("--games", "1,2,3"),
            "--games '1,2,3': give a whole number for all games, or 2 separated by commas for "
            "laptop, kuhn_poker, e.g. --games 16.",
        ),
        (("--games", "some"), "--games 'some': give a whole number"),
        (("--tasks", "0,4"), "--tasks '0,4': must be 1 or more."),
        (("--preset", "laptop", "--tasks", "3,4"), "--tasks '3,4': give a whole number, e.g."),
    ],
)
def test_numbers_that_fit_no_games_are_refused(arguments: tuple[str, ...], reason: str) -> None:
    answer = collect(*arguments)
    assert answer.exit_code == 2
    assert reason in " ".join(answer.stderr.split())
    assert not Path("games").exists()


def test_a_script_that_one_of_the_games_lacks_is_refused_before_anything_is_played() -> None:
    answer = run("collect", "iggi", "--out", "games", "--tasks", "2")
    assert answer.exit_code == 2
    assert "'iggi'" in answer.stderr
    assert not Path("games").exists()


def test_a_server_of_the_command_reads_the_dataset_itself() -> None:
    several = choose_all(None, None, None, None)
    assert [each._game_variables() for each in several] == [{}, {}]
    [one] = choose_all(None, "laptop", None, None)
    assert one._game_variables()["HANABI_PRESET"] == "laptop"


def test_collected_games_have_figures_by_game_in_tensorboard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPORT_TO", "tensorboard")
    answer = collect("--tasks", "3,4", "--games", "2,5")
    assert answer.exit_code == 0, answer.output
    assert "figures: games/figures" in answer.stdout
    folder = Path("games/figures")
    means = {}
    for name in GAMES:
        document = json.loads((Path("games") / name / "collection.json").read_text())
        means[name] = pytest.approx(document["mean_score"])
    # By the number of tasks that are done, of both games.
    assert scalars(folder, "laptop/score/mean") == [(3, means["laptop"])]
    assert scalars(folder, "kuhn_poker/score/mean") == [(7, means["kuhn_poker"])]
    assert scalars(folder, "games") == [(3, 6.0), (7, 20.0)]
    # Games are read from their folders as before.
    assert len(read_recordings(recording_files(Path("games/laptop")))[0]) == 6


def test_collected_games_of_one_game_have_plain_names_and_go_to_an_offline_wandb_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPORT_TO", "wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    answer = collect("--tasks", "3", "--preset", "laptop")
    assert answer.exit_code == 0, answer.output
    folder = Path("games/figures")
    assert len(unsent_folders(folder)) == 1
    records = offline_records(folder)
    [row] = history(records)
    document = json.loads(Path("games/collection.json").read_text())
    assert (row["step"], row["games"]) == (3, 3.0)
    assert row["score/mean"] == pytest.approx(document["mean_score"])
    [name] = {record.run.display_name for record in records if record.HasField("run")}
    assert name == "games"


def test_each_game_is_evaluated_and_written_to_a_file_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPORT_TO", "tensorboard")
    answer = run("evaluate", "random", "--tasks", "4,6", "--out", "result.json")
    assert answer.exit_code == 0, answer.output
    results = [read_result(Path(f"result-{name}.json")) for name in GAMES]
    assert [(result.preset, result.num_tasks) for result in results] == [
        ("laptop", 4),
        ("kuhn_poker", 6),
    ]
    assert not Path("result.json").exists()
    assert "laptop" in answer.stdout
    assert "kuhn_poker" in answer.stdout
    assert scalars(Path("result-figures"), "evaluate/laptop/random/score/mean") == [
        (1, pytest.approx(results[0].mean))
    ]
    assert scalars(Path("result-figures"), "evaluate/kuhn_poker/random/score/mean") == [
        (2, pytest.approx(results[1].mean))
    ]
    # A second call is recorded behind the first: W&B takes no step twice.
    answer = run("evaluate", "random", "--tasks", "5,6", "--out", "result.json")
    assert answer.exit_code == 0, answer.output
    again = read_result(Path("result-laptop.json"))
    assert scalars(Path("result-figures"), "evaluate/laptop/random/score/mean") == [
        (1, pytest.approx(results[0].mean)),
        (3, pytest.approx(again.mean)),
    ]


def test_the_json_of_several_games_is_one_document() -> None:
    answer = run("evaluate", "random", "--tasks", "3", "--json")
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    [laptop, kuhn] = document["games"]
    assert [each["results"][0]["preset"] for each in (laptop, kuhn)] == GAMES
    alone = run("evaluate", "random", "--tasks", "3", "--json", "--preset", "laptop")
    assert json.loads(alone.stdout) == laptop


def test_too_few_tasks_of_one_game_are_refused() -> None:
    answer = run("evaluate", "random", "--tasks", "5,1")
    assert answer.exit_code == 2
    assert "--tasks 1: a standard error needs at least 2 tasks." in answer.stderr
