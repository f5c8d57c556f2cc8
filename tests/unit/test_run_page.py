"""`hanabi-grpo chart` and `hanabi-grpo report-page`: pictures and one page of a run."""

import base64
import dataclasses
import hashlib
import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.evaluation.evaluate import evaluate_scripted
from hanabi_grpo.report.run_views.curves import area_chart, line_chart, nice_ticks, tick_labels
from hanabi_grpo.report.run_views.evaluations import evaluation_tables, evaluations_by_deals, read_evaluations
from hanabi_grpo.report.run_views.page import run_page
from hanabi_grpo.runs.evaluation_result import result_to_json, write_result
from hanabi_grpo.runs.incidents import IncidentLog
from pages import Reader
from tracked_runs import SECRET, add_row, tracked_run

RUNNER = CliRunner()
LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)> {{ 7*7 }} \x1b\u202e'\"</style></h2>"


def whole_run(folder: Path, steps: int = 12) -> Path:
    """A run with games, times, a raised alarm, incidents and two evaluations."""
    tracked_run(folder, steps=steps, MAX_STEPS="40")
    for step in range(steps + 1, 41):
        timed = {"time/rollout": 2.0, "time/train": 1.0, "step_time": 3.1, "score/se": 0.1}
        add_row(folder, step, **timed, **{"player_0/blind_share": 0.95})
    log = IncidentLog(folder)
    log.record("server_gone", f"{folder.resolve()}/x: lost", step=3)
    for name in ("random", "hint-bot"):
        write_result(folder / f"{name}.json", evaluate_scripted(name, LAPTOP, 20))
    return folder


def policy(page: str) -> str:
    return re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1].replace("&#39;", "'")  # type: ignore[index]


def digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def inner_page(page: str) -> str:
    return base64.b64decode(re.search(r"base64,([^\"]+)\"", page)[1]).decode()  # type: ignore[index]


def test_the_page_has_curves_evaluations_replays_alarms_incidents_and_settings(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "my-run")
    answer = RUNNER.invoke(app, ["report-page", str(run)])
    assert answer.exit_code == 0, answer.output
    page = (run / "report.html").read_text()
    assert answer.output.splitlines()[-1].startswith(f"wrote {run / 'report.html'} (")
    reader = Reader(page)
    text = " ".join(reader.text.split())
    assert "Hanabi run: my-run" in text and "40 of 40" in text
    assert "random − hint-bot" in text
    assert "blind_play player_0: share of moves: play the oldest card, since step" in text
    assert "server_gone my-run/x: lost" in text
    assert "HANABI_ADVANTAGEturn" in text
    # The score; return and blind play of the players; illegal replies of the team; the time.
    assert reader.tags.count("figure") == 5
    assert "6 of 6 games" in inner_page(page)


def test_nothing_but_the_pages_own_code_may_run_or_be_fetched(tmp_path: Path) -> None:
    page, _ = run_page(whole_run(tmp_path / "run"))
    reader = Reader(page)
    allowed = policy(page)
    assert allowed.startswith("default-src 'none';") and "unsafe" not in allowed and "http" not in allowed
    assert "frame-src data:" in allowed
    inner = inner_page(page)
    codes = re.findall(r"<(style|script)>(.*?)</\1>", page + inner, re.DOTALL)
    assert [kind for kind, _ in codes] == ["style", "style", "script"]
    assert all(digest(code) in allowed for _, code in codes)
    assert "script" not in reader.tags
    assert not [name for name, _ in reader.attributes if name.startswith("on") or name == "style"]
    assert not re.search(r"https?://", page)


