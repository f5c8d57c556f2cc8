import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fake_engine import LAPTOP
from hanabi_grpo.cli import app
from hanabi_grpo.envs.hanabi.conventions import ConventionCounts, convention_json, convention_report
from hanabi_grpo.envs.hanabi.policies import make_policy, play_scripted
from hanabi_grpo.envs.hanabi.rules import make_spec
from hanabi_grpo.rollout.loop import play_episodes_sync
from hanabi_grpo.runs.recordings import write_episodes


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["conventions", *words])
    return done.exit_code, done.output


def figures(page: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(page.with_suffix(".json").read_text())["line_ups"]
    return found


def expected(name: str, deals: int, preset: str = "laptop") -> dict[str, object]:
    spec = make_spec(preset)
    counts = ConventionCounts(spec)
    for seed in range(deals):
        counts.add(play_scripted(spec, [make_policy(name)] * 2, suite="eval", seed=seed))
    found: dict[str, object] = json.loads(json.dumps(convention_json(convention_report(name, counts))))
    return found


def test_every_line_up_becomes_a_section_of_page_and_figures() -> None:
    page = Path("pages/laptop.html")
    code, output = command("hint-bot", "iggi,random", "--preset", "laptop", "--deals", "120", "--out", str(page))
    assert code == 0, output
    assert figures(page)[0] == expected("hint-bot", 120)
    assert "iggi,random" in page.read_text()
    assert not list(Path("outputs/conventions").glob("*")), "counts are kept only until the page is written"


def test_recorded_games_are_counted_like_played_ones() -> None:
    episodes = play_episodes_sync(LAPTOP, [make_policy("hint-bot")] * 2, "eval", range(60))
    run = Path("run")
    run.mkdir()
    write_episodes(run, 7, [episodes])
    code, output = command("--games", "run", "--out", "page.html")
    assert code == 0, output
    [found] = figures(Path("page.html"))
    assert {**found, "label": "hint-bot"} == expected("hint-bot", 60)


def test_nothing_to_look_at_is_said() -> None:
    code, output = command()
    assert code == 2
    assert "--games PATH" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("iggi", "--deals", "0"), "--deals 0"),
        (("igi",), "Did you mean"),
        (("--games", "nowhere"), "no such file or folder"),
        (("served", "--temperature", "-1"), "--temperature"),
    ],
)
def test_bad_options_are_refused(words: tuple[str, ...], message: str) -> None:
    code, output = command(*words, *([] if words[0] == "--games" else ["--preset", "laptop"]))
    assert code == 2
    assert message in " ".join(output.split())


def test_an_interrupted_count_goes_on_and_ends_with_the_same_figures(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "hanabi_grpo.cli", "conventions", "iggi", "--preset", "full", "--deals", "3000"]
    process = subprocess.Popen(
        arguments,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not any(path.read_bytes().count(b"\n") > 1 for path in tmp_path.glob("outputs/conventions/*.part.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "of 3000 deals are counted and kept; the same command goes on from there." in " ".join(errors.split())
    subprocess.run(arguments, cwd=tmp_path, check=True, capture_output=True, timeout=240)
    assert figures(tmp_path / "outputs/conventions-full.html") == [expected("iggi", 3000, "full")]
