"""A user's environment, one file and its entry point: trained by both real processes, evaluated and
shown.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from conftest_e2e import ROOT, Server, clean_environment, start_server, stop, train

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
STEPS = 3


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH with docs/examples/lighthouse.py as an installed package."""
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "lighthouse_env-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lighthouse-env\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[hanabi_grpo.environments]\nlighthouse = lighthouse:LIGHTHOUSE\n"
    )
    return os.pathsep.join(
        [str(folder), str(ROOT / "docs/examples"), str(ROOT / "tests/e2e/reporting")]
    )


@pytest.fixture(scope="module")
def table(path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose model knows the words of the game."""
    folder = tmp_path_factory.mktemp("lighthouse")
    environment = {**clean_environment(), "PYTHONPATH": path, "HANABI_ENV": "lighthouse"}
    run(environment, "tiny-model", "--out", str(folder / "tiny"), "--steps", "150")
    server = start_server(
        folder / "tiny", folder / "server.log", HANABI_ENV="lighthouse", PYTHONPATH=path
    )
    yield server
    assert stop(server.process) == [], "engine processes outlived the server"


@pytest.fixture(scope="module")
def trained_run(table: Server, path: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of training."""
    folder = tmp_path_factory.mktemp("run") / "train"
    done = train(table, folder, MAX_STEPS=STEPS, HANABI_ENV="lighthouse", PYTHONPATH=path)
    assert done.returncode == 0, done.stdout[-4000:]
    return folder


def run(environment: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-m", "hanabi_grpo.cli", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def test_both_players_learn_adapters_of_their_own_from_the_sampled_tokens(
    trained_run: Path,
) -> None:
    rows = [json.loads(line) for line in (trained_run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    for player in ("player_0", "player_1"):
        assert all(row[f"{player}/parity"] < 1e-4 for row in rows)
        first, last = (
            load_file(trained_run / f"checkpoint-{step}" / player / "adapter_model.safetensors")
            for step in (1, STEPS)
        )
        assert any(bool((first[name] != last[name]).any()) for name in first), (
            f"{player} did not move"
        )
    games = [
        json.loads(line)
        for line in (trained_run / "episodes/step_000002.jsonl").read_text().splitlines()
    ]
    assert {(game["schema"], game["env"], tuple(game["seats"])) for game in games} == {
        (2, "lighthouse", ("player_0@2", "player_1@2"))
    }
    assert {game["result"]["safe"] for game in games} <= {0.0, 1.0}


def test_it_is_evaluated_beside_its_script_and_its_games_are_shown_as_text(
    table: Server, trained_run: Path, path: str, tmp_path: Path
) -> None:
    environment = table.environment(PYTHONPATH=path, HANABI_ENV="lighthouse")
    out = tmp_path / "result.json"
    run(environment, "evaluate", "served,by-the-book", "--tasks", "20", "--out", str(out))
    result = json.loads(out.read_text())
    assert (result["env"], result["num_players"], len(result["seeds"])) == ("lighthouse", 2, 20)
    shown = run(environment, "view", str(trained_run), "--game", "0")
    assert "The safe harbour is" in shown and "player_1: " in shown
