"""`hanabi-grpo report`: tables, limits, alarms, pictures and the page of a run; and its tables."""

import dataclasses
import io
import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from hanabi_grpo.cli import app
from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import evaluate_lineup
from hanabi_grpo.evaluation.sheets import Sheet
from hanabi_grpo.evaluation.tables import (
    BEST_KNOWN_SOURCE,
    compared_pairs,
    evaluation_sheets,
    game_title,
    reference_results,
)
from hanabi_grpo.report.charts.run import PICTURES, RunPictures
from hanabi_grpo.report.played import has_rivals
from hanabi_grpo.report.run_page import run_page
from hanabi_grpo.report.run_report import read_report
from hanabi_grpo.runs.evaluation_result import EvaluationResult, result_to_json, write_document
from hanabi_grpo.runs.history import IncidentLog
from hanabi_grpo.runs.validation import Validated, write_validations
from pages import Reader
from tracked_runs import SECRET, add_row, tracked_run
from training_runs import LAPTOP, evaluate_scripted

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def report(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def write_result(path: Path, result: EvaluationResult) -> None:
    write_document(path, result_to_json(result))


def evaluated_run(folder: Path) -> Path:
    """Write a run of three steps with scripts' evaluations, as if adapters had played.

    By name "after" comes first; in the order of training it is the last.
    """
    run = tracked_run(folder, steps=3, games=False)
    for name, script, seat in (("before", "random", "base"), ("after", "hint-bot", "player_0@60")):
        result = evaluate_scripted(script, LAPTOP, 40)
        order = dataclasses.replace(result.orders[0], seats=(seat, seat))
        result = dataclasses.replace(result, label=name, temperature=1.0, orders=(order,))
        write_result(run / f"{name}.json", result)
    return run


def shown(*sheets: Sheet, width: int = 120) -> str:
    """Return tables as a terminal shows them."""
    console = Console(file=io.StringIO(), width=width, record=True)
    for sheet in sheets:
        console.print(sheet.rich())
    return console.export_text()


def test_a_table_is_the_same_in_the_terminal_and_as_markdown() -> None:
    sheet = Sheet(
        title="[bold]t[/bold]",
        columns=("a", "b", "c"),
        groups=[[("1", "2", "3")], [("[red]x|y\\", "5", "6")]],
        num_names=2,
    )
    assert sheet.markdown().splitlines() == [
        "**[bold]t[/bold]**",
        "",
        "| a | b | c |",
        "| --- | --- | ---: |",
        "| 1 | 2 | 3 |",
        "| [red]x\\|y\\\\ | 5 | 6 |",
    ]
    text = shown(sheet)
    assert "[bold]t[/bold]" in text
    assert "[red]x|y\\" in text


def test_names_are_no_markup_in_markdown() -> None:
    """A page of GitHub or MkDocs shows each as it was typed."""
    written = {
        "<img src=x onerror=f()>": "&lt;img src=x onerror=f()>",
        "iggi*3,piers*2": r"iggi\*3,piers\*2",
        "_base_ player_0": r"\_base\_ player_0",
        "`a` ~~b~~": r"\`a\` \~\~b\~\~",
        "[a](http://b)": r"[a]\(http://b)",
        "&lt; a & b": "&amp;lt; a & b",
        "two\nlines": "two lines",
    }
    for name, markdown in written.items():
        sheet = Sheet(title=name, columns=("a",), groups=[[(name,)]], note=name)
        lines = sheet.markdown().splitlines()
        assert lines == [f"**{markdown}**", "", "| a |", "| --- |", f"| {markdown} |", "", markdown]


def test_a_report_leads_with_what_was_gained_and_holds_it_against_the_references(
    tmp_path: Path,
) -> None:
    run = evaluated_run(tmp_path / "run")
    before = evaluate_scripted("random", LAPTOP, 40).mean
    after = evaluate_scripted("hint-bot", LAPTOP, 40).mean
    blind = evaluate_scripted("blind", LAPTOP, 40).mean
    markdown = tmp_path / "new" / "report.md"
    html = tmp_path / "run.html"
    answer = report(run, "--markdown", markdown, "--html", html)
    assert answer.exit_code == 0, answer.output
    lead = (
        f"held-out {before:.2f} → {after:.2f} of 4; random {before:.2f}; blind {blind:.2f}; "
        f"hint-bot {after:.2f}; best known 3.97"
    )
    assert answer.output.splitlines()[:3] == [
        "run: step 3 of 500",
        lead,
        "alarms: none",
    ]
    assert f'<p class="lead">{lead}</p>' in html.read_text()
    lines = markdown.read_text().splitlines()
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    assert names[:8] == [
        "lineup",
        "---",
        "blind",
        "random",
        "hint-bot",
        "before (T=1)",
        "after (T=1)",
        "best known",
    ]
    assert f"| after − before | {after - before:+.3f} ± " in "\n".join(lines)
    assert "| best known | 3.97 | – |" in lines
    assert BEST_KNOWN_SOURCE in lines


def test_a_rise_below_the_limit_ends_with_exit_code_1(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path / "run")
    answer = report(run, "--min-rise", 9, "--min-sigma", 99)
    assert answer.exit_code == 1
    assert "(at least +9.000 required)" in answer.stderr
    assert "standard errors (at least 99 required)" in answer.stderr
    assert report(run, "--min-rise", 0.5, "--min-sigma", 3).exit_code == 0


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for folder, message in (
        (tmp_path / "none", "no such folder"),
        (tmp_path, "its metrics.jsonl has no step"),
    ):
        answer = report(folder)
        assert answer.exit_code == 2
        assert message in answer.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("option", "target", "message"),
    [
        ("--html", "file/x", "--html"),
        ("--markdown", "file/x", "--markdown"),
        ("--png", "file/x.png", "cannot be written"),
        ("--png", "file", "--png"),
        ("--png", "a.jpg", "give a name that ends in .png or .svg, or a folder"),
        ("--conventions", None, "not a game of this version"),
    ],
)
def test_places_that_cannot_be_written_and_bad_options_are_refused(
    tmp_path: Path, option: str, target: str | None, message: str
) -> None:
    run = tracked_run(tmp_path / "run", steps=2, games=False)
    (tmp_path / "file").write_text("")
    arguments = [option] if target is None else [option, tmp_path / target]
    answer = report(run, *arguments)
    assert answer.exit_code == 2
    assert message in answer.stderr


