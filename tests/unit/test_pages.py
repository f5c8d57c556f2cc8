"""Every page is one file that fetches nothing, runs only its own code and escapes texts."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adhoc_parts import adhoc_summary
from boards import ALL_BOARDS
from crossplay_parts import summary_of
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.replays.timeline import Timeline, make_timeline
from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.report.adhoc_page import render_adhoc
from hanabi_grpo.report.charts.canvas import data_address
from hanabi_grpo.report.charts.run import small_figure
from hanabi_grpo.report.cross_play_page import render_cross_play
from hanabi_grpo.report.games import games_page
from hanabi_grpo.report.hanabi import replay_page
from hanabi_grpo.report.hanabi.replay_page import board_data
from hanabi_grpo.report.run_page import run_page
from hanabi_grpo.report.run_report import read_report
from hanabi_grpo.runs.evaluation_result import result_to_json
from hanabi_grpo.runs.history import IncidentLog
from hanabi_grpo.types import Episode, ReplyKind
from made_games import play_episodes_sync
from pages import Reader
from tracked_runs import add_row, scripted_games, tracked_run
from training_runs import evaluate_scripted

NASTY = (
    "</script></style></td></li></h2><script>alert(1)</script><!-- <img src=x onerror=alert(2)> "
    "{{ 7*7 }} &lt;"
    "\x00\x1b\u202eabc\ud800]]>'\"\u2028$x_1$"
)
CONTROL_CHARACTERS = {"\x00", "\x1b", "\u202e", "\u2028", "\ud800"}
"""Those of `NASTY`, which no page may hold."""
SAMPLES = Path(__file__).resolve().parents[2] / "docs" / "samples"
INLINE_CODE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


def run_with(folder: Path, text: str) -> str:
    """Return a run's page on which settings, incidents, boards and an evaluation bear this text."""
    run = tracked_run(folder / "run", steps=12, MAX_STEPS="40")
    # A file of UTF-8 holds no lone surrogate.
    text = text.encode("utf-8", "replace").decode()
    IncidentLog(run).record(text, text)
    settings = json.loads((run / "settings.json").read_text())
    settings["settings"]["HANABI_PRESET"] = text
    settings["settings"][text] = text
    (run / "settings.json").write_text(json.dumps(settings))
    add_row(run, 41, **{f"games/{text}": 1.0, f"score/{text}": 1.0})
    result = evaluate_scripted("random", registry.setup("hanabi", {"preset": "laptop"}), 4)
    (run / "evil.json").write_text(json.dumps({**result_to_json(result), "label": text}))
    page, _ = run_page(read_report(run))
    return page


def games_with(text: str, episodes: list[Episode]) -> str:
    """Return the page of games whose replies, prompts and players bear this text."""
    recordings = []
    for number, episode in enumerate(episodes):
        turns = []
        for turn in episode.turns:
            turns.append(replace(turn, reply=f"<think>{text}</think>{text}", prompt=text))
        recording = Recording(
            episode=replace(episode, turns=tuple(turns)),
            number=number,
            names=(text, "</script>"),
        )
        recordings.append(recording)
    return games_page(recordings, recordings, title=text, settings={}, prompts=True)


def hanabi_games_with(folder: Path, text: str) -> str:
    """Return the page of games that a script draws."""
    return games_with(text, scripted_games("", 0, 0, noise=0.3))


def kuhn_games_with(folder: Path, text: str) -> str:
    """Return the page of games that are shown as text."""
    setup = registry.setup("kuhn", {"preset": "kuhn"})
    scripts = [make_script(setup, "random")] * 2
    return games_with(text, play_episodes_sync(setup, scripts, "train", range(3)))


def cross_play_with(folder: Path, text: str) -> str:
    """Return the page of a cross-play with an entry of this name."""
    summary = summary_of(folder, "hint-bot", "random", tasks=4)
    first, *others = summary.plan.entries
    entries = (replace(first, label=text), *others)
    return render_cross_play(replace(summary, plan=replace(summary.plan, entries=entries)))


