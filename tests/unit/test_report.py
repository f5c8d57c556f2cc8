"""`hanabi-grpo report`: tables, limits, alarms, pictures and the page of a run; and the tables of
evaluations.
"""

import dataclasses
import io
import json
import random
import struct
from pathlib import Path
from typing import Any

from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.evaluation.evaluate import evaluate_lineup
from hanabi_grpo.evaluation.sheets import Sheet
from hanabi_grpo.evaluation.tables import (
    ATTAINABLE_SOURCE,
    compared_pairs,
    evaluation_sheets,
    game_title,
    reference_results,
)
from hanabi_grpo.report.charts.run import PICTURES, RunPictures
from hanabi_grpo.report.run_page import run_page
from hanabi_grpo.report.run_report import read_report
from hanabi_grpo.runs.evaluation_result import result_to_json, write_document
from hanabi_grpo.runs.history import IncidentLog
from hanabi_grpo.runs.validation import Validated, write_validations
from pages import Reader
from tracked_runs import SECRET, add_row, tracked_run
from training_runs import LAPTOP, evaluate_scripted


def command(*words: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)])


def evaluated_run(folder: Path) -> Path:
    """Write a run of three steps with scripts' evaluations, as if adapters had played, not in the
    order of training.
    """
    run = tracked_run(folder, steps=3, games=False)
    for name, script, seat in (("before", "random", "base"), ("after", "hint-bot", "player_0@60")):
        result = evaluate_scripted(script, LAPTOP, 40)
        order = dataclasses.replace(result.orders[0], seats=(seat, seat))
        result = dataclasses.replace(result, label=name, temperature=1.0, orders=(order,))
        write_document(run / f"{name}.json", result_to_json(result))
    return run


def shown(*sheets: Sheet, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    for sheet in sheets:
        console.print(sheet.rich())
    return console.export_text()


def test_a_table_is_the_same_in_the_terminal_and_as_markdown() -> None:
    sheet = Sheet(
        title="[bold]t[/bold]", columns=("a", "b", "c"), groups=[[("1", "2", "3")], [("[red]x|y\\", "5", "6")]],
        num_names=2,
    )  # fmt: skip
    assert sheet.markdown().splitlines() == [
        "**[bold]t[/bold]**",
        "",
        "| a | b | c |",
        "| --- | --- | ---: |",
        "| 1 | 2 | 3 |",
        "| [red]x\\|y\\\\ | 5 | 6 |",
    ]
    text = shown(sheet)
    assert "[bold]t[/bold]" in text and "[red]x|y\\" in text


def test_a_report_leads_with_what_was_gained_and_holds_it_against_the_references(
    tmp_path: Path,
) -> None:
    run = evaluated_run(tmp_path / "run")
    before, after, blind = (
        evaluate_scripted(name, LAPTOP, 40).mean for name in ("random", "hint-bot", "blind")
    )
    answer = command(
        run, "--markdown", tmp_path / "new" / "report.md", "--html", tmp_path / "run.html"
    )
    assert answer.exit_code == 0, answer.output
    lead = (
        f"held-out {before:.2f} → {after:.2f} of 4; random {before:.2f}; blind {blind:.2f}; "
        f"hint-bot {after:.2f}"
    )
    assert answer.output.splitlines()[:3] == [
        "run: step 3 of 500", f"{lead}; attainable 3.87", "alarms: none is raised"
    ]  # fmt: skip
    page = (tmp_path / "run.html").read_text()
    assert f'<p class="lead">{lead}; attainable 3.87</p>' in page
    lines = (tmp_path / "new" / "report.md").read_text().splitlines()
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    assert names[:8] == [
        "lineup", "---", "blind", "random", "hint-bot", "before (T=1)", "after (T=1)", "attainable"
    ]  # fmt: skip
    assert f"| after − before | {after - before:+.3f} ± " in "\n".join(lines)
    assert "| attainable | 3.87 | – |" in lines and ATTAINABLE_SOURCE in lines


def test_a_rise_below_the_limit_ends_with_exit_code_1(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path / "run")
    answer = command(run, "--min-rise", 9, "--min-sigma", 99)
    assert answer.exit_code == 1
    assert (
        "wanted at least +9.000" in answer.stderr
        and "standard errors, wanted at least 99" in answer.stderr
    )
    assert command(run, "--min-rise", 0.5, "--min-sigma", 3).exit_code == 0


def test_what_is_no_run_places_that_cannot_be_written_and_bad_options_are_refused(
    tmp_path: Path,
) -> None:
    run = tracked_run(tmp_path / "run", steps=2, games=False)
    (tmp_path / "file").write_text("")
    for folder, message in ((tmp_path / "none", "no such folder"), (tmp_path, "holds no step")):
        answer = command(folder)
        assert (answer.exit_code, message in answer.output.replace("\n", " ")) == (2, True)
    for words, message in (
        (("--html", tmp_path / "file" / "x"), "--html"),
        (("--markdown", tmp_path / "file" / "x"), "--markdown"),
        (("--png", tmp_path / "file" / "x.png"), "cannot be written"),
        (("--png", tmp_path / "file"), "--png"),
        (("--conventions",), "no game of this version"),
    ):
        answer = command(run, *words)
        assert (answer.exit_code, message in answer.stderr) == (2, True), words


def test_pictures_go_into_a_folder_or_one_file(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path / "run")
    answer = command(run, "--png", tmp_path / "new")
    assert (
        answer.exit_code == 0
        and "no picture alarms: no row has a figure that an alarm watches" in answer.output
    )
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"score.png", "phases.png"}
    assert command(run, "--png", tmp_path / "one.svg").exit_code == 0
    assert "attainable 3.87" in (tmp_path / "one.svg").read_text()


