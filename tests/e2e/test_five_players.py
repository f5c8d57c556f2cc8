"""Five players, five adapters: the demo's loop on a small board, from a model made for it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest_e2e import (
    TRAINER_SECONDS,
    Server,
    read_episodes,
    read_metrics,
    start_server,
    stop,
)
from hanabi_grpo.sft.tiny_model import Recipe, build_tiny_model
from hanabi_grpo.types import player_names

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
PLAYERS = player_names(5)
STEPS = 3


@pytest.fixture(scope="module")
def five_player_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for five players."""
    folder = tmp_path_factory.mktemp("five")
    recipe = Recipe.of("hanabi", presets=("mini",), players=5, steps=60, num_games=200)
    model = build_tiny_model(folder / "tiny", recipe)
    server = start_server(model, folder / "server.log", HANABI_PLAYERS=5)
    yield server
    assert stop(server.process) == [], "engine processes outlived the server"


@pytest.fixture(scope="module")
def run(five_player_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few steps of the demo's training on a board that the settings name.

    The run folder lies outside the checkout.
    """
    folder = tmp_path_factory.mktemp("five-run")
    environment = five_player_server.environment(
        OUTPUT_DIR="train", MAX_STEPS=STEPS, HANABI_PRESET="mini", HANABI_PLAYERS=5
    )
    trainer = subprocess.run(
        [sys.executable, "-m", "hanabi_grpo.cli", "train"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TRAINER_SECONDS,
        check=False,
    )
    assert trainer.returncode == 0, trainer.stdout[-4000:]
    return folder / "train"


def load_adapter(run: Path, step: int, player: str) -> dict[str, torch.Tensor]:
    return load_file(run / f"checkpoint-{step}" / player / "adapter_model.safetensors")


def test_every_player_learns_an_adapter_of_its_own(run: Path) -> None:
    final = {player: load_adapter(run, STEPS, player) for player in PLAYERS}
    for player, weights in final.items():
        first = load_adapter(run, 1, player)
        for name, tensor in weights.items():
            assert not torch.equal(first[name], tensor), f"{player}: {name} did not change"
    name = next(name for name in final["player_0"] if "lora_B" in name)
    different = {tuple(weights[name].flatten().tolist()) for weights in final.values()}
    assert len(different) == 5


def test_sampler_and_trainer_agree_about_every_player_in_every_step(run: Path) -> None:
    rows = read_metrics(run)
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        for player in PLAYERS:
            assert row[f"{player}/parity"] < 1e-4


def test_every_player_plays_its_own_seat_with_the_newest_version(run: Path) -> None:
    episodes = read_episodes(run, version=2)
    assert len(episodes) == 16
    players_that_acted = set()
    for episode in episodes:
        assert episode.seats == (
            "player_0@2",
            "player_1@2",
            "player_2@2",
            "player_3@2",
            "player_4@2",
        )
        for turn in episode.turns:
            players_that_acted.add(turn.player)
    assert players_that_acted == {0, 1, 2, 3, 4}
