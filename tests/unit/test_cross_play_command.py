import json
import re
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from hanabi_grpo.cli import app

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
    for text in ("30 deals of suite eval", "Self-play and cross-play", "Best first", f"wrote {out}"):
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