def rows(num: int) -> list[dict[str, Any]]:
    rng = random.Random(7)
    return [
        {
            "step": step,
            "games": 64.0,
            "score/laptop": 1.0 + 0.1 * rng.random(),
            "games/laptop": 64.0,
        }
        | {f"player_{player}/blind_share": min(1.0, step / 40) for player in (0, 1)}
        | {f"player_{player}/entropy_estimate": 0.5 + 0.05 * rng.random() for player in (0, 1)}
        for step in range(1, num + 1)
    ]


def test_a_collapsed_run_says_what_happened_when_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows(60)) + '{"step": 61, "ga'
    )
    answer = command(tmp_path, "--alarms")
    assert answer.exit_code == 0, answer.output
    lines = answer.output.splitlines()
    assert lines[1].startswith(
        "alarms: blind_play (player_0) since step 37, blind_play (player_1) since step 37"
    )
    told = [line for line in lines if line.startswith("step ")]
    assert told[0].startswith(
        "step 37: blind_play: player_0: share of moves: play the oldest card is"
    )
    table = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
    assert [(row[0].strip(), row[-1].strip()) for row in table[:2]] == [
        ("blind_play", "since 37")
    ] * 2
    assert {row[-1].strip() for row in table[2:]} == {"quiet"}


def whole_run(folder: Path) -> Path:
    """A run with games, times, a raised alarm, incidents and an evaluation."""
    tracked_run(folder, steps=12, MAX_STEPS="40")
    for step in range(13, 41):
        add_row(
            folder,
            step,
            **{
                "time/rollout": 2.0,
                "time/train": 1.0,
                "step_time": 3.1,
                "player_0/blind_share": 0.95,
            },
        )
    IncidentLog(folder).record("server_gone", f"{folder.resolve()}/x: lost", step=3)
    write_document(folder / "random.json", result_to_json(evaluate_scripted("random", LAPTOP, 20)))
    return folder


