import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.evaluation.evaluate import evaluate_line_up, evaluate_scripted
from hanabi_grpo.evaluation.tables import (
    ATTAINABLE_SOURCE,
    Sheet,
    board_title,
    compared_pairs,
    evaluation_sheets,
    reference_results,
    shortfall,
)
from hanabi_grpo.rollout.lineups import parse_line_up
from hanabi_grpo.runs.deal_statistics import Estimate
from hanabi_grpo.runs.evaluation_result import EvaluationResult, write_result

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)


def results(folder: Path) -> tuple[str, str]:
    before, after = folder / "before.json", folder / "after.json"
    write_result(before, evaluate_scripted("random", LAPTOP, 60))
    write_result(after, evaluate_scripted("hint-bot", LAPTOP, 60))
    return str(before), str(after)


def shown(*sheets: Sheet, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    for sheet in sheets:
        console.print(sheet.rich())
    return console.export_text()


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
    found = Estimate(mean=mean, standard_error=error, low=mean, high=mean, num_deals=100, num_decks=100)
    problem = shortfall(found, min_rise=rise, min_sigma=sigma)
    assert problem is None if expected is None else expected in str(problem)


def test_a_markdown_table_has_one_line_per_row() -> None:
    sheet = Sheet(title="title", columns=("a", "b", "c"), groups=[[("1", "2", "3")], [("x|y", "5", "6")]], num_names=2)
    assert sheet.markdown().splitlines() == [
        "**title**",
        "",
        "| a | b | c |",
        "| --- | --- | ---: |",
        "| 1 | 2 | 3 |",
        "| x\\|y | 5 | 6 |",
    ]


def test_labels_are_shown_as_they_are() -> None:
    sheet = Sheet(title="[bold]t[/bold]", columns=("a", "b"), groups=[[("[red]x[/red]", "[1]")]])
    text = shown(sheet)
    for part in ("[bold]t[/bold]", "[red]x[/red]", "[1]"):
        assert part in text


def test_a_report_shows_both_teams_their_difference_and_three_references(tmp_path: Path) -> None:
    before, after = results(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1, "score/mean": 1.0, "illegal_per_game": 0.1}\n')
    answer = CliRunner().invoke(app, ["report", "--before", before, "--after", after, "--run", str(run)])
    assert answer.exit_code == 0, answer.output
    lines = (tmp_path / "report.md").read_text().splitlines()
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    teams = ["blind", "random", "hint-bot", "random", "hint-bot"]
    assert names == [
        *("line-up", "---", *teams, "attainable"),
        *("line-up", "---", *teams),
        *("paired difference", "---", "hint-bot − random"),
    ]
    assert "| attainable | 3.78 | – | – | – | – | – |" in lines and ATTAINABLE_SOURCE in lines
    assert (tmp_path / "learning_curve.png").is_file()


def test_what_is_attainable_stands_only_where_it_is_known() -> None:
    laptop = evaluate_scripted("random", LAPTOP, 4)
    others = [
        dataclasses.replace(laptop, spec_hash="0" * 12),
        dataclasses.replace(laptop, suite="split-eval"),
        dataclasses.replace(laptop, env_config={"preset": "gone"}),
        evaluate_scripted("random", EnvConfig(preset="full"), 4),
    ]
    mini = evaluate_scripted("random", EnvConfig(preset="marshal-mini"), 4)
    assert [one.attainable for one in (laptop, mini, *others)] == [3.78, 3.78, None, None, None, None]
    for one in others:
        text = shown(*evaluation_sheets([one], []))
        assert "random" in text and "attainable" not in text


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


def test_references_play_the_same_deals_and_count_through() -> None:
    done: list[int] = []
    result = evaluate_scripted("iggi", LAPTOP, 60)
    found = reference_results(result, progress=done.append)
    assert [one.label for one in found] == ["random", "blind", "hint-bot"]
    assert all((one.seeds, one.decks, one.suite) == (result.seeds, result.decks, "eval") for one in found)
    assert done == sorted(done) and done[-1] == 180


@pytest.mark.parametrize(("count", "pairs"), [(1, 0), (2, 1), (4, 6), (5, 4), (9, 8)])
def test_up_to_four_line_ups_are_compared_two_by_two(count: int, pairs: int) -> None:
    found = compared_pairs([evaluate_scripted("random", LAPTOP, 3)] * count)
    assert len(found) == pairs


def test_every_table_of_a_large_evaluation_fits_120_columns() -> None:
    def named(result: EvaluationResult, label: str) -> EvaluationResult:
        return dataclasses.replace(result, label=label, temperature=0.7)

    full = EnvConfig(preset="full", players=5)
    text = "iggi,piers,outer,simple-bot,hint-bot"
    mixed = named(
        evaluate_line_up(parse_line_up(text, 5), full, 6), "a-rather-long-run-name/checkpoint-100000:player_1"
    )
    team = named(evaluate_scripted("iggi", full, 6), text)
    sheets = evaluation_sheets([mixed, team, mixed], reference_results(mixed, ["blind"]))
    assert [sheet.columns[0] for sheet in sheets] == ["line-up", "line-up", "paired difference", "line-up"]
    printed = shown(*sheets)
    assert max(map(len, printed.splitlines())) <= 120
    assert "…" not in printed, "no figure is cut off"
    for one in sheets:
        for group in one.groups:
            for row in group:
                assert all(cell in printed for cell in row[one.num_names :])


def test_the_title_counts_decks_only_where_deals_share_them() -> None:
    half = evaluate_scripted("blind", LAPTOP, 300, suite="split-eval")
    assert "300 deals (225 different decks) of suite split-eval" in board_title(half)
    assert "300 deals of suite eval" in board_title(evaluate_scripted("blind", LAPTOP, 300))
    assert "40 deals of suite eval" in board_title(evaluate_scripted("blind", EnvConfig(preset="full"), 40))


def test_a_mixed_line_up_shows_who_sat_first() -> None:
    result = evaluate_line_up(parse_line_up("iggi,random", 2), LAPTOP, 50)
    sheet = evaluation_sheets([result], [])[-1]
    rows = [row for group in sheet.groups for row in group]
    assert [row[:2] for row in rows] == [("iggi,random", "iggi, random"), ("", "random, iggi")]
    assert rows[0][2].startswith(f"{result.orders[0].mean:.3f} ± ")


def test_a_machine_reads_the_rise_and_both_results(tmp_path: Path) -> None:
    before, after = results(tmp_path)
    answer = CliRunner().invoke(app, ["report", "--before", before, "--after", after, "--min-rise", "9", "--json"])
    assert answer.exit_code == 1
    assert "wanted at least +9.000" in answer.stderr
    found = json.loads(answer.stdout)
    scores = [sum(one["scores"]) / 60 for one in found["results"]]
    (rise,) = found["differences"]
    assert rise["mean"] == pytest.approx(scores[1] - scores[0])
    assert rise["interval_95"][0] < rise["mean"] < rise["interval_95"][1]
    assert [one["label"] for one in found["references"]] == ["random", "blind", "hint-bot"]
    assert found["attainable"] == 3.78
