import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.commands import scores as command
from hanabi_grpo.published_scores import PUBLISHED_SCORES, PublishedScore

ROW = PublishedScore("iggi", "marshal-mini", 2, 2.829, 0.009, "measured")
QUICK = tuple(one for one in PUBLISHED_SCORES if one.preset == "marshal-mini")


def test_every_figure_is_of_a_bot_and_a_board_that_exist_and_is_there_once() -> None:
    names = [(one.bot, one.preset, one.num_players) for one in PUBLISHED_SCORES]
    assert len(set(names)) == len(names) > 25
    for one in PUBLISHED_SCORES:
        assert command.play_row(one, 2)[1]["games"] == 2


def test_the_difference_counts_both_errors() -> None:
    gap, sigmas = command.difference(ROW, {"mean": 2.849, "standard_error": 0.012})
    assert gap == pytest.approx(0.02)
    assert sigmas == pytest.approx(0.02 / 0.015)
    alone = ROW._replace(standard_error=None)
    assert command.difference(alone, {"mean": 2.849, "standard_error": 0.01})[1] == pytest.approx(2.0)


def test_the_table_goes_between_its_markers_and_the_rest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "PUBLISHED_SCORES", QUICK)
    page = tmp_path / "scores.md"
    page.write_text("before\n<!-- scores:begin -->\nold\n<!-- scores:end -->\nafter\n")
    done = CliRunner().invoke(app, ["scores", "--deals", "1000", "--out", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert text.startswith("before\n<!-- scores:begin -->\n1000 games") and text.endswith(
        "<!-- scores:end -->\nafter\n"
    )
    assert text.count("marshal-mini, 2 players") == len(QUICK) and "old" not in text
    assert not (tmp_path / "outputs" / "scores-1000").exists(), "rows are kept only until the table is whole"


def test_a_bot_that_is_off_is_said_by_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "PUBLISHED_SCORES", (ROW._replace(mean=2.0),))
    done = CliRunner().invoke(app, ["scores", "--deals", "1000", "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)[0]["bot"] == "iggi"


def test_an_interrupted_table_goes_on_with_the_rows_it_had(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "hanabi_grpo.cli", "scores", "--deals", "20000", "--json"]
    process = subprocess.Popen(
        arguments,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    kept = tmp_path / "outputs" / "scores-20000"
    deadline = time.monotonic() + 240
    while not list(kept.glob("*.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    rows = list(kept.glob("*.json"))
    assert f"{len(rows)} of {len(PUBLISHED_SCORES)} rows are kept" in " ".join(errors.split())
    one = next(one for one in PUBLISHED_SCORES if command._path(kept, one) == rows[0])
    assert command._read(kept, one, command._code()) is not None
    assert command._read(kept, one, "of other bots") is None


@pytest.mark.parametrize("deals", [0, 999, 1001, -1])
def test_numbers_of_deals_that_make_no_table_are_refused(deals: int) -> None:
    done = CliRunner().invoke(app, ["scores", "--deals", str(deals)])
    assert done.exit_code == 2
