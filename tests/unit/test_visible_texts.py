"""Texts of run folders and of the network on terminals, in logs and on pages show themselves."""

import base64
import io
import json
import logging
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.commands.console import print_json
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SessionError
from hanabi_grpo.logs import LineRing, set_up_logging
from hanabi_grpo.report.charts.canvas import data_address
from hanabi_grpo.report.charts.run import small_figure
from hanabi_grpo.report.page import render
from hanabi_grpo.rollout.recordings import recording_to_json
from hanabi_grpo.runs.evaluation_result import result_to_json
from hanabi_grpo.runs.run_folder import run_identity
from hanabi_grpo.server.sessions import Ownership
from hanabi_grpo.terminal import VisibleConsole
from hanabi_grpo.texts import is_visible, visible, visible_json, visible_line
from store_parts import A, B, wanted
from tracked_runs import add_row, scripted_games, tracked_run
from training_runs import LAPTOP, evaluate_scripted

EVIL = "a\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp\u2066\u200b\u2028\u2029\x7f\x00\ud800 b"
"""Escapes of both kinds, turns of direction, no width, breaks of lines, a lone surrogate."""
NAME = EVIL.replace("\x00", "").replace("\ud800", "")
"""The same as a file's name may be."""
hostile = st.text(
    st.one_of(
        st.characters(categories=("Cc", "Cf", "Zl", "Zp", "Cs")),
        st.sampled_from("ab é😀\n\t\u034f\u3164[/red]"),
    ),
    max_size=12,
)


def invisible_characters(text: str) -> set[str]:
    """Return the characters that do more than show themselves, by Unicode's own tables."""
    found = set()
    for character in text:
        category = unicodedata.category(character)
        is_plain = character in "\n\t" or category not in ("Cc", "Cf", "Zl", "Zp", "Cs")
        if not is_plain or character in "\u034f\u115f\u1160\u3164\uffa0":
            found.add(character)
    return found


def printed(*renderables: Any) -> str:
    """Return what a terminal without colours is sent."""
    file = io.StringIO()
    console = VisibleConsole(file=file, width=100)
    for renderable in renderables:
        console.print(renderable)
    return file.getvalue()


@given(hostile)
def test_no_character_survives_that_does_more_than_show_itself(text: str) -> None:
    shown = visible(text)
    assert invisible_characters(shown) == set()
    assert visible(shown) == shown
    line = visible_line(text)
    assert invisible_characters(line) | ({"\n", "\t"} & set(line)) == set()
    assert is_visible(line)
    assert is_visible(text) == (line == text)


def test_what_people_write_stays_as_it_is() -> None:
    for text in ("Play 0\n\tyes", "שלום 😀 é ❤️", "│█▁ → ∀", "日本語", ""):
        assert visible(text) == text
    assert visible_line("a\n\tb") == "a␊␉b"


@settings(max_examples=40)
@given(hostile)
def test_a_console_prints_no_such_character_whatever_is_printed(text: str) -> None:
    table = Table(text, title=text, caption=text)
    table.add_row(text)
    table.add_row(Text(text, style="bold"))
    output = printed(text, Text(text), table, Panel(text), Panel(table), [text])
    assert invisible_characters(output) == set()


def test_a_console_keeps_its_own_styles_and_takes_brackets_for_text() -> None:
    file = io.StringIO()
    VisibleConsole(file=file, force_terminal=True, color_system="standard").print(
        "[/no] [red]a\x1b[2J", style="red"
    )
    assert file.getvalue() == "\x1b[31m[/no] [red]a␛[2J\x1b[0m\n"


@settings(max_examples=40)
@given(st.recursive(hostile, lambda inner: st.lists(inner) | st.dictionaries(hostile, inner)))
def test_json_for_a_terminal_is_the_same_document_without_such_characters(document: Any) -> None:
    text = json.dumps(document, ensure_ascii=False, indent=2)
    shown = visible_json(text)
    assert invisible_characters(shown) == set()
    # Escaped halves of a pair become one character, as they do in any JSON.
    assert json.loads(shown) == json.loads(json.dumps(document))


def test_documents_of_commands_are_printed_that_way(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"label": "é\x9b\u202e\U000e0041\x7f"})
    assert capsys.readouterr().out == '{"label": "é\\u009b\\u202e\\udb40\\udc41\\u007f"}\n'


@settings(max_examples=40)
@given(hostile)
def test_a_page_has_no_such_character(text: str) -> None:
    page = render(
        "run.html.j2",
        frame="",
        title=text,
        lead=text,
        validations=[text],
        facts=[(text, text)],
        score={"title": text, "address": "data:,", "words": text},
        curve_caption=text,
        first=[{"title": text, "address": "data:,", "words": text}],
        more=[],
        sheets=[],
        alarms={"groups": []},
        changes=[(1, True, text)],
        counts=[(text, 1)],
        incidents=[(text, text, 1, text)],
        settings=[(text, text)],
        notes=[text],
    )
    assert invisible_characters(unescape(page)) == set()


@settings(max_examples=20)
@given(hostile)
def test_the_data_of_a_pages_script_have_no_such_character(text: str) -> None:
    page = render(
        "replay.html.j2",
        script="replay.js",
        title=text,
        env=text,
        has_versions=False,
        games=[],
        data={"players": [text], text: {"prompt": text}},
        estimator=text,
    )
    match = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    data = json.dumps(json.loads(match[1]), ensure_ascii=False)
    assert invisible_characters(unescape(page) + data) == set()


