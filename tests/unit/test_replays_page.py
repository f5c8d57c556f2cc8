import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from boards import ALL_BOARDS
from hanabi_grpo.cli import app
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.replays.timeline import Timeline, make_timeline
from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.report.games import games_page
from hanabi_grpo.report.hanabi import replay_page
from hanabi_grpo.report.hanabi.replay_page import board_data
from hanabi_grpo.runs.recordings import write_recordings
from hanabi_grpo.types import ReplyKind
from tracked_runs import scripted_games

SCRIPT = Path(replay_page.__file__).parents[1] / "templates" / "replay.js"


def recordings(config: EnvConfig, *, num_games: int = 2, seed: int = 0) -> list[Recording]:
    episodes = scripted_games("", *[seed] * num_games, config=config, noise=0.3)
    return [Recording(episode=one, number=number) for number, one in enumerate(episodes)]


def page_of(games: list[Recording], **options: Any) -> str:
    return games_page(games, games, title="a", settings={}, **options)


def test_without_a_script_every_turn_is_there_to_read() -> None:
    [one] = recordings(EnvConfig(preset="laptop"), num_games=1)
    changes = {"reply": "<think>They hinted 1s.</think>Let us play.", "kind": ReplyKind.UNPARSABLE, "version": 7}
    turns = tuple(replace(turn, **changes) for turn in one.episode.turns)
    said = replace(one, episode=replace(one.episode, turns=turns))
    page = page_of([said])
    assert page.count("They hinted 1s.") == page.count("Let us play.") == len(turns)
    assert page.count("unparsable reply") == page.count("v7</small>") == len(turns)
    assert "hidden" not in re.findall(r"<section class=\"game\"[^>]*>", page)[0]
    assert "The game begins." not in page
    assert "The game begins." in page_of([said], prompts=True)


def test_a_page_of_128_full_games_stays_below_a_megabyte() -> None:
    found = recordings(EnvConfig(preset="full"), num_games=4)
    games = [replace(one, number=number) for number, one in enumerate(found * 32)]
    assert sum(len(one.episode.turns) for one in games) > 5000
    assert len(page_of(games).encode()) < 1_000_000


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    games, page = tmp_path / "games.jsonl", tmp_path / "pages" / "games.html"
    write_recordings(games, recordings(EnvConfig(preset="laptop")))
    answer = CliRunner().invoke(app, ["view", str(games), "--html", str(page), "--best", "1"])
    assert answer.exit_code == 0 and f"wrote {page}" in answer.output
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "1 of 2 games" in text and str(tmp_path) not in text
    assert list(page.parent.iterdir()) == [page]
    answer = CliRunner().invoke(app, ["view", str(games), "--html", str(tmp_path)])
    assert answer.exit_code == 2 and "cannot be written" in answer.stderr


def expected_boards(timeline: Timeline) -> list[dict[str, Any]]:
    return [
        {
            "hands": [
                [
                    [str(card), list(known.colors), list(known.ranks), known.color_hinted, known.rank_hinted]
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


@pytest.mark.skipif(shutil.which("node") is None, reason="the page's script is run by node, which is not here")
def test_the_script_draws_the_boards_that_the_engine_has() -> None:
    games = [
        make_timeline(one)
        for preset, players in ALL_BOARDS
        for one in recordings(EnvConfig(preset=preset, players=players), seed=3)
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
