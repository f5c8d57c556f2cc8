"""HANABI_OVERLAP=1 through the real trainer; the games come from scripts, and a thread that sleeps
is the server.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
import test_resumed_run
from test_resumed_run import PLAYERS, STAGES, resume_at, run, start, write_settings

from hanabi_grpo.runs.checkpoints import check_checkpoint, find_checkpoint
from waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
PLAIN, OVERLAPPED = (
    Path(__file__).parent / f"{name}_trainer.py" for name in ("scripted", "overlap")
)


@pytest.fixture(autouse=True)
def _repository_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(test_resumed_run, "SCRIPT", OVERLAPPED)


def overlapped(folder: Path, model: Path, **variables: str) -> Path:
    return write_settings(folder, model, HANABI_OVERLAP="1", **variables)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def seeds_of(folder: Path) -> list[list[int]]:
    """Return the recorded tasks of each step, in order."""
    files = sorted((folder / "episodes").glob("step_*.jsonl"))
    return [[json.loads(line)["seed"] for line in file.read_text().splitlines()] for file in files]


def test_at_no_speed_of_learning_an_overlapped_run_is_the_plain_one_and_at_any_speed_parity_holds(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = {"MAX_STEPS": "3", "LEARNING_RATE": "1e-12", "SAVE_STEPS": "3"}
    # Version 1 differs from version 0, and a clip sees every ratio but 1.
    fast = {"MAX_STEPS": "4", "SAVE_STEPS": "4", "LEARNING_RATE": "0.01", "WARMUP_STEPS": "0"}
    narrow = {"HANABI_CLIP_LOW": "1e-5", "HANABI_CLIP_HIGH": "1e-5"}
    run(overlapped(tmp_path / "still", tiny_model, **still))
    monkeypatch.setattr(test_resumed_run, "SCRIPT", PLAIN)
    run(write_settings(tmp_path / "plain", tiny_model, HANABI_OVERLAP="0", **still))
    monkeypatch.setattr(test_resumed_run, "SCRIPT", OVERLAPPED)
    run(overlapped(tmp_path / "fast", tiny_model, **fast, **narrow), plan={"seconds": 0.7})
    one, other = rows_of(tmp_path / "still"), rows_of(tmp_path / "plain")
    assert [row["staleness"] for row in one] == [0, 1, 1]
    assert all("staleness" not in row and "time/wait" not in row for row in other)
    assert seeds_of(tmp_path / "still") == seeds_of(tmp_path / "plain")
    for name in ("loss", "grad_norm", *(f"{player}/grad_norm" for player in PLAYERS), "score/mean"):
        got, expected = [row[name] for row in one], [row[name] for row in other]
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-6), name
    assert any(row["grad_norm"] > 0 for row in one)
    rows = rows_of(tmp_path / "fast")
    assert [row["staleness"] for row in rows] == [0, 1, 1, 1]
    assert len(seeds_of(tmp_path / "fast")) == 4
    assert seeds_of(tmp_path / "fast")[:3] == seeds_of(tmp_path / "plain")
    assert rows[0]["clip_ratio/region_mean"] == 0
    for row in rows[1:]:
        # The ratio divides by the policy that sampled, and its logprobs are those that came with
        # the games.
        assert row["clip_ratio/region_mean"] > 0
        assert all(row[f"{player}/parity"] < 1e-4 for player in PLAYERS)
        assert row["time/rollout"] >= 0.7
        # The learning of the step before took some of the games' time.
        assert row["time/wait"] < row["time/rollout"]
    assert all(math.isfinite(row["loss"]) for row in rows)
    check_checkpoint(tmp_path / "fast/checkpoint-4")


def test_a_server_that_samples_from_the_version_before_is_caught_although_its_stamps_are_right(
    tiny_model: Path, tmp_path: Path
) -> None:
    settings = overlapped(tmp_path / "run", tiny_model, MAX_STEPS="9", WARMUP_STEPS="0")
    process = start(settings, plan={"stale": 1})
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 2, output[-4000:]
    # Games of version 1 are learned from at version 2, after the steps 1 and 2.
    assert re.search(
        r"ParityError: player_1@1: trainer and sampler logprobs differ by 0\.", output
    ), output[-4000:]
    assert find_checkpoint(tmp_path / "run").manifest.step == 2


def test_games_in_flight_at_a_kill_are_played_again_and_no_deal_is_trained_on_twice_or_left_out(
    tiny_model: Path, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(overlapped(whole, tiny_model, MAX_STEPS="4"))
    process = start(overlapped(cut, tiny_model, MAX_STEPS="4"), plan={"seconds": 3})
    wait_until((cut / "checkpoint-2").exists, 300)
    psutil.Process(process.pid).kill()
    process.communicate()
    assert find_checkpoint(cut).manifest.step == 2
    resume_at(cut, 2)
    assert "the next step is number 3" in run(overlapped(cut, tiny_model, MAX_STEPS="4"))
    assert seeds_of(cut) == seeds_of(whole)
    assert [(row["step"], row["staleness"]) for row in rows_of(cut)] == [
        (1, 0),
        (2, 1),
        (3, 0),
        (4, 1),
    ]


def test_under_deepspeed_one_process_asks_and_all_learn_from_the_same_old_games(
    tiny_model: Path, tmp_path: Path
) -> None:
    settings = overlapped(tmp_path / "run", tiny_model, MAX_STEPS="3", **STAGES["zero2"])
    run(settings, processes=2)
    rows = rows_of(tmp_path / "run")
    assert [row["staleness"] for row in rows] == [0, 1, 1]
    assert [row["updates_dropped"] for row in rows] == [0, 0, 0]
    assert all(row[f"{player}/parity"] < 1e-4 for row in rows for player in PLAYERS)