def test_a_picture_shows_names_as_text_and_no_formula() -> None:
    lines = {f"{EVIL} $\\frac{{$": ([1, 2], [0.0, 1.0]), "b": ([1, 2], [1.0, 0.0])}
    address = data_address(small_figure(lines))
    svg = base64.b64decode(address.partition(",")[2]).decode()
    assert invisible_characters(unescape(svg)) == set()
    assert "$\\frac{$" in svg
    assert "␛[2J" in svg


def test_a_log_line_of_a_terminal_a_file_and_a_ring_has_no_such_character(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = logging.getLogger("hanabi_grpo")
    handlers, level, propagate = list(ours.handlers), ours.level, ours.propagate
    ring = LineRing()
    try:
        set_up_logging(file=tmp_path / "train.log", ring=ring)
        logging.getLogger("hanabi_grpo.test").info("session: now for %s", EVIL)
    finally:
        ours.handlers[:] = handlers
        ours.setLevel(level)
        ours.propagate = propagate
    _, lines = ring.since(0)
    written = (tmp_path / "train.log").read_text()
    for text in (*lines, written, capsys.readouterr().out):
        assert "session: now for a␛[2J␛]0;owned␇[U+009B]31m[U+202E]gnp" in text
        assert invisible_characters(text) == set()


def hostile_run(folder: Path) -> Path:
    """Write a run in which every text that can be chosen is hostile."""
    run = tracked_run(folder / NAME, steps=2, games=False)
    for step in (3, 4):
        add_row(run, step, **{EVIL: 1.0, f"player_0/{EVIL}": 2.0, f"player_1/{EVIL}": 3.0})
    with (run / "incidents.jsonl").open("a") as file:
        file.write(json.dumps({"kind": EVIL, "message": EVIL, "step": 2}) + "\n")
    document = json.loads((run / "settings.json").read_text())
    document["settings"].update({"MODEL": EVIL, "HANABI_PRESET": EVIL, EVIL: EVIL})
    (run / "settings.json").write_text(json.dumps(document))
    (run / "validation.json").write_text(
        json.dumps([{"step": 1, "score": 1.0, "se": 0.1, "metric": EVIL, "curve": EVIL}])
    )
    evaluation = result_to_json(evaluate_scripted("iggi", LAPTOP, 4))
    evaluation |= {"label": EVIL, "lineup": EVIL, "preset": EVIL, "suite": EVIL}
    evaluation["figures"][EVIL] = 1.0
    (run / "evaluation.json").write_text(json.dumps({"results": [evaluation]}))
    recordings = []
    for number, episode in enumerate(scripted_games("random", 0, 0, 1)):
        turns = tuple(replace(turn, reply=EVIL, prompt=EVIL) for turn in episode.turns)
        result = {**episode.result, EVIL: 1.0}
        recordings.append(
            Recording(
                episode=replace(episode, turns=turns, result=result),
                number=number,
                source="step_000004",
                names=(NAME, "b"),
            )
        )
    (run / "episodes").mkdir()
    # Lone surrogates can be written as escapes only.
    lines = [json.dumps(recording_to_json(recording)) for recording in recordings]
    (run / "episodes/step_000004.jsonl").write_text("\n".join(lines) + "\n")
    return run


def pictures_of(page: str) -> Iterable[str]:
    """Return what the data: addresses of a page hold, pages within it too."""
    for encoded in re.findall(r"data:[a-z+/]+(?:;charset=utf-8)?;base64,([A-Za-z0-9+/=]+)", page):
        inner = base64.b64decode(encoded).decode()
        yield inner
        yield from pictures_of(inner)


def test_no_command_shows_a_character_of_a_run_folder_that_does_more_than_show_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Titles are looked for as they are, not broken into lines.
    monkeypatch.setenv("COLUMNS", "200")
    run = hostile_run(tmp_path)
    other = tracked_run(tmp_path / "other", steps=4, games=False)
    page = tmp_path / "page.html"
    tables = tmp_path / "tables.md"
    commands = {
        "watch": ["watch", run, "--once"],
        "report": ["report", run, "--alarms", "--html", page, "--markdown", tables],
        "view": ["view", run],
        "one game": ["view", run, "--game", "0", "--prompts"],
        "as a page": ["view", run, "--html", tmp_path / "games.html", "--prompts"],
        "compare": ["compare", f"a={run}", f"b={other}"],
        "error": ["view", run, "--game", "99"],
        "nothing": ["evaluate", run / "none"],
    }
    for name, command in commands.items():
        result = CliRunner().invoke(app, [str(part) for part in command])
        assert result.exception is None or isinstance(result.exception, SystemExit), name
        assert result.output, name
        assert invisible_characters(result.output) == set(), name
    assert "step_000004.jsonl of a␛[2J" in CliRunner().invoke(app, ["view", str(run)]).output
    for path in (page, tmp_path / "games.html"):
        content = path.read_text()
        for text in (content, *pictures_of(content)):
            assert invisible_characters(unescape(text)) == set(), path
    assert "␛[2J" in page.read_text()
    assert invisible_characters(tables.read_text()) == set()


def test_the_name_of_a_run_for_a_server_shows_what_its_folder_is_called(tmp_path: Path) -> None:
    folder = tmp_path / NAME
    folder.mkdir()
    name = run_identity(folder)
    assert is_visible(name)
    assert f"{tmp_path}/a␛[2J␛]0;owned␇[U+009B]31m[U+202E]gnp" in name


def test_a_strangers_name_in_an_error_shows_itself() -> None:
    ownership = Ownership(60.0)
    ownership.open(wanted("run", A))
    with pytest.raises(SessionError) as caught:
        ownership.check({"x-run-id": "b%1B%5B2J", "x-trainer-id": B})
    assert str(caught.value).startswith("run b␛[2J is not the one")