def test_the_page_has_curves_evaluations_replays_alarms_incidents_and_settings_and_nothing_private(
    tmp_path: Path,
) -> None:
    run = whole_run(tmp_path / "my-run")
    settings = json.loads((run / "settings.json").read_text())
    settings["settings"] |= {"MODEL": "/home/somebody/models/tiny", "HANABI_PARTNERS": "iggi,/home/somebody/other",
                             "VLLM_SERVER_HOST": "10.1.2.3"}  # fmt: skip
    (run / "settings.json").write_text(json.dumps(settings))
    page, notes = run_page(read_report(run))
    reader = Reader(page)
    text = " ".join(reader.text.split())
    for words in (
        "Run my-run",
        "40 of 40",
        "server_gone my-run/x: lost",
        # fmt: skip
        "HANABI_ADVANTAGEturn",
        "…/tiny",
        "iggi,…/other",
        "blind_playplayer_0",
    ):
        assert words in text, words
    # The score; return, blind play and the seconds; illegal replies behind "more".
    assert reader.tags.count("figure") == reader.tags.count("img") == 5 and "1 more figures" in text
    assert notes == [] and "<iframe" in page
    for private in (SECRET, "somebody", "10.1.2.3", str(tmp_path)):
        assert private not in page


def test_a_run_of_one_step_and_nothing_else_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "games": 4.0, "score/mean": 1.0}\n')
    page, notes = run_page(read_report(tmp_path))
    assert (
        notes == [] and "frame-src &#39;none&#39;" in page and "script-src &#39;none&#39;" in page
    )
    text = " ".join(Reader(page).text.split())
    for words in ("None in the run folder", "No alarm was raised.", "No recorded game is shown.",
                  "The run folder has no settings.json."):  # fmt: skip
        assert words in text


def test_validations_are_a_curve_a_line_and_data(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path / "run")
    rows = [
        Validated(step=step, score=score, se=0.25)
        for step, score in ((0, 1.0), (1, 1.9), (2, 1.9), (3, 1.4))
    ]
    write_validations(run, rows)
    line = "validation: best 1.900 ± 0.250 at step 1, last 1.400 ± 0.250 at step 3"
    answer = command(
        run,
        "--markdown",
        tmp_path / "report.md",
        "--png",
        tmp_path / "one.svg",
        "--html",
        tmp_path / "p",
    )
    assert answer.exit_code == 0 and line in answer.output.splitlines()
    assert (tmp_path / "report.md").read_text().splitlines()[0] == line and line in (
        tmp_path / "p"
    ).read_text()
    picture = (tmp_path / "one.svg").read_text()
    for words in ("validation 1.40", "best 1.90, step 1", "training games 1.10", "held-out tasks"):
        assert words in picture, words
    axes = read_report(run).pictures.draw("score").axes[0]
    bars = [bar.get_segments() for bar in axes.collections]
    drawn = [(float(low[0]), float(low[1]), float(high[1])) for low, high in bars[0]]
    assert drawn == [(row.step, row.score - 0.5, row.score + 0.5) for row in rows], (
        "two standard errors"
    )


def test_several_games_are_drawn_by_their_shares_and_a_damaged_record_gets_a_note(
    tmp_path: Path,
) -> None:
    run = tracked_run(tmp_path / "run", steps=0, games=False)
    for step in (1, 2):
        add_row(run, step, **{"score/mean": 9.0, "score/normalized": 0.25 * step})
    write_validations(run, [Validated(step=0, score=0.4, se=0.1, metric="score/normalized")])
    axes = read_report(run).pictures.draw("score").axes[0]
    assert axes.get_ylabel() == "mean share of the greatest score" and axes.get_ylim()[1] < 1
    (run / "validation.json").write_text("[")
    found = read_report(run)
    assert found.validation == "" and "validation.json: not what a run writes" in found.notes[-1]


