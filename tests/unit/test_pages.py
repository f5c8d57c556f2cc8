"""The pages are one family: each is one file that fetches nothing, runs only its own code and
escapes texts.
"""

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

from boards import ALL_BOARDS
from crossplay_parts import summary_of
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.replays.timeline import Timeline, make_timeline
from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS
from hanabi_grpo.envs.recording import Recording
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


def run_of(folder: Path, text: str) -> str:
    """Return a run's page on which settings, incidents, boards and an evaluation bear this text."""
    run = tracked_run(folder / "run", steps=12, MAX_STEPS="40")
    # A file of UTF-8 holds no lone surrogate.
    text = text.encode("utf-8", "replace").decode()
    IncidentLog(run).record(text, text)
    settings = json.loads((run / "settings.json").read_text())
    settings["settings"] |= {"HANABI_PRESET": text, text: text}
    (run / "settings.json").write_text(json.dumps(settings))
    add_row(run, 41, **{"games/" + text: 1.0, "score/" + text: 1.0})
    result = evaluate_scripted("random", registry.setup("hanabi", {"preset": "laptop"}), 4)
    (run / "evil.json").write_text(json.dumps({**result_to_json(result), "label": text}))
    return run_page(read_report(run))[0]


def games_of(folder: Path, text: str, *episodes: Episode) -> str:
    """Return the page of games whose replies, prompts and players bear this text."""
    recordings = []
    for number, one in enumerate(episodes or scripted_games("", 0, 0, noise=0.3)):
        turns = tuple(
            replace(turn, reply=f"<think>{text}</think>{text}", prompt=text) for turn in one.turns
        )
        names = (text, "</script>")
        recordings.append(Recording(episode=replace(one, turns=turns), number=number, names=names))
    return games_page(recordings, recordings, title=text, settings={}, prompts=True)


def kuhn_games_of(folder: Path, text: str) -> str:
    """Return the page of games that are shown as text."""
    setup = registry.setup("kuhn", {"preset": "kuhn"})
    return games_of(
        folder,
        text,
        *play_episodes_sync(setup, [make_script(setup, "random")] * 2, "train", range(3)),
    )


def cross_play_of(folder: Path, text: str) -> str:
    """Return the page of a cross-play with an entry of this name."""
    summary = summary_of(folder, "hint-bot", "random", tasks=4)
    entries = (replace(summary.plan.entries[0], label=text), *summary.plan.entries[1:])
    return render_cross_play(replace(summary, plan=replace(summary.plan, entries=entries)))


PAGES: dict[str, Callable[[Path, str], str]] = {
    "run": run_of,
    "games": games_of,
    "games as text": kuhn_games_of,
    "cross-play": cross_play_of,
}


@pytest.fixture(scope="module", params=PAGES)
def page_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    # A folder for each text: what was played in one is found there again.
    return lambda text: PAGES[request.param](tmp_path_factory.mktemp("page"), text)


def frame_of(page: str) -> str:
    """Return the page in the frame of another one; "" where there is none."""
    found = re.search(r'<iframe[^>]+base64,([^"]+)"', page)
    return base64.b64decode(found[1]).decode() if found else ""


def test_a_hostile_text_stays_a_text(page_of: Callable[[str], str]) -> None:
    plain, hostile = page_of("a plain name that is as long as others"), page_of(NASTY)
    clean, dirty = Reader(plain), Reader(hostile)
    assert dirty.tags == clean.tags
    assert [name for name, _ in dirty.attributes] == [name for name, _ in clean.attributes]
    assert "alert(1)" in dirty.text + str(dirty.attributes) and "{{ 7*7 }}" in hostile
    for page in (hostile, frame_of(hostile)):
        assert not set("\x00\x1b\u202e\u2028\ud800") & set(page)
        page.encode("utf-8")
    assert "[U+202E]abc" in hostile


