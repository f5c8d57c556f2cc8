import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.client.lineups import parse_line_up
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.evaluation.evaluate import evaluate_line_up
from hanabi_grpo.runs.evaluation_result import EvaluationResult, read_result
from server_app import running_app

RUNNER = CliRunner()
StartProcess = Callable[..., "subprocess.Popen[str]"]
_WAIT_SECONDS = 60


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def evaluate(*words: str) -> Any:
    return RUNNER.invoke(app, ["evaluate", *words])


def games(result: EvaluationResult) -> tuple[Any, ...]:
    return (result.seeds, result.starts, result.scores, result.orders, result.figures)


def test_tables_stand_on_standard_output_with_every_reference() -> None:
    answer = evaluate("iggi", "iggi,random", "--preset", "laptop", "--deals", "40")
    assert answer.exit_code == 0, answer.output
    for part in ("40 deals", "random", "blind", "hint-bot", "iggi,random − iggi", "Seat orders"):
        assert part in answer.stdout
    assert max(map(len, answer.stdout.splitlines())) <= 120


def test_one_line_up_writes_a_result_that_report_reads_and_leaves_nothing_else(tmp_path: Path) -> None:
    answer = evaluate("piers", "--preset", "small", "--players", "3", "--deals", "20", "--out", "new/a.json")
    assert answer.exit_code == 0, answer.output
    result = read_result(tmp_path / "new" / "a.json")
    assert (result.label, result.num_players, result.preset, result.num_deals) == ("piers", 3, "small", 20)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.json"]


def test_several_line_ups_write_one_file(tmp_path: Path) -> None:
    answer = evaluate("iggi", "blind", "--preset", "laptop", "--deals", "20", "--out", "a.json")
    assert answer.exit_code == 0, answer.output
    document = json.loads(Path("a.json").read_text())
    assert [one["label"] for one in document["results"]] == ["iggi", "blind"]
    assert [one["label"] for one in document["references"]] == ["random", "hint-bot"], "blind is there already"
    assert [(one["of"], one["minus"]) for one in document["differences"]] == [("blind", "iggi")]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_json_is_all_that_standard_output_holds() -> None:
    answer = evaluate("iggi", "hint-bot,iggi", "--preset", "laptop", "--deals", "300", "--json")
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    assert document["results"][0]["summary"]["num_starts"] == 300
    assert document["results"][1]["orders"][0]["seats"] == ["hint-bot", "iggi"]
    assert document["differences"][0]["interval_95"][0] < document["differences"][0]["mean"]
    assert "300/300" in answer.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["iggy"], "Did you mean 'iggi'?"),
        (["iggi,iggi,iggi"], "3 words for 2 players"),
        (["iggi", "iggi"], "named twice"),
        (["iggi", "blind", "--label", "x"], "--label 'x': names one line-up, and 2 are given"),
        (["iggi", "--deals", "1"], "--deals 1: a mean with an error needs at least 2 deals"),
        (["iggi", "--suite", "train"], "training may have seen its deals"),
        (["iggi", "--temperature", "-1"], "--temperature -1.0: must be 0 (greedy) or more"),
        (["iggi", "--temperature", "nan"], "--temperature nan: must be 0 (greedy) or more"),
        (["iggi", "--players", "9"], "players"),
        (["human,iggi"], "hanabi-grpo play"),
        ([""], "line-up ''"),
    ],
)
def test_bad_options_are_one_message(words: list[str], message: str) -> None:
    answer = evaluate(*words, "--preset", "laptop")
    assert answer.exit_code == 2
    assert message in answer.stderr
    assert answer.stderr.startswith("error: ")


def test_models_play_on_the_server_that_the_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_app() as server:
        monkeypatch.setenv("VLLM_SERVER_PORT", str(server.port))
        answer = evaluate("base", "base,iggi", "--preset", "laptop", "--deals", "12", "--json", "--temperature", "0")
        nobody = evaluate("served", "--preset", "laptop", "--deals", "12")
    assert answer.exit_code == 0, answer.output
    results = json.loads(answer.stdout)["results"]
    assert [one["temperature"] for one in results] == [0.0, 0.0]
    assert [order["seats"] for order in results[1]["orders"]] == [["base", "iggi"], ["iggi", "base"]]
    assert nobody.exit_code == 2 and "serves no adapter for player_0" in nobody.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_says_so_and_goes_on_to_the_same_result(
    start_process: StartProcess, number: signal.Signals
) -> None:
    words = ["hint-bot,simple-bot", "--preset", "full", "--deals", "600", "--out", "a.json"]
    process = start_process(
        [sys.executable, "-m", "hanabi_grpo.cli", "evaluate", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    path, end = Path("a.part.jsonl"), time.monotonic() + _WAIT_SECONDS
    while not path.exists() or path.read_bytes().count(b"\n") <= 50:
        assert process.poll() is None and time.monotonic() < end, "it ended, or did nothing, before it was interrupted"
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=_WAIT_SECONDS)
    assert process.returncode == 130, err
    kept = Path("a.part.jsonl").read_bytes().count(b"\n") - 1
    assert 50 <= kept < 600
    assert f"{kept} of 600 deals are done and kept; the same command goes on from there." in err
    assert "Traceback" not in err and not Path("a.json").exists()
    other = evaluate("hint-bot,iggi", *words[1:])
    assert other.exit_code == 2 and "other work (line_up: there hint-bot,simple-bot, here hint-bot,iggi" in other.stderr
    assert evaluate(*words).exit_code == 0
    expected = evaluate_line_up(parse_line_up("hint-bot,simple-bot", 2), Setup(HANABI, EnvConfig(preset="full")), 600)
    assert games(read_result(Path("a.json"))) == games(expected)
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["a.json"]