def test_pictures_go_into_a_folder_or_one_file(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path / "run")
    answer = report(run, "--png", tmp_path / "new")
    assert answer.exit_code == 0
    assert "no picture alarms: no row has a metric that an alarm watches" in answer.output
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"score.png", "phases.png"}
    assert report(run, "--png", tmp_path / "one.svg").exit_code == 0
    assert "best known 3.97" in (tmp_path / "one.svg").read_text()
    assert report(run, "--png", tmp_path / "two.PNG").exit_code == 0
    assert (tmp_path / "two.PNG").read_bytes().startswith(PNG_SIGNATURE)
    (tmp_path / "of.2026").mkdir()
    assert report(run, "--png", tmp_path / "of.2026").exit_code == 0
    assert (tmp_path / "of.2026" / "score.png").is_file()


def test_reports_replace_their_own_files_and_no_others(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path / "run")
    files = {
        "--html": tmp_path / "page.html",
        "--markdown": tmp_path / "thesis.md",
        "--png": tmp_path / "score.png",
    }
    for option, file in files.items():
        file.touch()
        assert report(run, option, file).exit_code == 0, "an empty file is no obstacle"
        assert report(run, option, file).exit_code == 0
        file.write_text("# My thesis, with pictures by Matplotlob")
        answer = report(run, option, file)
        assert answer.exit_code == 2
        assert " ".join(answer.stderr.split()) == (
            f"error: {option} {file}: exists, and nothing in it says that a report wrote it; name "
            "another file, or delete this one if you do not need it."
        )
        assert file.read_text() == "# My thesis, with pictures by Matplotlob"
    rows = (run / "metrics.jsonl").read_text()
    new = tmp_path / "new.html"
    assert report(run, "--html", new, "--markdown", run / "metrics.jsonl").exit_code == 2
    assert (run / "metrics.jsonl").read_text() == rows
    assert not new.exists(), "nothing is written where one file is refused"


