"""HANABI_OVERLAP through the real trainer.

The games come from scripts, and a thread that sleeps is the server.
"""

import math
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
from plans import Plan
from scripted_runs import (
    OVERLAP_TRAINER,
    PLAYERS,
    STAGES,
    resume_at,
    run_trainer,
    start_trainer,
    write_settings,
)

from conftest_e2e import read_json_lines, read_metrics
from hanabi_grpo.runs.checkpoints import check_checkpoint, find_checkpoint
from waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.usefixtures("in_repository_root")]
PARITY_TOLERANCE = 1e-4


def overlapped(folder: Path, model: Path, **variables: str) -> Path:
    return write_settings(folder, model, **{"HANABI_OVERLAP": "1", **variables})


def read_seeds(folder: Path) -> list[list[int]]:
    """Return the recorded tasks of each step, in order."""
    seeds = []
    for path in sorted((folder / "episodes").glob("step_*.jsonl")):
        seeds.append([episode["seed"] for episode in read_json_lines(path)])
    return seeds


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


def test_at_no_speed_of_learning_an_overlapped_run_is_the_plain_one_and_at_any_speed_parity_holds(
    tiny_model: Path, tmp_path: Path
) -> None:
    still = {"MAX_STEPS": "3", "LEARNING_RATE": "1e-12", "SAVE_STEPS": "3"}
    run_trainer(overlapped(tmp_path / "still", tiny_model, **still), script=OVERLAP_TRAINER)
    run_trainer(write_settings(tmp_path / "plain", tiny_model, HANABI_OVERLAP="0", **still))
    # Version 1 differs from version 0, and a clip sees every ratio but 1.
    fast = overlapped(
        tmp_path / "fast",
        tiny_model,
        MAX_STEPS="4",
        SAVE_STEPS="4",
        LEARNING_RATE="0.01",
        WARMUP_STEPS="0",
        HANABI_CLIP_LOW="1e-5",
        HANABI_CLIP_HIGH="1e-5",
    )
    run_trainer(fast, script=OVERLAP_TRAINER, plan=Plan(seconds=0.7))
    seeds = read_seeds(tmp_path / "plain")
    assert read_seeds(tmp_path / "still") == seeds
    assert len(read_seeds(tmp_path / "fast")) == 4
    assert read_seeds(tmp_path / "fast")[:3] == seeds
    assert_learned_the_same(read_metrics(tmp_path / "still"), read_metrics(tmp_path / "plain"))
    assert_logprobs_agree(read_metrics(tmp_path / "fast"))
    check_checkpoint(tmp_path / "fast/checkpoint-4")


def assert_learned_the_same(
    overlapped_rows: list[dict[str, Any]], plain_rows: list[dict[str, Any]]
) -> None:
    assert column(overlapped_rows, "staleness") == [0, 1, 1]
    for row in plain_rows:
        assert "staleness" not in row
        assert "time/wait" not in row
    compared = ("loss", "grad_norm", "player_0/grad_norm", "player_1/grad_norm", "score/mean")
    for name in compared:
        expected = column(plain_rows, name)
        assert column(overlapped_rows, name) == pytest.approx(expected, rel=1e-4, abs=1e-6), name
    assert any(row["grad_norm"] > 0 for row in overlapped_rows)


def assert_logprobs_agree(rows: list[dict[str, Any]]) -> None:
    """The ratio divides by the policy that sampled: by the logprobs that came with the games."""
    assert column(rows, "staleness") == [0, 1, 1, 1]
    assert rows[0]["clip_ratio/region_mean"] == 0
    for row in rows[1:]:
        assert row["clip_ratio/region_mean"] > 0
        for player in PLAYERS:
            assert row[f"{player}/parity"] < PARITY_TOLERANCE
        assert row["time/rollout"] >= 0.7
        # The learning of the step before took some of the games' time.
        assert row["time/wait"] < row["time/rollout"]
    for row in rows:
        assert math.isfinite(row["loss"])


FAST = {
    "MAX_STEPS": "6",
    "SAVE_STEPS": "6",
    "LEARNING_RATE": "0.01",
    "WARMUP_STEPS": "0",
    "HANABI_CLIP_LOW": "1e-5",
    "HANABI_CLIP_HIGH": "1e-5",
    "HANABI_OVERLAP": "3",
}