def test_only_the_pages_own_code_runs_and_nothing_is_fetched(page_of: Callable[[str], str]) -> None:
    page = page_of("name")
    [policy] = [
        value
        for name, value in Reader(page).attributes
        if name == "content" and "default-src" in (value or "")
    ]
    assert (
        policy is not None and policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    )
    codes = re.findall(r"<(style|script)>(.*?)</\1>", page + frame_of(page), re.DOTALL)
    assert codes
    for kind, code in codes:
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert re.search(rf"{kind}-src [^;]*'sha256-{re.escape(digest)}'", policy)
    reader = Reader(page)
    assert not {"link", "object", "embed", "base"} & set(reader.tags)
    addresses = [
        value or ""
        for name, value in reader.attributes
        if name in ("src", "href", "action", "srcset")
    ]
    assert all(
        value.startswith(("#", "data:image/svg+xml;base64,", "data:text/html;"))
        for value in addresses
    )
    assert not [name for name, _ in reader.attributes if name.startswith("on") or name == "style"]
    assert not re.search(r"https?://|url\(|@import", page + frame_of(page))


def test_a_picture_keeps_the_decimals_of_its_labels() -> None:
    address = data_address(small_figure({"player_0": ([1, 2], [0.001, 0.005])}))
    picture = base64.b64decode(address.partition(",")[2]).decode()
    assert ">0.005<" in picture and not re.search(r' d="[^"]*\.\d{3}', picture)


SCRIPT = Path(replay_page.__file__).parents[1] / "templates" / "replay.js"


def made_recordings(config: EnvConfig, *, num_games: int = 2, seed: int = 0) -> list[Recording]:
    episodes = scripted_games("", *[seed] * num_games, config=config, noise=0.3)
    return [Recording(episode=one, number=number) for number, one in enumerate(episodes)]


def games_page_of(games: list[Recording], **options: Any) -> str:
    return games_page(games, games, title="a", settings={}, **options)


def test_without_a_script_every_turn_is_there_to_read() -> None:
    [one] = made_recordings(EnvConfig(preset="laptop"), num_games=1)
    changes = {
        "reply": "<think>They hinted 1s.</think>Let us play.",
        "kind": ReplyKind.UNPARSABLE,
        "version": 7,
    }
    turns = tuple(replace(turn, **changes) for turn in one.episode.turns)
    said = replace(one, episode=replace(one.episode, turns=turns))
    page = games_page_of([said])
    assert page.count("They hinted 1s.") == page.count("Let us play.") == len(turns)
    assert page.count("unparsable reply") == page.count("v7</small>") == len(turns)
    assert "hidden" not in re.findall(r"<section class=\"game\"[^>]*>", page)[0]
    assert "The game begins." not in page
    assert "The game begins." in games_page_of([said], prompts=True)


def expected_boards(timeline: Timeline) -> list[dict[str, Any]]:
    return [
        {
            "hands": [
                [
                    [
                        str(card),
                        list(known.colors),
                        list(known.ranks),
                        known.color_hinted,
                        known.rank_hinted,
                    ]
                    for card, known in zip(hand, knowledge, strict=True)
                ]
                for hand, knowledge in zip(board.hands, board.knowledge, strict=True)
            ],
            "stacks": list(board.fireworks),
            "discards": [str(card) for card in board.discards],
            "hints": board.hints,
            "lives": board.lives,
            "left": board.deck_size,
        }
        for board in timeline.boards
    ]


@pytest.mark.skipif(
    shutil.which("node") is None, reason="the page's script is run by node, which is not here"
)
def test_the_script_draws_the_boards_that_the_engine_has() -> None:
    games = [
        make_timeline(one)
        for preset, players in ALL_BOARDS
        for one in made_recordings(EnvConfig(preset=preset, players=players), seed=3)
    ]
    program = f"""
      const {{ position }} = require({json.dumps(str(SCRIPT))});
      const games = JSON.parse(require("fs").readFileSync(0, "utf8"));
      const show = (game, turn) => {{
        const board = position(game, turn);
        return {{ hands: board.hands.map((hand) => hand.map((card) =>
            [card.text, card.colors, card.ranks, card.colorHinted, card.rankHinted])),
          stacks: board.stacks, discards: board.discards.map((card) => card.text), hints: board.hints,
          lives: board.lives, left: game.deck.length / 2 - board.next }};
      }};
      const boards = (game) => [...Array(game.moves.length + 1).keys()].map((at) => show(game, at));
      console.log(JSON.stringify(games.map(boards)));
    """
    data = json.dumps([board_data(one) for one in games])
    answer = subprocess.run(
        ["node", "-e", program], input=data, capture_output=True, text=True, check=True, timeout=120
    )
    assert f'LETTERS = "{COLOR_LETTERS}"' in SCRIPT.read_text()
    for one, boards in zip(games, json.loads(answer.stdout), strict=True):
        assert boards == expected_boards(one)
