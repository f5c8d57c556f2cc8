"""A team of two base models of different width and vocabulary, trained together.

First the real trainer with scripted games (scripted_trainer.py), then both real processes.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from plans import Plan, PlayerSteps
from scripted_runs import (
    PLAYERS,
    STAGES,
    differing_names,
    load_adapter,
    num_processes,
    player_state,
    resume_at,
    run_trainer,
    write_settings,
)
from transformers import AutoTokenizer

from conftest_e2e import (
    TRAINER_SECONDS,
    Server,
    read_episodes,
    read_json_lines,
    read_metrics,
    start_server,
    stop,
    train,
)
from hanabi_grpo.runs.checkpoints import check_checkpoint
from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.runs.manifest import read_manifest
from wider_models import write_wider_model

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.usefixtures("in_repository_root")]

NARROW = 128
"""Width of the shipped model."""
WIDE = 192
STEPS = 3


@pytest.fixture(scope="session")
def wider_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base model of player_1; nobody may write into it."""
    return write_wider_model(tmp_path_factory.mktemp("wider") / "model")


def team_of(first: Path, second: Path) -> str:
    """Return MODEL of two players."""
    return f"player_0={first},player_1={second}"


def test_resumed_steps_of_two_base_models_are_bit_equal_to_uninterrupted_ones(
    tiny_model: Path, wider_model: Path, tmp_path: Path
) -> None:
    # Critics, two processes, and players that change seats.
    variables = {**STAGES["mappo"], "MODEL": team_of(tiny_model, wider_model)}
    processes = num_processes("mappo")
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"

    def run_steps(folder: Path, last: int) -> str:
        settings = write_settings(folder, tiny_model, MAX_STEPS=str(last), **variables)
        return run_trainer(settings, processes=processes)

    run_steps(whole, 3)
    run_steps(cut, 2)
    resume_at(cut, 2)
    assert "the next step is number 3" in run_steps(cut, 3)
    check_checkpoint(cut / "checkpoint-3")
    for player, width in zip(PLAYERS, (NARROW, WIDE), strict=True):
        expected = player_state(whole / "checkpoint-3", player)
        resumed = player_state(cut / "checkpoint-3", player)
        assert expected["updates"] == 3
        assert differing_names(expected, resumed) == [], player
        before = player_state(whole / "checkpoint-1", player)
        assert any("lora_B" in name for name in differing_names(before, expected)), player
        adapter = load_adapter(whole / "checkpoint-3", player)
        [down] = {tensor.shape[1] for name, tensor in adapter.items() if "q_proj.lora_A" in name}
        assert down == width
    checksums = read_manifest(whole / "checkpoint-3").facts["base_checksums"]
    assert set(checksums) == set(PLAYERS)
    assert checksums["player_0"] != checksums["player_1"]


