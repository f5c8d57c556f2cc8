"""Commands that play write below OUTPUT_DIR, or below outputs/, and leave nothing over."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.commands.evaluate import _stop_summary
from hanabi_grpo.evaluation.chosen import game_setup
from hanabi_grpo.evaluation.lineups import evaluate_lineups, parse_lineups
from hanabi_grpo.runs.run_folder import check_fresh, results_folder
from hanabi_grpo.settings import load_settings

NO_FILE = "No file was written; use --out FILE to save the result."
EVALUATE = ("evaluate", "iggi", "--preset", "laptop", "--tasks", "4")
CROSS_PLAY = ("cross-play", "iggi", "random", "--preset", "laptop", "--tasks", "4")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*args: str) -> str:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 0, result.output
    return " ".join((result.stdout + result.stderr).split())


def test_an_evaluation_leaves_no_folder_where_one_stands_and_says_so() -> None:
    assert NO_FILE in run(*EVALUATE)
    assert list(Path().iterdir()) == []


def test_an_evaluation_with_out_names_its_file_alone() -> None:
    output = run(*EVALUATE, "--out", "result.json")
    assert "wrote result.json" in output
    assert NO_FILE not in output
    assert [path.name for path in Path().iterdir()] == ["result.json"]


def test_a_result_that_replaces_one_of_other_lineups_or_tasks_says_so() -> None:
    assert "replaced" not in run(*EVALUATE, "--out", "result.json")
    assert "replaced" not in run(*EVALUATE, "--out", "result.json", "--label", "another name")
    other = ("evaluate", "blind", *EVALUATE[2:], "--out", "result.json")
    assert "wrote result.json replaced result.json, which held iggi" in run(*other)
    on_test = run(*other, "--suite", "test")
    assert re.search(r"which held blind \(evaluate, laptop [0-9a-f]{12}, suite eval\)", on_test)
    both = ("evaluate", "iggi", "blind", *EVALUATE[2:], "--out", "result.json")
    assert "replaced result.json, which held blind" in run(*both)
    assert "replaced result.json, which held iggi, blind (evaluate, laptop" in run(
        "teams", "vote=noisy", "--tasks", "4", "--out", "result.json"
    )
    beliefs = ("beliefs", "random", "--env", "kuhn_poker", "--tasks", "2", "--out", "result.json")
    assert "replaced result.json, which held vote=noisy" in run(*beliefs)
    assert "replaced" not in run(*beliefs)


def test_a_cross_play_that_replaces_one_of_other_entries_or_tasks_says_so() -> None:
    command = (*CROSS_PLAY, "--out", "cross")
    assert "replaced" not in run(*command)
    assert "replaced" not in run(*command)
    assert "replaced cross/cross_play.json, which held iggi, random" in run(*command, "blind")
    assert re.search(
        r"which held iggi, random, blind \(cross-play, laptop [0-9a-f]{12}, suite eval\)",
        run(*command, "--suite", "test"),
    )


@pytest.mark.parametrize("content", ['{"settings": {"SEED": 1}}', "[1]", "# Notes"])
def test_a_file_that_is_no_result_is_never_replaced(content: str) -> None:
    path = Path("settings.json")
    path.write_text(content)
    result = CliRunner().invoke(app, [*EVALUATE, "--out", str(path)])
    assert result.exit_code == 2
    assert result.stderr == (
        "error: --out settings.json: exists, but holds no result of evaluate, exploit, teams or "
        "beliefs; name another file, or move this one away.\n"
    )
    assert path.read_text() == content


def test_an_empty_file_is_written() -> None:
    Path("result.json").touch()
    output = run(*EVALUATE, "--out", "result.json")
    assert "wrote result.json" in output
    assert "replaced" not in output


def test_an_evaluation_leaves_the_work_of_others_in_place() -> None:
    other = Path("outputs/evaluations/other.part.jsonl")
    other.parent.mkdir(parents=True)
    other.touch()
    run(*EVALUATE)
    assert list(other.parent.iterdir()) == [other]


@pytest.mark.parametrize(("output_dir", "expected"), [(None, "outputs"), ("runs/a", "runs/a")])
def test_unfinished_tasks_are_kept_below_the_folder_of_results(
    output_dir: str | None, expected: str
) -> None:
    environ = {} if output_dir is None else {"OUTPUT_DIR": output_dir}
    settings = load_settings(environ).settings
    game = game_setup(settings, "hanabi", "laptop", None)
    folder = results_folder(settings)
    # The command removes the file at its end; until then it is what a second try reads.
    evaluate_lineups(parse_lineups(["iggi"], game), game, 4, folder=folder)
    [ledger] = Path(expected, "evaluations").iterdir()
    assert ledger.name.startswith("laptop-")
    assert len(ledger.read_text().splitlines()) == 1 + 4


def test_cross_play_without_out_writes_below_output_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPUT_DIR", "runs/a")
    run(*CROSS_PLAY)
    [folder] = Path("runs/a").iterdir()
    assert folder.name.startswith("cross-play-laptop-")
    assert not Path("outputs").exists()


def test_a_run_may_begin_in_a_folder_that_was_evaluated_and_played_in() -> None:
    folder = Path("runs/a")
    stamp = "laptop-20260131-093000"
    for name in ("evaluations", "played", f"cross-play-{stamp}", f"adhoc-{stamp}"):
        (folder / name).mkdir(parents=True)
    check_fresh(folder)


def test_an_evaluation_that_is_stopped_at_once_names_no_file() -> None:
    assert _stop_summary({"iggi": 0, "random": 0}, 8, " in outputs/evaluations") == (
        "stopped: none of the 8 tasks are done."
    )


def test_a_board_for_other_players_is_refused_by_the_name_of_the_option() -> None:
    refused = ("evaluate", "iggi", "--preset", "marshal-mini", "--players", "3", "--tasks", "4")
    result = CliRunner().invoke(app, list(refused))
    assert result.exit_code == 2
    assert "players=3: preset 'marshal-mini' is for 2 players" in result.output + result.stderr
    assert "env_config" not in result.output + result.stderr