def test_a_folder_of_pictures_keeps_what_no_report_drew(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path / "run")
    folder = tmp_path / "pictures"
    assert report(run, "--png", folder).exit_code == 0
    assert report(run, "--png", folder).exit_code == 0
    (folder / "phases.png").write_bytes(PNG_SIGNATURE + b"a photo")
    assert "nothing in it says that a report wrote it" in " ".join(
        report(run, "--png", folder).stderr.split()
    )
    assert (folder / "phases.png").read_bytes() == PNG_SIGNATURE + b"a photo"


def test_files_are_written_where_nobody_reads_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_reader(self: Console, *objects: Any, **options: Any) -> None:
        raise BrokenPipeError

    run = evaluated_run(tmp_path / "run")
    monkeypatch.setattr(Console, "print", no_reader)
    report(run, "--html", tmp_path / "x.html", "--markdown", tmp_path / "x.md", "--png", tmp_path)
    for name in ("x.html", "x.md", "score.png"):
        assert (tmp_path / name).stat().st_size > 0


def test_the_tables_of_alarms_and_conventions_are_written_with_the_others(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "run", steps=3)
    file = tmp_path / "tables.md"
    assert report(run, "--alarms", "--conventions", "--markdown", file).exit_code == 0
    text = file.read_text()
    assert text.startswith("<!-- Tables by hanabi-grpo -->\n\n**")
    assert "**Alarms after step 3, raised and nearest first**" in text
    assert "what a hint means" in text


def blind_rows(num_steps: int) -> list[dict[str, Any]]:
    """Return rows of a run whose players turn to blind play; the rest is healthy noise."""
    generator = random.Random(7)
    rows = []
    for step in range(1, num_steps + 1):
        row: dict[str, Any] = {
            "step": step,
            "games": 64.0,
            "score/laptop": 1.0 + 0.1 * generator.random(),
            "games/laptop": 64.0,
        }
        for player in (0, 1):
            row[f"player_{player}/blind_share"] = min(1.0, step / 40)
            row[f"player_{player}/entropy_estimate"] = 0.5 + 0.05 * generator.random()
        rows.append(row)
    return rows


def test_a_collapsed_run_says_what_happened_when_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    whole_lines = "".join(json.dumps(row) + "\n" for row in blind_rows(60))
    (tmp_path / "metrics.jsonl").write_text(whole_lines + '{"step": 61, "ga')
    answer = report(tmp_path, "--alarms")
    assert answer.exit_code == 0, answer.output
    lines = answer.output.splitlines()
    raised = "blind_play (player_0) since step 37, blind_play (player_1) since step 37"
    assert lines[1].startswith(f"alarms: {raised}")
    changes = [line for line in lines if line.startswith("step ")]
    reason = "blind_play: player_0: share of moves: play the oldest card is"
    assert changes[0].startswith(f"step 37: {reason}")
    assert max(map(len, lines)) <= 120
    table = [line.split("│")[1:-1] for line in lines if line.startswith("│")]
    cells = [(row[0].strip(), row[-1].strip()) for row in table]
    assert cells[:2] == [("blind_play", "since 37"), ("blind_play", "since 37")]
    assert {state for _, state in cells[2:]} == {"quiet"}


def whole_run(folder: Path) -> Path:
    """Write a run with games, times, a raised alarm, incidents and an evaluation."""
    tracked_run(folder, steps=12, MAX_STEPS="40")
    figures = {
        "time/rollout": 2.0,
        "time/train": 1.0,
        "step_time": 3.1,
        "player_0/blind_share": 0.95,
    }
    for step in range(13, 41):
        add_row(folder, step, **figures)
    IncidentLog(folder).record("server_gone", f"{folder.resolve()}/x: lost", step=3)
    write_result(folder / "random.json", evaluate_scripted("random", LAPTOP, 20))
    return folder