def test_secrets_and_places_of_the_machine_are_not_on_the_page(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "run")
    settings = json.loads((run / "settings.json").read_text())
    settings["settings"] |= {"MODEL": "/home/somebody/models/tiny", "HANABI_PARTNERS": "iggi,/home/somebody/other",
                             "VLLM_SERVER_HOST": "10.1.2.3"}  # fmt: skip
    (run / "settings.json").write_text(json.dumps(settings))
    page, _ = run_page(run)
    assert "…/tiny" in page and "iggi,…/other" in page
    for private in (SECRET, "somebody", "10.1.2.3", str(tmp_path)):
        assert private not in page + inner_page(page)


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "a <b> & run")
    IncidentLog(run).record(NASTY, NASTY)
    settings = json.loads((run / "settings.json").read_text())
    settings["settings"] |= {"HANABI_PRESET": NASTY, NASTY: NASTY}
    (run / "settings.json").write_text(json.dumps(settings))
    add_row(run, 41, **{"games/" + NASTY: 1.0, "score/" + NASTY: 1.0})
    result = evaluate_scripted("random", LAPTOP, 4)
    (run / "evil.json").write_text(json.dumps({**result_to_json(result), "label": NASTY, "preset": NASTY}))
    reader = Reader(run_page(run)[0])
    assert not set(reader.tags) & {"script", "img", "b:x"}
    assert "<script>alert(1)</script>" in reader.text and "{{ 7*7 }}" in reader.text
    assert not re.search("[\x00\x1b\u202e]", reader.text)


def test_a_run_of_one_step_and_nothing_else_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "games": 4.0, "score/mean": 1.0}\n')
    page, notes = run_page(tmp_path)
    text = " ".join(Reader(page).text.split())
    assert notes == []
    for words in ("None in the run folder", "None is raised, and none was.", "No recorded game is shown.",
                  "The run folder has no settings.json."):  # fmt: skip
        assert words in text
    assert "frame-src 'none'" in policy(page) and "script-src 'none'" in policy(page)


def test_games_that_do_not_replay_are_said_and_the_rest_is_there(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "run")
    file = next((run / "episodes").iterdir())
    file.write_text('{"a": 1}\n')
    page, notes = run_page(run)
    assert len(notes) == 1 and "preset: Field required" in notes[0]
    assert "preset: Field required" in page and "<figure" in page
    assert str(tmp_path) not in page


def test_evaluations_of_other_deals_get_tables_of_their_own_and_damaged_ones_a_note(tmp_path: Path) -> None:
    run = tracked_run(tmp_path / "train", steps=1, games=False)
    results = [evaluate_scripted(name, LAPTOP, 10) for name in ("hint-bot", "random")]
    several = {"results": [result_to_json(results[0])], "references": [result_to_json(results[1])]}
    (run / "greedy.json").write_text(json.dumps(several))
    (run / "evaluations").mkdir()
    write_result(run / "evaluations" / "short.json", evaluate_scripted("hint-bot", LAPTOP, 6))
    write_result(tmp_path / "after.json", results[0])
    write_result(run / "evaluations" / "kept.json", results[0])  # is there by a name already
    for number, change in enumerate(({"scores": [1.0]}, {"scores": None}, {"orders": []})):
        (run / f"bad{number}.json").write_text(json.dumps({**result_to_json(results[0]), **change}))
    (run / "torn.json").write_text('{"results": [')
    found, references, notes = read_evaluations(run)
    assert [one.label for one in found] == ["greedy: hint-bot", "after: hint-bot", "short: hint-bot"]
    assert [one.label for one in references] == ["random"]
    assert [note.partition(":")[0] for note in notes] == ["bad0.json", "bad1.json", "bad2.json"]
    groups, _ = evaluations_by_deals(run)
    sheets, _ = evaluation_tables(groups)
    titles = [sheet.title for sheet in sheets if "deals" in sheet.title and "players" in sheet.title]
    assert ["10 deals" in titles[0], "6 deals" in titles[1], len(titles)] == [True, True, 2]


def test_the_page_leads_with_what_was_gained_and_holds_it_against_the_references(tmp_path: Path) -> None:
    """Files stand in the order of their names; the page in that of the training: after − before."""
    run = tracked_run(tmp_path / "train", steps=3)
    before, after, bot = (evaluate_scripted(name, LAPTOP, 20) for name in ("random", "iggi", "hint-bot"))
    gain = f"{after.mean - before.mean:+.3f}"
    for name, result, seat in (("before", before, "base"), ("after", after, "player_0@60")):
        order = dataclasses.replace(result.orders[0], seats=(seat, seat))
        played = dataclasses.replace(result, label=name, temperature=1.0, orders=(order,))
        document = {**result_to_json(played), "references": [result_to_json(bot)]}
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    text = " ".join(Reader(run_page(run)[0]).text.split())
    assert f"score on 20 deals of eval{before.mean:.2f} → {after.mean:.2f} of 4" in text
    assert f"after − before{gain} ±" in text
    table = text[text.index("mean score ± SE") : text.index("How they play")]
    places = [table.index(name) for name in ("hint-bot", "before (T=1)", "after (T=1)", "attainable3.78–")]
    assert places == sorted(places)
    answer = RUNNER.invoke(app, ["chart", str(run)])
    assert answer.exit_code == 0, answer.output
    # Text of an SVG is drawn as paths under a comment that says it.
    picture = (run / "charts" / "score.svg").read_text()
    assert "attainable 3.78" in picture and f"hint-bot {bot.mean:.2f}" in picture


