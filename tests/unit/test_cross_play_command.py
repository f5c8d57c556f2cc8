import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from crossplay_parts import save_checkpoint
from hanabi_grpo.cli import app
from server_app import running_app

RUNNER = CliRunner()
FILES = {"cells", "cross_play.json", "cross_play.md", "cross_play.html", "heat_map.png"}


def cross_play(*words: str, **options: Any) -> Any:
    return RUNNER.invoke(app, ["cross-play", *words], **options)


def test_three_bots_leave_every_file_and_print_the_tables(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    answer = cross_play("hint-bot", "me=random", "blind", "--preset", "laptop", "--deals", "30", "--out", str(out))
    assert answer.exit_code == 0, answer.output
    assert {path.name for path in out.iterdir()} == FILES
    assert sorted(path.name for path in (out / "cells").iterdir()) == [f"{i}-{j}.json" for i in "012" for j in "012"]
    for text in ("30 deals of suite eval", "Self-play and cross-play", "Best partner on average", f"wrote {out}"):
        assert text in answer.output
    assert str(tmp_path) not in (out / "cross_play.html").read_text() + (out / "cross_play.json").read_text()


def test_json_is_all_that_standard_output_gets(tmp_path: Path) -> None:
    options = ("--preset", "full", "--players", "3", "--deals", "3", "--out", str(tmp_path), "--json")
    answer = cross_play("iggi", "piers", *options)
    data = json.loads(answer.stdout)
    assert (data["num_players"], data["num_pairs"], data["complete"]) == (3, 4, True)
    assert data["gap"]["error_entries"] is None, "two entries have no error over entries"
    assert data == json.loads((tmp_path / "cross_play.json").read_text())


def test_a_folder_is_gone_on_with_and_refused_for_other_work(tmp_path: Path) -> None:
    options = ("--preset", "laptop", "--out", str(tmp_path), "--deals")
    assert cross_play("iggi", "random", *options, "5").exit_code == 0
    again = cross_play("iggi", "random", "blind", *options, "5")
    assert again.exit_code == 0 and "4 of 9 cells are in" in again.stderr
    other = cross_play("iggi", "random", *options, "6")
    assert other.exit_code == 2
    assert re.search(r"0-0\.json: was played otherwise \(deals: there 5, here 6\)", other.stderr)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["iggi"], "cross-play needs 2 to 64"),
        (["iggi", "piers", "--deals", "1"], "--deals 1: a mean with an error"),
        (["iggi", "piers", "--suite", "train"], "training may have seen"),
        (["iggi", "piers", "--temperature", "-1"], "must be 0"),
        (["iggi", "piers", "--players", "7"], "players"),
        (["iggi", "iggy"], "Did you mean 'iggi'"),
        (["iggi", "piers", "--out", "/dev/null"], "cannot be used"),
    ],
)
def test_bad_options_are_one_line_on_standard_error(tmp_path: Path, words: list[str], message: str) -> None:
    base = [] if "--out" in words else ["--out", str(tmp_path)]
    answer = cross_play(*words, "--preset", "laptop", *base)
    assert answer.exit_code == 2 and message in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_dies_ends_the_command_and_finished_cells_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_checkpoint(tmp_path / "run", 5, [0.1, 0.2])
    words = ["random", f"mine={folder}", "--preset", "laptop", "--deals", "20", "--out", str(tmp_path / "out")]
    with running_app() as server:
        monkeypatch.setenv("VLLM_SERVER_HOST", "127.0.0.1")
        monkeypatch.setenv("VLLM_SERVER_PORT", str(server.port))
        monkeypatch.setenv("HANABI_SERVER_TIMEOUT", "10")
        monkeypatch.setenv("HANABI_OBSERVATION", "compact")
        monkeypatch.setenv("HANABI_LEGAL_MOVES", "false")
        load, loads = server.engine.generate, []

        async def dies(*args: Any) -> Any:
            loads.append(args)
            server.engine.is_dead = len(loads) > 60
            return await load(*args)

        monkeypatch.setattr(server.engine, "generate", dies)
        answer = cross_play(*words)
        assert answer.exit_code == 2, answer.output
        assert "of 4 pairs are done" in answer.stderr and "error: " in answer.stderr
    finished = [path for path in (tmp_path / "out" / "cells").glob("?-?.json")]
    assert 1 <= len(finished) < 4 and (tmp_path / "out" / "heat_map.png").exists()
    with running_app() as server:
        monkeypatch.setenv("VLLM_SERVER_PORT", str(server.port))
        answer = cross_play(*words)
    assert answer.exit_code == 0, answer.output
    assert "player_1, player_0" in answer.output and "temperature 1" in answer.output
    assert len(list((tmp_path / "out" / "cells").iterdir())) == 4 + 3