def test_the_page_has_curves_evaluations_replays_alarms_incidents_and_settings_and_nothing_private(
    tmp_path: Path,
) -> None:
    run = whole_run(tmp_path / "my-run")
    settings = json.loads((run / "settings.json").read_text())
    settings["settings"] |= {
        "MODEL": "/home/somebody/models/tiny",
        "HANABI_PARTNERS": "iggi,/home/somebody/other",
        "VLLM_SERVER_HOST": "10.1.2.3",
    }
    (run / "settings.json").write_text(json.dumps(settings))
    page, notes = run_page(read_report(run))
    reader = Reader(page)
    text = " ".join(reader.text.split())
    for part in (
        "Run my-run",
        "40 of 40",
        "server_gone my-run/x: lost",
        "HANABI_ADVANTAGEturn",
        "…/tiny",
        "iggi,…/other",
        "blind_playplayer_0",
    ):
        assert part in text, part
    # The score; return, blind play and the seconds; illegal replies behind "more".
    assert reader.tags.count("figure") == 5
    assert reader.tags.count("img") == 5
    assert "1 more figures" in text
    assert notes == []
    assert "<iframe" in page
    for private in (SECRET, "somebody", "10.1.2.3", str(tmp_path)):
        assert private not in page


def test_the_page_names_no_folder_or_machine_behind_a_players_name(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "my-run")
    settings = json.loads((run / "settings.json").read_text())
    settings["settings"] |= {
        "MODEL": "player_0=/home/somebody/models/tiny,player_1=/home/somebody/models/small",
        "HANABI_PARTNERS": "player_1=/home/somebody/runs/other:player_0*2,iggi",
        "HANABI_PARTNER_URLS": "big=http://gpu7.somebody.org:8001/v1#org/model",
        "HANABI_EVAL_LINEUPS": "served;~/runs/other,served",
        "HANABI_EVAL_BEST": "laptop:/home/somebody/runs/other,served",
        "DATASET": "file:/home/somebody/tasks.jsonl",
        "HANABI_TEACHER": "hf:org/teacher",
    }
    (run / "settings.json").write_text(json.dumps(settings))
    page, _ = run_page(read_report(run))
    text = " ".join(Reader(page).text.split())
    for part in (
        "modeltiny, small",
        "MODELplayer_0=…/tiny,player_1=…/small",
        "HANABI_PARTNERSplayer_1=…/other:player_0*2,iggi",
        "HANABI_EVAL_LINEUPSserved;…/other,served",
        "HANABI_EVAL_BESTlaptop:…/other,served",
        "DATASETfile:…/tasks.jsonl",
        "HANABI_TEACHERhf:org/teacher",
    ):
        assert part in text, part
    for private in ("somebody", "gpu7", "runs/"):
        assert private not in page


def test_a_run_of_one_step_and_nothing_else_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "games": 4.0, "score/mean": 1.0}\n')
    page, notes = run_page(read_report(tmp_path))
    assert notes == []
    assert "frame-src &#39;none&#39;" in page
    assert "script-src &#39;none&#39;" in page
    text = " ".join(Reader(page).text.split())
    for sentence in (
        "None in the run folder",
        "No alarm was raised.",
        "No recorded games to show.",
        "The run folder has no settings.json.",
    ):
        assert sentence in text


