"""Seats with a calculator, trained by both real processes: calls, results, mismatch, resume."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest_e2e import (
    Server,
    clean_environment,
    read_episodes,
    read_metrics,
    start_server,
    stop,
    train,
)
from faults.running import Training
from hanabi_grpo.runs.digest import run_digest

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.usefixtures("in_repository_root")]

STEPS = 3
GAME: dict[str, Any] = {"HANABI_ENV": "revise", "HANABI_PRESET": "revise-calculator"}
TRAINED: dict[str, Any] = {**GAME, "MAX_STEPS": STEPS, "SAVE_STEPS": 1, "SEED": 7}


@pytest.fixture(scope="module")
def calculator_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose model has learned to call."""
    folder = tmp_path_factory.mktemp("calculator")
    model = folder / "tiny"
    options = ["--preset", GAME["HANABI_PRESET"], "--steps", "150", "--games", "600"]
    command = [sys.executable, "-m", "hanabi_grpo.cli", "tiny-model", *options]
    subprocess.run(
        [*command, "--env", GAME["HANABI_ENV"], "--out", str(model)],
        env=clean_environment(),
        check=True,
        timeout=600,
    )
    server = start_server(model, folder / "server.log", **GAME)
    yield server
    assert stop(server.process) == [], "engine processes outlived the server"


@pytest.mark.parametrize("memory", ["turn", "2"])
def test_a_run_with_calls_is_checked_and_resumed(
    memory: str, calculator_server: Server, tmp_path: Path
) -> None:
    server = calculator_server
    variables = {**TRAINED, "HANABI_MEMORY": memory}
    whole = tmp_path / "whole"
    trainer = train(server, whole, **variables)
    # The mismatch check ends a run whose sampled and computed logprobs differ.
    assert trainer.returncode == 0, trainer.stdout[-4000:]
    rows = read_metrics(whole)
    assert all(row["tools/calls_per_turn"] > 0 for row in rows)
    assert all(row["player_0/parity"] < 1e-4 for row in rows)
    turns = [turn for episode in read_episodes(whole, 0) for turn in episode.turns]
    calls = [turn for turn in turns if turn.is_call and turn.call is not None]
    followers = [turn for turn in turns if turn.follows_call]
    assert calls and len(followers) == len(calls)
    assert all(turn.fresh == (not turn.follows_call) for turn in turns)
    for turn in calls:
        assert turn.call is not None and turn.call.result.startswith("result ")
        assert dict(turn.rewards[0]) == {}
        assert len(turn.reply_ids) == len(turn.logprobs) > 0

    # Killed in its third step, or wherever it is by then.
    cut = tmp_path / "cut"
    killed = Training(server, cut, **variables)
    killed.wait_for_step(2)
    killed.kill()
    resumed = train(server, cut, **variables, RESUME="latest")
    assert resumed.returncode == 0, resumed.stdout[-4000:]
    assert run_digest(cut) == run_digest(whole)