def test_the_pictures_are_png_and_svg_of_readable_size(tmp_path: Path) -> None:
    run = whole_run(tmp_path / "run")
    answer = RUNNER.invoke(app, ["chart", str(run), "--out", str(tmp_path / "new" / "pictures")])
    assert answer.exit_code == 0, answer.output
    folder = tmp_path / "new" / "pictures"
    names = {f"{name}.{kind}" for name in ("score", "players", "phases") for kind in ("png", "svg")} | {"dynamics.png"}
    assert {path.name for path in folder.iterdir()} == names
    for path in folder.glob("*.png"):
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        assert (path.read_bytes()[:8], width > 300, height > 200) == (b"\x89PNG\r\n\x1a\n", True, True)
    for path in folder.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_pictures_without_figures_are_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "games": 4.0, "score/mean": 1.0}\n')
    answer = RUNNER.invoke(app, ["chart", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    assert {path.name for path in (tmp_path / "charts").iterdir()} == {"score.png", "score.svg"}
    for name in ("players", "phases", "dynamics"):
        assert f"no picture {name}: " in answer.output


@pytest.mark.parametrize("command", ["chart", "report-page"])
@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such folder"), ("", "holds no step"), ('{"step": 1', "holds no step"), ("[]\n", "holds no step")],
)
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, command: str, content: str | None, message: str) -> None:
    run = tmp_path / "run"
    if content is not None:
        run.mkdir()
        (run / "metrics.jsonl").write_text(content)
    answer = RUNNER.invoke(app, [command, str(run)])
    assert (answer.exit_code, message in answer.output.replace("\n", " ")) == (2, True)


@pytest.mark.parametrize("command", ["chart", "report-page"])
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, command: str) -> None:
    run = tracked_run(tmp_path / "run", steps=2, games=False)
    (tmp_path / "file").write_text("")
    answer = RUNNER.invoke(app, [command, str(run), "--out", str(tmp_path / "file" / "x")])
    assert (answer.exit_code, "--out" in answer.output) == (2, True)


def test_round_ticks_lie_inside_and_are_told_apart() -> None:
    assert nice_ticks(2.48, 3.21, 5) == [2.6, 2.8, 3.0, 3.2]
    assert nice_ticks(0, 40, 5) == [0, 10, 20, 30, 40]
    assert tick_labels([3.0, 3.005]) == [(3.0, "3.000"), (3.005, "3.005")]
    assert tick_labels([3e-7, 4e-7]) == [(3e-7, "3.0e-07"), (4e-7, "4.0e-07")]


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 10))
def test_ticks_are_few_and_inside_for_any_range(low: float, span: float, most: int) -> None:
    ticks = nice_ticks(low, low + span, most)
    assert len(ticks) <= most + 1
    assert all(low - 1e-6 * span - 1e-9 <= tick <= low + span * (1 + 1e-6) + 1e-9 for tick in ticks)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=700))
def test_a_curve_stays_inside_its_picture_and_short(values: list[float]) -> None:
    chart = line_chart("x", {"a": (list(range(len(values))), values)})
    assert chart is not None
    for shape in chart.lines:
        points = [tuple(map(float, point.split(","))) for point in shape.points.split(" ")]
        assert len(points) <= 300
        assert all(0 <= x <= chart.width and 0 <= y <= chart.height for x, y in points)


def test_nothing_to_draw_is_no_chart() -> None:
    assert line_chart("x", {"a": ([], [])}) is None
    assert area_chart("x", [], {}) is None
    assert area_chart("x", [1, 2], {"a": [0.0, 0.0]}) is None


def test_watching_and_pages_need_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys\nfrom hanabi_grpo.report.run_views import page, screen, server_screen\n"
        "print([name for name in ('torch', 'matplotlib', 'wandb', 'transformers') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