def test_validations_are_a_curve_a_line_and_data(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path / "run")
    rows = [
        Validated(step=0, score=1.0, se=0.25),
        Validated(step=1, score=1.9, se=0.25),
        Validated(step=2, score=1.9, se=0.25),
        Validated(step=3, score=1.4, se=0.25),
    ]
    write_validations(run, rows)
    line = "validation: best 1.900 ± 0.250 at step 1, last 1.400 ± 0.250 at step 3"
    markdown = tmp_path / "report.md"
    picture = tmp_path / "one.svg"
    page = tmp_path / "page.html"
    answer = report(run, "--markdown", markdown, "--png", picture, "--html", page)
    assert answer.exit_code == 0
    assert line in answer.output.splitlines()
    lead = next(text for text in answer.output.splitlines() if text.startswith("held-out "))
    assert markdown.read_text().splitlines()[2:5] == [lead, "", line]
    assert line in page.read_text()
    for name in ("validation 1.40", "best 1.90, step 1", "training games 1.10", "held-out tasks"):
        assert name in picture.read_text(), name
    axes = read_report(run).pictures.draw("score").axes[0]
    error_bars: Any = axes.collections[0]
    drawn = []
    for low, high in error_bars.get_segments():
        drawn.append((float(low[0]), float(low[1]), float(high[1])))
    two_errors = 0.5
    expected = [(row.step, row.score - two_errors, row.score + two_errors) for row in rows]
    assert drawn == expected


def test_several_games_are_drawn_by_their_shares_and_a_damaged_record_gets_a_note(
    tmp_path: Path,
) -> None:
    run = tracked_run(tmp_path / "run", steps=0, games=False)
    for step in (1, 2):
        add_row(run, step, **{"score/mean": 9.0, "score/normalized": 0.25 * step})
    write_validations(run, [Validated(step=0, score=0.4, se=0.1, metric="score/normalized")])
    axes = read_report(run).pictures.draw("score").axes[0]
    assert axes.get_ylabel() == "mean share of the maximum score"
    assert axes.get_ylim()[1] < 1
    (run / "validation.json").write_text("[")
    damaged = read_report(run)
    assert damaged.validation_lines == []
    assert any("validation.json: not written by a run" in note for note in damaged.notes)


def test_curves_of_validations_are_named_and_drawn_apart(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path / "run")
    rows = []
    for step, own, kuhn in ((0, 1.0, -0.5), (2, 1.5, 0.25)):
        rows.append(Validated(step=step, score=own, se=0.25))
        rows.append(
            Validated(step=step, score=kuhn, se=0.1, curve="kuhn:served,cfr", chooses=False)
        )
    write_validations(run, rows)
    lines = [
        "validation training, chooses the best: best 1.500 ± 0.250 at step 2, last 1.500 ± 0.250 "
        "at step 2",
        "validation kuhn:served,cfr: best 0.250 ± 0.100 at step 2, last 0.250 ± 0.100 at step 2",
    ]
    folder = tmp_path / "pictures"
    folder.mkdir()
    page = tmp_path / "page.html"
    markdown = tmp_path / "report.md"
    answer = report(run, "--png", folder, "--html", page, "--markdown", markdown)
    assert answer.exit_code == 0
    assert [line for line in answer.output.splitlines() if line.startswith("validation ")] == lines
    assert [line for line in markdown.read_text().splitlines() if line in lines] == lines
    assert all(line in page.read_text() for line in lines)
    assert "validation, a panel for each curve" in page.read_text()
    assert (folder / "validation.png").read_bytes().startswith(PNG_SIGNATURE)

    pictures = read_report(run).pictures
    upper, lower = pictures.draw("validation").axes
    drawn = {}
    for axes in (upper, lower):
        curves: list[Any] = axes.get_legend_handles_labels()[0]
        [curve] = [each for each in curves if not each.get_label().startswith("best")]
        drawn[curve.get_label()] = [float(height) for height in curve.get_ydata()]
    assert drawn == {"training 1.50": [1.0, 1.5], "kuhn:served,cfr 0.25": [-0.5, 0.25]}
    # The chart of training's scores has its own curve alone.
    score_legend = pictures.draw("score").axes[0].get_legend()
    assert score_legend is not None
    texts = [text.get_text() for text in score_legend.get_texts()]
    assert "validation 1.50" in texts
    assert not any("kuhn" in text for text in texts)