def test_three_steps_ahead_games_are_three_versions_old_and_the_tasks_and_parity_are_the_same(
    tiny_model: Path, tmp_path: Path
) -> None:
    plan = Plan(seconds=0.7)
    run_trainer(overlapped(tmp_path / "ppo", tiny_model, **FAST), script=OVERLAP_TRAINER, plan=plan)
    decoupled = overlapped(
        tmp_path / "decoupled",
        tiny_model,
        HANABI_DECOUPLED_LOSS="1",
        HANABI_SAMPLER_CORRECTION="token_truncate",
        **FAST,
    )
    run_trainer(decoupled, script=OVERLAP_TRAINER, plan=plan)
    one_ahead = overlapped(tmp_path / "one", tiny_model, **{**FAST, "HANABI_OVERLAP": "1"})
    run_trainer(one_ahead, script=OVERLAP_TRAINER, plan=plan)
    for name in ("ppo", "decoupled"):
        rows = read_metrics(tmp_path / name)
        assert column(rows, "staleness") == [0, 1, 2, 3, 3, 3]
        assert read_seeds(tmp_path / name) == read_seeds(tmp_path / "one")
        for row in rows:
            assert math.isfinite(row["loss"])
            for player in PLAYERS:
                assert row[f"{player}/parity"] < PARITY_TOLERANCE
    # Against the policy that sampled, a clip of 1e-5 stops tokens of every later step; against the
    # policy of now it stops none, since a step makes one update.
    clipped = column(read_metrics(tmp_path / "ppo"), "clip_ratio/region_mean")
    assert min(clipped[1:]) > 0
    assert column(read_metrics(tmp_path / "decoupled"), "clip_ratio/region_mean") == [0] * 6


def test_a_resumed_run_asks_for_all_steps_ahead_again_and_leaves_out_no_task(
    tiny_model: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    variables = {"MAX_STEPS": "6", "HANABI_OVERLAP": "2"}
    run_trainer(overlapped(whole, tiny_model, **variables), script=OVERLAP_TRAINER)
    process = start_trainer(
        overlapped(cut, tiny_model, **variables), script=OVERLAP_TRAINER, plan=Plan(seconds=3)
    )
    wait_until((cut / "checkpoint-2").exists, 600)
    psutil.Process(process.pid).kill()
    process.communicate()
    resume_at(cut, 2)
    run_trainer(overlapped(cut, tiny_model, **variables), script=OVERLAP_TRAINER)
    assert read_seeds(cut) == read_seeds(whole)
    assert column(read_metrics(cut), "staleness") == [0, 1, 0, 1, 2, 2]


def test_a_server_that_samples_from_the_version_before_is_caught_although_its_stamps_are_right(
    tiny_model: Path, tmp_path: Path
) -> None:
    settings = overlapped(tmp_path / "run", tiny_model, MAX_STEPS="9", WARMUP_STEPS="0")
    output = run_trainer(settings, script=OVERLAP_TRAINER, plan=Plan(stale=1), exit_code=2)
    # Games of version 1 are learned from at version 2, after the steps 1 and 2.
    message = r"ParityError: player_1@1: trainer and sampler logprobs differ by 0\."
    assert re.search(message, output), output[-4000:]
    assert find_checkpoint(tmp_path / "run").manifest.step == 2


def test_games_in_flight_at_a_kill_are_played_again_and_no_task_is_trained_on_twice_or_left_out(
    tiny_model: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    run_trainer(overlapped(whole, tiny_model, MAX_STEPS="4"), script=OVERLAP_TRAINER)
    settings = overlapped(cut, tiny_model, MAX_STEPS="4")
    process = start_trainer(settings, script=OVERLAP_TRAINER, plan=Plan(seconds=3))
    wait_until((cut / "checkpoint-2").exists, 600)
    psutil.Process(process.pid).kill()
    process.communicate()
    assert find_checkpoint(cut).manifest.step == 2
    resume_at(cut, 2)
    output = run_trainer(overlapped(cut, tiny_model, MAX_STEPS="4"), script=OVERLAP_TRAINER)
    assert "the next step is number 3" in output
    assert read_seeds(cut) == read_seeds(whole)
    rows = read_metrics(cut)
    assert column(rows, "step") == [1, 2, 3, 4]
    assert column(rows, "staleness") == [0, 1, 0, 1]


def test_under_deepspeed_one_process_asks_and_all_learn_from_the_same_old_games(
    tiny_model: Path, tmp_path: Path
) -> None:
    settings = overlapped(tmp_path / "run", tiny_model, MAX_STEPS="3", **STAGES["zero2"])
    run_trainer(settings, script=OVERLAP_TRAINER, processes=2)
    rows = read_metrics(tmp_path / "run")
    assert column(rows, "staleness") == [0, 1, 1]
    assert column(rows, "updates_dropped") == [0, 0, 0]
    for player in PLAYERS:
        assert max(column(rows, f"{player}/parity")) < PARITY_TOLERANCE
