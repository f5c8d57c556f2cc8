"""Five players, five adapters: the demo's loop on a small board, from a model made for it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest_e2e import TRAINER_SECONDS, Server, start_server, stop
from hanabi_grpo.rollout.wire import episode_from_json
from hanabi_grpo.sft.tiny_model import Recipe, build_tiny_model
from hanabi_grpo.types import player_names

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
PLAYERS = player_names(5)
STEPS = 3


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for five players."""
    folder = tmp_path_factory.mktemp("five")
    model = build_tiny_model(
        folder / "tiny", Recipe.of("hanabi", presets=("mini",), players=5, steps=60, num_games=200)
    )
    server = start_server(model, folder / "server.log", HANABI_PLAYERS=5)
    yield server
    assert stop(server.process) == [], "engine processes outlived the server"


@pytest.fixture(scope="module")
def run(table: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few steps of the demo's training, of a board that the settings name, in a folder outside
    the checkout.
    """
    folder = tmp_path_factory.mktemp("five-run")
    given = {
        "OUTPUT_DIR": "train",
        "MAX_STEPS": STEPS,
        "HANABI_PRESET": "mini",
        "HANABI_PLAYERS": 5,
    }
    done = subprocess.run(
        [sys.executable, "-m", "hanabi_grpo.cli", "train"],
        cwd=folder,
        env=table.environment(**given),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TRAINER_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return folder / "train"


def _weights(run: Path, step: int, player: str) -> dict[str, torch.Tensor]:
    return load_file(run / f"checkpoint-{step}" / player / "adapter_model.safetensors")


def test_each_of_the_five_learns_an_adapter_of_its_own_from_games_of_its_own_seat(
    run: Path,
) -> None:
    last = {player: _weights(run, STEPS, player) for player in PLAYERS}
    for player, weights in last.items():
        first = _weights(run, 1, player)
        assert all(not torch.equal(first[name], weights[name]) for name in weights), (
            f"{player} did not move"
        )
    name = next(name for name in last["player_0"] if "lora_B" in name)
    assert len({tuple(weights[name].flatten().tolist()) for weights in last.values()}) == 5
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(row[f"{player}/parity"] < 1e-4 for row in rows for player in PLAYERS)
    lines = (run / "episodes/step_000002.jsonl").read_text().splitlines()
    episodes = [episode_from_json(json.loads(line)) for line in lines]
    assert len(episodes) == 16
    assert {episode.seats for episode in episodes} == {tuple(f"{player}@2" for player in PLAYERS)}
    assert {turn.player for episode in episodes for turn in episode.turns} == set(range(5))
