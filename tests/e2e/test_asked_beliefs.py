"""Beliefs of real players: asked through /score/ on a server, and learned in a real run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conftest_e2e import TRAINER_SECONDS, Server, read_episodes, read_metrics, train

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.usefixtures("in_repository_root")]

STEPS = 3
MOST_BITS = 40.0
TURN = {"HANABI_MEMORY": "turn", "HANABI_PRESET": "laptop"}


def test_a_run_learns_to_name_its_cards_and_the_command_measures_it(
    server: Server, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = train(
        server,
        run,
        MAX_STEPS=STEPS,
        LEARNING_RATE="0.01",
        HANABI_BELIEF_WEIGHT="player_0=1,player_1=0",
        **TURN,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    rows = read_metrics(run)
    losses = [row["player_0/belief_loss"] for row in rows]
    assert losses[-1] < losses[0]
    assert all("player_1/belief_loss" not in row for row in rows)
    for version in range(STEPS):
        for episode in read_episodes(run, version):
            for turn in episode.turns:
                assert "me slot0 " in f"{turn.prompt} ", "each message lists the player's slots"
                assert turn.prompt.count(" me ") == 1, "no question is in a game's conversation"

    out = tmp_path / "beliefs.json"
    command = [sys.executable, "-m", "hanabi_grpo.cli", "beliefs", str(run), "base,hint-bot"]
    process = subprocess.run(
        [*command, "--tasks", "4", "--out", str(out)],
        env=server.environment(OUTPUT_DIR=tmp_path / "outputs", **TURN),
        capture_output=True,
        text=True,
        timeout=TRAINER_SECONDS,
        check=False,
    )
    assert process.returncode == 0, (process.stdout + process.stderr)[-4000:]
    beliefs = json.loads(out.read_text())["beliefs"]
    [own] = beliefs[str(run)]
    for player in ("player_0", "player_1"):
        figures = own["players"][player]
        assert 0 < figures["kl"]["mean"] < MOST_BITS
        assert 0 <= figures["answered"]["mean"] <= 1
        assert figures["log_loss_exact"]["mean"] < figures["log_loss"]["mean"]
    asked, unasked = (own["players"][name]["answered"]["mean"] for name in ("player_0", "player_1"))
    assert asked > unasked, "only player_0 has learned to answer"
    for order in beliefs["base,hint-bot"]:
        for player, policy in enumerate(order["seats"]):
            assert ("kl" in order["players"][f"player_{player}"]) == (policy == "base")
