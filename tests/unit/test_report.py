import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.env_config import EnvConfig
from hanabi_grpo.evaluation import evaluate_scripted
from hanabi_grpo.evaluation_result import PairedDifference, write_result
from hanabi_grpo.report import markdown_table, shortfall

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)


def results(folder: Path) -> tuple[str, str]:
    before, after = folder / "before.json", folder / "after.json"
    write_result(before, evaluate_scripted("random", LAPTOP, 60))
    write_result(after, evaluate_scripted("hint-bot", LAPTOP, 60))
    return str(before), str(after)


@pytest.mark.parametrize(
    ("mean", "error", "rise", "sigma", "expected"),
    [
        (0.6, 0.1, 0.5, 5.0, None),
        (0.4, 0.01, 0.5, None, "the mean score rose by +0.400, wanted at least +0.500"),
        (0.6, 0.2, 0.5, 5.0, "the rise is 3.0 standard errors, wanted at least 5"),
        (-1.0, 0.1, None, None, None),
        (0.0, 0.0, None, 5.0, "the rise is 0.0 standard errors"),
    ],
)
def test_a_rise_is_held_against_both_limits(
    mean: float, error: float, rise: float | None, sigma: float | None, expected: str | None
) -> None:
    problem = shortfall(PairedDifference(mean, error, 100), min_rise=rise, min_sigma=sigma)
    assert problem is None if expected is None else expected in str(problem)


def test_a_markdown_table_has_one_line_per_row() -> None:
    cells = tuple("abcdefghi")
    lines = markdown_table("title", [[cells], [cells]]).splitlines()
    assert lines[0] == "**title**"
    assert lines[3] == "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert lines[4:] == ["| a | b | c | d | e | f | g | h | i |"] * 2


def test_a_report_shows_both_teams_their_difference_and_three_references(tmp_path: Path) -> None:
    before, after = results(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1, "score/mean": 1.0, "illegal_per_game": 0.1}\n')
    answer = CliRunner().invoke(app, ["report", "--before", before, "--after", after, "--run", str(run)])
    assert answer.exit_code == 0, answer.output
    rows = [line.split(" | ")[0] for line in (tmp_path / "report.md").read_text().splitlines()[4:]]
    assert rows == ["| random", "| hint-bot", "| paired difference", "| random", "| blind", "| hint-bot"]
    assert (tmp_path / "learning_curve.png").is_file()


def test_a_rise_below_the_limit_ends_with_exit_code_1(tmp_path: Path) -> None:
    before, after = results(tmp_path)
    answer = CliRunner().invoke(app, ["report", "--before", after, "--after", before, "--min-rise", "0.5"])
    assert answer.exit_code == 1
    assert "not enough learnt on 60 deals" in answer.output


def test_results_of_a_changed_board_are_refused(tmp_path: Path) -> None:
    before, after = results(tmp_path)
    for path in map(Path, (before, after)):
        path.write_text(json.dumps({**json.loads(path.read_text()), "spec_hash": "0" * 12}))
    answer = CliRunner().invoke(app, ["report", "--before", before, "--after", after])
    assert answer.exit_code == 2
    assert "evaluate it again" in answer.output
