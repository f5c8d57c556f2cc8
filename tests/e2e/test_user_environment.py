"""A user's environment: one file and its entry point.

It is trained by both real processes, evaluated and shown.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from conftest_e2e import (
    ROOT,
    Server,
    clean_environment,
    read_json_lines,
    read_metrics,
    run_cli,
    start_server,
    stop,
    train_by_script,
)

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
STEPS = 3
METADATA = "Metadata-Version: 2.1\nName: lighthouse-env\nVersion: 1.0\n"
ENTRY_POINTS = "[hanabi_grpo.environments]\nlighthouse = lighthouse:LIGHTHOUSE\n"


@pytest.fixture(scope="module")
def python_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH with docs/examples/lighthouse.py as an installed package."""
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "lighthouse_env-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    folders = [folder, ROOT / "docs/examples", ROOT / "tests/e2e/reporting"]
    return os.pathsep.join(str(path) for path in folders)


@pytest.fixture(scope="module")
def lighthouse_server(
    python_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server whose model knows the words of the game."""
    folder = tmp_path_factory.mktemp("lighthouse")
    environment = clean_environment()
    environment["PYTHONPATH"] = python_path
    environment["HANABI_ENV"] = "lighthouse"
    model = folder / "tiny"
    run_command(environment, "tiny-model", "--out", str(model), "--steps", "150")
    log = folder / "server.log"
    server = start_server(model, log, HANABI_ENV="lighthouse", PYTHONPATH=python_path)
    yield server
    assert stop(server.process) == [], "engine processes outlived the server"


@pytest.fixture(scope="module")
def trained_run(
    lighthouse_server: Server, python_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Three steps of training."""
    folder = tmp_path_factory.mktemp("run") / "train"
    trainer = train_by_script(
        lighthouse_server,
        folder,
        MAX_STEPS=STEPS,
        HANABI_ENV="lighthouse",
        PYTHONPATH=python_path,
    )
    assert trainer.returncode == 0, trainer.stdout[-4000:]
    return folder


def run_command(environment: dict[str, str], *arguments: str) -> str:
    """Run a command of hanabi-grpo to its successful end and return what it printed."""
    process = run_cli(environment, *arguments)
    assert process.returncode == 0, (process.stdout + process.stderr)[-4000:]
    return process.stdout


def test_both_players_learn_adapters_of_their_own_from_the_sampled_tokens(
    trained_run: Path,
) -> None:
    rows = read_metrics(trained_run)
    assert [row["step"] for row in rows] == [1, 2, 3]
    for player in ("player_0", "player_1"):
        for row in rows:
            assert row[f"{player}/parity"] < 1e-4
        file = f"{player}/adapter_model.safetensors"
        first = load_file(trained_run / "checkpoint-1" / file)
        last = load_file(trained_run / "checkpoint-3" / file)
        changed = [name for name in first if bool((first[name] != last[name]).any())]
        assert changed, f"{player} did not change"


def test_its_games_are_recorded_with_its_name_seats_and_result(trained_run: Path) -> None:
    games = read_json_lines(trained_run / "episodes/step_000002.jsonl")
    assert games
    for game in games:
        assert game["schema"] == 2
        assert game["env"] == "lighthouse"
        assert game["seats"] == ["player_0@2", "player_1@2"]
        assert game["result"]["safe"] in (0.0, 1.0)


def test_it_is_evaluated_beside_its_script_and_its_games_are_shown_as_text(
    lighthouse_server: Server, trained_run: Path, python_path: str, tmp_path: Path
) -> None:
    environment = lighthouse_server.environment(PYTHONPATH=python_path, HANABI_ENV="lighthouse")
    out = tmp_path / "result.json"
    lineup = "served,by-the-book"
    run_command(environment, "evaluate", lineup, "--tasks", "20", "--out", str(out))
    result = json.loads(out.read_text())
    assert result["env"] == "lighthouse"
    assert result["num_players"] == 2
    assert len(result["seeds"]) == 20
    text = run_command(environment, "view", str(trained_run), "--game", "0")
    assert "The safe harbour is" in text
    assert "player_1: " in text