@pytest.mark.parametrize(("absent", "present"), [(0, "player_1"), (1, "player_0")])
def test_steps_without_the_data_of_a_base_models_player_leave_all_of_it_bit_identical(
    absent: int, present: str, tiny_model: Path, wider_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    settings = write_settings(
        folder, tiny_model, MAX_STEPS="3", MODEL=team_of(tiny_model, wider_model)
    )
    run_trainer(settings, plan=Plan(absent=PlayerSteps(player=absent, steps=(1, 2))))
    first = folder / "checkpoint-1"
    last = folder / "checkpoint-3"
    name = PLAYERS[absent]
    assert differing_names(player_state(first, name), player_state(last, name)) == []
    changed = differing_names(player_state(first, present), player_state(last, present))
    assert any("lora_B" in tensor and "|" not in tensor for tensor in changed)


def test_a_player_moves_as_it_would_beside_a_partner_of_its_own_base_model(
    tiny_model: Path, wider_model: Path, tmp_path: Path
) -> None:
    # Scripts choose the moves, so what player_0 learns from does not depend on its partner's model.
    alone = tmp_path / "alone"
    beside = tmp_path / "beside"
    run_trainer(write_settings(alone, tiny_model, MAX_STEPS="2"))
    variables = {"MODEL": team_of(tiny_model, wider_model)}
    run_trainer(write_settings(beside, tiny_model, MAX_STEPS="2", **variables))
    expected = load_adapter(alone / "checkpoint-2", "player_0")
    assert differing_names(expected, load_adapter(beside / "checkpoint-2", "player_0")) == []


@pytest.fixture(scope="module")
def team_server(
    tiny_model: Path, wider_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with an engine for each of the two base models."""
    log = tmp_path_factory.mktemp("team") / "server.log"
    model = team_of(tiny_model, wider_model)
    server = start_server(Path(model), log, MODEL=model)
    yield server
    assert stop(server.process) == [], "engine processes outlived the server"


@pytest.fixture(scope="module")
def team_run(team_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few steps of both processes."""
    folder = tmp_path_factory.mktemp("team-run") / "train"
    done = train(
        team_server,
        folder,
        MODEL=team_server.model,
        DATASET=Path("data/hanabi.laptop.jsonl").resolve(),
        MAX_STEPS=STEPS,
        SAVE_TOTAL_LIMIT=20,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return folder


def test_both_players_learn_each_on_its_own_base_model(team_run: Path) -> None:
    for player, width in zip(PLAYERS, (NARROW, WIDE), strict=True):
        first = load_adapter(team_run / "checkpoint-1", player)
        last = load_adapter(team_run / f"checkpoint-{STEPS}", player)
        assert all(name.endswith(".weight") for name in differing_names(first, last))
        assert len(differing_names(first, last)) == len(first), "every tensor moves"
        assert {value.shape[1] for name, value in last.items() if "q_proj.lora_A" in name} == {
            width
        }


def test_the_mismatch_check_compares_each_player_on_its_own_base_model(team_run: Path) -> None:
    rows = read_metrics(team_run)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        for player in PLAYERS:
            assert 0 < row[f"{player}/parity"] < 1e-4
    incidents = team_run / "incidents.jsonl"
    kinds = [one["kind"] for one in read_json_lines(incidents)] if incidents.exists() else []
    assert not [kind for kind in kinds if kind.startswith("mismatch")]


def test_players_read_and_write_the_tokens_of_their_own_base_model(team_run: Path) -> None:
    chats = [AutoTokenizer.from_pretrained(model) for model in models_of(team_run)]
    for episode in read_episodes(team_run, version=1):
        for turn in episode.turns:
            text = chats[turn.player].decode(list(turn.reply_ids), skip_special_tokens=True)
            assert text == turn.reply


def test_a_checkpoint_names_each_players_base_model_and_a_server_checks_it(
    team_run: Path, team_server: Server, tiny_model: Path, wider_model: Path
) -> None:
    facts = read_manifest(team_run / f"checkpoint-{STEPS}").facts
    identity = httpx.get(f"{team_server.url}/identity/", trust_env=False).json()
    assert facts["bases"] == identity["bases"]
    for player, model in zip(PLAYERS, (tiny_model, wider_model), strict=True):
        assert facts["bases"][player]["model"] == str(model)
        assert facts["bases"][player]["model_fingerprint"] == model_fingerprint(model)


def test_a_trainer_with_one_of_the_models_is_refused_by_the_name_of_the_player(
    team_server: Server, tiny_model: Path, tmp_path: Path
) -> None:
    done = train(team_server, tmp_path / "one", MODEL=tiny_model, MAX_STEPS=1)
    assert done.returncode != 0
    assert "base model of player_1 differs: server" in done.stdout


def test_checkpoints_of_the_team_play_as_guests_in_any_seat(
    team_run: Path, team_server: Server
) -> None:
    checkpoint = team_run / f"checkpoint-{STEPS}"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "hanabi_grpo.cli",
            "evaluate",
            f"{checkpoint}:player_1,{checkpoint}:player_0",
            f"{checkpoint}:player_1,base",
            "--tasks",
            "4",
        ],
        env=team_server.environment(MODEL=team_server.model),
        capture_output=True,
        text=True,
        timeout=TRAINER_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def models_of(run: Path) -> list[str]:
    """Return the base models of a run's players."""
    values = json.loads((run / "settings.json").read_text())["settings"]
    return [entry.partition("=")[2] for entry in values["MODEL"].split(",")]