def test_measured_beliefs_have_a_chart_of_their_own(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for step in (1, 2, 3):
        metrics = {"score/mean": 1.0}
        if step != 2:
            # Measured at every other step; player_1's model was not asked.
            metrics["player_0/belief_bits_rules"] = 1.5
            metrics["player_0/belief_bits_exact"] = 1.25
            metrics["player_0/belief_bits"] = 4.0 / step
            metrics["player_1/belief_bits_rules"] = 0.5
            metrics["player_1/belief_bits_exact"] = 0.25
        add_row(run, step, **metrics)
    page = tmp_path / "page.html"
    answer = report(run, "--html", page)
    assert answer.exit_code == 0, answer.output
    assert "beliefs about hidden cards, bits per card" in page.read_text()
    pictures = read_report(run).pictures
    assert pictures.names == (*PICTURES, "beliefs")
    first, second = pictures.draw("beliefs").axes
    lines: list[Any] = list(first.get_lines())
    assert [list(line.get_xdata()) for line in lines] == [[1, 3]] * 3
    assert [list(line.get_ydata()) for line in lines][2] == [4.0, 4.0 / 3]
    assert len(second.get_lines()) == 2


def test_a_run_of_one_curve_has_no_chart_of_curves(tmp_path: Path) -> None:
    run = evaluated_run(tmp_path / "run")
    write_validations(run, [Validated(step=0, score=1.0, se=0.25)])
    assert read_report(run).pictures.names == PICTURES
    with pytest.raises(SettingsError, match="several curves; add some with HANABI_EVAL_LINEUPS"):
        read_report(run).pictures.draw("validation")


def test_evaluations_of_other_tasks_get_tables_of_their_own_and_damaged_ones_a_note(
    tmp_path: Path,
) -> None:
    run = tracked_run(tmp_path / "train", steps=1, games=False)
    hint_bot = evaluate_scripted("hint-bot", LAPTOP, 10)
    data = result_to_json(hint_bot)
    references = [result_to_json(evaluate_scripted("random", LAPTOP, 10))]
    write_document(run / "greedy.json", {"results": [data], "references": references})
    write_result(run / "evaluations" / "short.json", evaluate_scripted("hint-bot", LAPTOP, 6))
    write_result(tmp_path / "after.json", hint_bot)
    # It is there by a name already.
    write_result(run / "evaluations" / "kept.json", hint_bot)
    write_document(run / "bad0.json", {**data, "scores": [1.0]})
    write_document(run / "bad1.json", {**data, "scores": None})
    write_document(run / "bad2.json", {**data, "orders": []})
    (run / "torn.json").write_text('{"results": [')
    run_report = read_report(run)
    ten_tasks, six_tasks = run_report.evaluations
    assert [result.label for result in ten_tasks.results] == ["greedy: hint-bot", "after: hint-bot"]
    assert [result.label for result in ten_tasks.references] == ["random"]
    assert [result.label for result in six_tasks.results] == ["short: hint-bot"]
    files = [note.partition(":")[0] for note in run_report.notes]
    assert files == ["bad0.json", "bad1.json", "bad2.json", "torn.json"]
    titles = [sheet.title for sheet in run_report.sheets if "tasks of suite" in sheet.title]
    assert len(titles) == 2
    assert "10 tasks" in titles[0]
    assert "6 tasks" in titles[1]


def test_evaluations_by_other_rules_do_not_lead_whatever_their_number_of_tasks(
    tmp_path: Path,
) -> None:
    run = tracked_run(tmp_path / "train", steps=1, games=False)
    short_games = registry.setup("hanabi", {"preset": "laptop", "max_turns": 3})
    write_result(run / "own.json", evaluate_scripted("hint-bot", LAPTOP, 10))
    write_result(run / "short.json", evaluate_scripted("hint-bot", short_games, 40))
    own, short = read_report(run).evaluations
    assert own.results[0].label == "own: hint-bot"
    assert own.is_only_game
    assert not short.is_own_game


def test_a_run_knows_that_its_players_are_rivals_also_from_its_dataset() -> None:
    assert has_rivals({"HANABI_ENV": "kuhn_poker", "HANABI_PRESET": "kuhn_poker"}, [])
    assert has_rivals({"HANABI_ENV": "kuhn_poker", "DATASET": "kuhn.jsonl"}, ["kuhn_poker"])
    assert has_rivals({"DATASET": "games.jsonl"}, ["laptop", "kuhn_poker"])
    assert not has_rivals({"DATASET": "games.jsonl"}, ["laptop", "mini"])


def test_references_play_the_same_tasks_and_count_through() -> None:
    done: list[int] = []
    result = evaluate_scripted("iggi", LAPTOP, 60, "split-eval")
    references = reference_results(result, progress=done.append)
    assert [reference.label for reference in references] == ["random", "blind", "hint-bot"]
    for reference in references:
        assert reference.seeds == result.seeds
        assert reference.starts == result.starts
        assert reference.suite == "split-eval"
    assert done == sorted(done)
    assert done[-1] == 3 * 60
    num_starts = result.estimate.num_starts
    tasks = f"60 tasks ({num_starts} different starts) of suite split-eval"
    assert tasks in game_title(result)


def test_up_to_four_lineups_are_all_compared_and_more_with_the_first() -> None:
    result = evaluate_scripted("iggi", LAPTOP, 4)
    num_pairs = {count: len(compared_pairs([result] * count)) for count in (1, 2, 4, 5, 9)}
    assert num_pairs == {1: 0, 2: 1, 4: 6, 5: 4, 9: 8}


def test_every_table_of_a_large_evaluation_fits_120_columns() -> None:
    setup = Setup(HANABI, EnvConfig(preset="full", players=5))
    text = "iggi,piers,outer,flawed,hint-bot"
    mixed = dataclasses.replace(
        evaluate_lineup(parse_lineup(text, 5), setup, 6),
        label="a-rather-long-run-name/checkpoint-100000:player_1",
        temperature=0.7,
    )
    team = dataclasses.replace(evaluate_scripted("iggi", setup, 6), label=text)
    sheets = evaluation_sheets([mixed, team, mixed], reference_results(mixed, ["blind"]))
    assert [sheet.columns[0] for sheet in sheets] == [
        "lineup",
        "lineup",
        "paired difference",
        "lineup",
    ]
    second_order = sheets[-1].groups[0][1]
    assert second_order[:2] == ("", "piers, outer, flawed, hint-bot, iggi")
    printed = shown(*sheets)
    assert max(map(len, printed.splitlines())) <= 120
    assert "…" not in printed, "no figure is cut off"


def rows_with_a_peak(num_steps: int, num_players: int) -> list[dict[str, Any]]:
    """Return rows whose last step alone lies far above the others."""
    rows = []
    for step in range(1, num_steps + 1):
        row: dict[str, Any] = {
            "step": step,
            "games": 64.0,
            "score/mean": 2.8 if step == num_steps else 1.0,
            "illegal_per_game": 0.1,
            "unparsable_per_game": 0.2,
            "time/rollout": 2.0,
            "time/train": 1.0,
        }
        for player in range(num_players):
            row[f"player_{player}/blind_share"] = 0.1 * player + 0.001 * step
        rows.append(row)
    return rows


@pytest.mark.parametrize(("num_steps", "num_players"), [(2, 5), (700, 2)])
def test_every_picture_of_short_and_long_runs_is_a_png_and_equal_runs_give_equal_files(
    tmp_path: Path, num_steps: int, num_players: int
) -> None:
    pictures = RunPictures(title="$x_1$ <b> ünïcode", rows=rows_with_a_peak(num_steps, num_players))
    for folder in ("a", "b"):
        files = {name: tmp_path / folder / f"{name}.png" for name in PICTURES}
        assert pictures.save_all(files) == {}
    for name in PICTURES:
        content = (tmp_path / "a" / f"{name}.png").read_bytes()
        width, height = struct.unpack(">II", content[16:24])
        assert content.startswith(PNG_SIGNATURE)
        assert width > 300
        assert height > 200
        assert content == (tmp_path / "b" / f"{name}.png").read_bytes()