def test_evaluations_of_other_deals_get_tables_of_their_own_and_damaged_ones_a_note(
    tmp_path: Path,
) -> None:
    run = tracked_run(tmp_path / "train", steps=1, games=False)
    results = [evaluate_scripted(name, LAPTOP, 10) for name in ("hint-bot", "random")]
    several = {"results": [result_to_json(results[0])], "references": [result_to_json(results[1])]}
    (run / "greedy.json").write_text(json.dumps(several))
    (run / "evaluations").mkdir()
    write_document(
        run / "evaluations" / "short.json", result_to_json(evaluate_scripted("hint-bot", LAPTOP, 6))
    )
    write_document(tmp_path / "after.json", result_to_json(results[0]))
    write_document(
        run / "evaluations" / "kept.json", result_to_json(results[0])
    )  # is there by a name already
    for number, change in enumerate(({"scores": [1.0]}, {"scores": None}, {"orders": []})):
        (run / f"bad{number}.json").write_text(json.dumps({**result_to_json(results[0]), **change}))
    (run / "torn.json").write_text('{"results": [')
    report = read_report(run)
    ten_tasks, six_tasks = report.evaluations
    assert [result.label for result in ten_tasks.results] == ["greedy: hint-bot", "after: hint-bot"]
    assert [result.label for result in ten_tasks.references] == ["random"]
    assert [result.label for result in six_tasks.results] == ["short: hint-bot"]
    files = [note.partition(":")[0] for note in report.notes]
    assert files == ["bad0.json", "bad1.json", "bad2.json"]
    titles = [sheet.title for sheet in report.sheets if "tasks of suite" in sheet.title]
    assert ["10 tasks" in titles[0], "6 tasks" in titles[1], len(titles)] == [True, True, 2]


def test_references_play_the_same_deals_and_count_through() -> None:
    done: list[int] = []
    result = evaluate_scripted("iggi", LAPTOP, 60, "split-eval")
    found = reference_results(result, progress=done.append)
    assert [one.label for one in found] == ["random", "blind", "hint-bot"]
    assert all(
        (one.seeds, one.starts, one.suite) == (result.seeds, result.starts, "split-eval")
        for one in found
    )
    assert done == sorted(done) and done[-1] == 180
    assert (
        f"60 tasks ({result.estimate.num_starts} different starts) of suite split-eval"
        in game_title(result)
    )
    assert [len(compared_pairs([result] * count)) for count in (1, 2, 4, 5, 9)] == [0, 1, 6, 4, 8]


def test_every_table_of_a_large_evaluation_fits_120_columns() -> None:
    full = Setup(HANABI, EnvConfig(preset="full", players=5))
    text = "iggi,piers,outer,flawed,hint-bot"
    long = {"label": "a-rather-long-run-name/checkpoint-100000:player_1", "temperature": 0.7}
    mixed = dataclasses.replace(evaluate_lineup(parse_lineup(text, 5), full, 6), **long)
    team = dataclasses.replace(evaluate_scripted("iggi", full, 6), label=text)
    sheets = evaluation_sheets([mixed, team, mixed], reference_results(mixed, ["blind"]))
    assert [sheet.columns[0] for sheet in sheets] == [
        "lineup",
        "lineup",
        "paired difference",
        "lineup",
    ]
    assert sheets[-1].groups[0][1][:2] == ("", "piers, outer, flawed, hint-bot, iggi")
    printed = shown(*sheets)
    assert max(map(len, printed.splitlines())) <= 120
    assert "…" not in printed, "no figure is cut off"


def rows_of(num: int, *, players: int = 2) -> list[dict[str, Any]]:
    """Rows whose last step alone lies far above the others."""
    rows = []
    for step in range(1, num + 1):
        row = {
            "step": step,
            "games": 64.0,
            "score/mean": 2.8 if step == num else 1.0,
            "illegal_per_game": 0.1,
        }
        row |= {"unparsable_per_game": 0.2, "time/rollout": 2.0, "time/train": 1.0}
        row |= {
            f"player_{player}/blind_share": 0.1 * player + 0.001 * step for player in range(players)
        }
        rows.append(row)
    return rows


def test_every_picture_of_short_and_long_runs_is_a_png_and_equal_runs_give_equal_files(
    tmp_path: Path,
) -> None:
    for num, players in ((2, 5), (700, 2)):
        run = RunPictures(title="$x_1$ <b> ünïcode", rows=rows_of(num, players=players))
        for turn in ("a", "b"):
            assert run.save_all({name: tmp_path / turn / f"{name}.png" for name in PICTURES}) == {}
        for name in PICTURES:
            content = (tmp_path / "a" / f"{name}.png").read_bytes()
            width, height = struct.unpack(">II", content[16:24])
            assert (content[:8], width > 300, height > 200) == (b"\x89PNG\r\n\x1a\n", True, True)
            assert content == (tmp_path / "b" / f"{name}.png").read_bytes()