def adhoc_with(folder: Path, text: str) -> str:
    """Return the page of an ad-hoc evaluation whose candidate and partner have this name."""
    summary = adhoc_summary(folder, "iggi", pool=("blind",), tasks=4)
    adhoc = summary.plan.adhoc
    named = replace(
        adhoc,
        candidates=tuple(replace(entry, label=text) for entry in adhoc.candidates),
        partners=tuple(replace(entry, label=text) for entry in adhoc.partners),
    )
    return render_adhoc(replace(summary, plan=replace(summary.plan, adhoc=named)))


PAGES: dict[str, Callable[[Path, str], str]] = {
    "run": run_with,
    "games": hanabi_games_with,
    "games as text": kuhn_games_with,
    "cross-play": cross_play_with,
    "adhoc": adhoc_with,
}


@pytest.fixture(scope="module", params=PAGES)
def page_with(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    # A folder for each text: what was played in one would be read again.
    return lambda text: PAGES[request.param](tmp_path_factory.mktemp("page"), text)


def frame_of(page: str) -> str:
    """Return the page in the frame of another one; "" where there is none."""
    frame = re.search(r'<iframe[^>]+base64,([^"]+)"', page)
    return base64.b64decode(frame[1]).decode() if frame else ""


def test_a_hostile_text_stays_a_text(page_with: Callable[[str], str]) -> None:
    clean = Reader(page_with("a plain name that is as long as others"))
    hostile_page = page_with(NASTY)
    hostile = Reader(hostile_page)
    assert hostile.tags == clean.tags
    clean_names = [name for name, _ in clean.attributes]
    hostile_names = [name for name, _ in hostile.attributes]
    assert hostile_names == clean_names
    assert "alert(1)" in hostile.text + str(hostile.attributes)
    assert "{{ 7*7 }}" in hostile_page
    assert "[U+202E]abc" in hostile_page
    for page in (hostile_page, frame_of(hostile_page)):
        assert not CONTROL_CHARACTERS & set(page)
        page.encode("utf-8")


def assert_only_own_code_runs(page: str) -> None:
    [policy] = [
        value
        for name, value in Reader(page).attributes
        if name == "content" and value and "default-src" in value
    ]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    codes = INLINE_CODE.findall(page + frame_of(page))
    assert codes
    for kind, code in codes:
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert re.search(rf"{kind}-src [^;]*'sha256-{re.escape(digest)}'", policy)
    for name, _ in Reader(page).attributes:
        assert not name.startswith("on")
        assert name != "style"


def test_only_the_pages_own_code_runs(page_with: Callable[[str], str]) -> None:
    assert_only_own_code_runs(page_with("name"))


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.html")), ids=lambda path: path.stem)
def test_a_sample_page_runs_its_own_code(sample: Path) -> None:
    assert_only_own_code_runs(sample.read_text(encoding="utf-8"))


def test_nothing_is_fetched(page_with: Callable[[str], str]) -> None:
    page = page_with("name")
    reader = Reader(page)
    assert not {"link", "object", "embed", "base"} & set(reader.tags)
    allowed = ("#", "data:image/svg+xml;base64,", "data:text/html;")
    for name, value in reader.attributes:
        if name in ("src", "href", "action", "srcset"):
            assert (value or "").startswith(allowed)
    assert not re.search(r"https?://|url\(|@import", page + frame_of(page))


def test_a_picture_keeps_the_decimals_of_its_labels() -> None:
    address = data_address(small_figure({"player_0": ([1, 2], [0.001, 0.005])}))
    picture = base64.b64decode(address.partition(",")[2]).decode()
    assert ">0.005<" in picture
    assert not re.search(r' d="[^"]*\.\d{3}', picture)


SCRIPT = Path(replay_page.__file__).parents[1] / "templates" / "replay.js"


def made_recordings(config: EnvConfig, *, num_games: int = 2, seed: int = 0) -> list[Recording]:
    episodes = scripted_games("", *[seed] * num_games, config=config, noise=0.3)
    return [Recording(episode=episode, number=number) for number, episode in enumerate(episodes)]


def page_of(recording: Recording, *, prompts: bool = False) -> str:
    return games_page([recording], [recording], title="a", settings={}, prompts=prompts)


def test_every_player_of_eight_has_a_line_and_a_name_in_a_small_chart() -> None:
    lines = {f"player_{number}": ([1, 2], [0.0, float(number)]) for number in range(8)}
    figure = small_figure(lines)
    [axes] = figure.axes
    drawn = axes.lines[1::3]
    assert [line.get_ydata()[-1] for line in drawn] == [number / 2 for number in range(8)]
    assert len({(line.get_color(), line.get_linestyle()) for line in drawn}) == 8
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(lines)


def test_without_a_script_every_turn_is_there_to_read() -> None:
    [recording] = made_recordings(EnvConfig(preset="laptop"), num_games=1)
    turns = []
    for turn in recording.episode.turns:
        turns.append(
            replace(
                turn,
                reply="<think>They hinted 1s.</think>Let us play.",
                kind=ReplyKind.UNPARSABLE,
                version=7,
            )
        )
    recording = replace(recording, episode=replace(recording.episode, turns=tuple(turns)))
    page = page_of(recording)
    for text in ("They hinted 1s.", "Let us play.", "unparsable reply", "v7</small>"):
        assert page.count(text) == len(turns)
    first_section = re.findall(r"<section class=\"game\"[^>]*>", page)[0]
    assert "hidden" not in first_section
    assert "The game begins." not in page
    assert "The game begins." in page_of(recording, prompts=True)


def expected_boards(timeline: Timeline) -> list[dict[str, Any]]:
    """Return the boards of the engine as the test's program prints those of the script."""
    boards = []
    for board in timeline.boards:
        hands = []
        for hand, knowledge in zip(board.hands, board.knowledge, strict=True):
            cards = []
            for card, known in zip(hand, knowledge, strict=True):
                cards.append(
                    [
                        str(card),
                        list(known.colors),
                        list(known.ranks),
                        known.color_hinted,
                        known.rank_hinted,
                    ]
                )
            hands.append(cards)
        boards.append(
            {
                "hands": hands,
                "stacks": list(board.fireworks),
                "discards": [str(card) for card in board.discards],
                "hints": board.hints,
                "lives": board.lives,
                "left": board.deck_size,
            }
        )
    return boards


PRINT_BOARDS = """
  const { position } = require(SCRIPT);
  const games = JSON.parse(require("fs").readFileSync(0, "utf8"));
  const show = (game, turn) => {
    const board = position(game, turn);
    return {
      hands: board.hands.map((hand) => hand.map((card) =>
        [card.text, card.colors, card.ranks, card.colorHinted, card.rankHinted])),
      stacks: board.stacks,
      discards: board.discards.map((card) => card.text),
      hints: board.hints,
      lives: board.lives,
      left: game.deck.length / 2 - board.next,
    };
  };
  const boards = (game) => [...Array(game.moves.length + 1).keys()].map((at) => show(game, at));
  console.log(JSON.stringify(games.map(boards)));
"""
"""Prints every board of every game that it reads, as the page's script computes it."""


@pytest.mark.skipif(
    shutil.which("node") is None, reason="the page's script is run by node, which is not here"
)
def test_the_script_draws_the_boards_that_the_engine_has() -> None:
    timelines = []
    for preset, players in ALL_BOARDS:
        for recording in made_recordings(EnvConfig(preset=preset, players=players), seed=3):
            timelines.append(make_timeline(recording))
    data = json.dumps([board_data(timeline) for timeline in timelines])
    program = PRINT_BOARDS.replace("SCRIPT", json.dumps(str(SCRIPT)))
    answer = subprocess.run(
        ["node", "-e", program], input=data, capture_output=True, text=True, check=True, timeout=120
    )
    assert f'LETTERS = "{COLOR_LETTERS}"' in SCRIPT.read_text()
    for timeline, boards in zip(timelines, json.loads(answer.stdout), strict=True):
        assert boards == expected_boards(timeline)
