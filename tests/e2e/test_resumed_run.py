"""A resumed run makes the steps of an uninterrupted one; no player moves by another's data.

The trainers are real; their games come from scripts (scripted_trainer.py), so that two runs see the
same data.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest
from plans import Plan, PlayerSteps
from scripted_runs import (
    OPTIONS,
    PLAYERS,
    STAGES,
    cut_at,
    differing_names,
    load_adapter,
    num_processes,
    player_state,
    resume_at,
    run_trainer,
    start_trainer,
    write_settings,
)

from conftest_e2e import read_json_lines, read_metrics
from hanabi_grpo.runs.checkpoints import check_checkpoint, find_checkpoint
from hanabi_grpo.runs.history import cut_records
from hanabi_grpo.runs.restored_run import restore_run
from hanabi_grpo.settings import read_settings
from hanabi_grpo.tracking.artifact import build_artifact
from waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.usefixtures("in_repository_root")]


def recorded_steps(folder: Path) -> list[int]:
    return [row["step"] for row in read_metrics(folder)]


def kill(trainer: "subprocess.Popen[str]") -> None:
    """Kill a trainer with its processes, wherever they are."""
    parent = psutil.Process(trainer.pid)
    for process in [parent, *parent.children(recursive=True)]:
        process.kill()
    trainer.communicate()


KILLED = "zero1"
"""The stage whose run is killed after its second checkpoint; the others are cut there."""


# One process and torch's optimizer are those of qmix, and critics those of mappo.
@pytest.mark.parametrize("stage", ["zero1", "zero3", "mappo", "qmix", "bfloat16"])
def test_resumed_steps_are_bit_equal_to_uninterrupted_ones(
    stage: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a thread for each core, as a user's trainer.
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    variables = STAGES[stage]
    processes = num_processes(stage)
    options = OPTIONS.get(stage, ())
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    settings = write_settings(whole, tiny_model, MAX_STEPS="4", **variables)
    run_trainer(settings, processes=processes, options=options)
    if stage == KILLED:
        settings = write_settings(cut, tiny_model, MAX_STEPS="4", **variables)
        trainer = start_trainer(settings, processes=processes, options=options)
        wait_until((cut / "checkpoint-2").exists, 600)
        kill(trainer)
        assert find_checkpoint(cut).manifest.step >= 2
        resume_at(cut, 2)
    else:
        cut_at(whole, cut, 2)
    settings = write_settings(cut, tiny_model, MAX_STEPS="4", **variables)
    output = run_trainer(settings, processes=processes, options=options)
    assert "the next step is number 3" in output
    for step in (3, 4):
        check_checkpoint(cut / f"checkpoint-{step}")
        for player in PLAYERS:
            expected = player_state(whole / f"checkpoint-{step}", player)
            resumed = player_state(cut / f"checkpoint-{step}", player)
            assert differing_names(expected, resumed) == [], f"step {step}, {player}"
            assert expected["updates"] == step
            has_critic = any("|head." in name for name in expected)
            assert has_critic == ("HANABI_ADVANTAGE" in variables)


def test_steps_after_a_resume_from_an_artifact_are_bit_equal_to_uninterrupted_ones(
    tiny_model: Path, tmp_path: Path
) -> None:
    variables = {**STAGES["qmix"], "MAX_STEPS": "4", "UPLOAD_CKPT_TO_WANDB": "full"}
    whole = tmp_path / "whole"
    run_trainer(write_settings(whole, tiny_model, **variables))
    settings = read_settings(whole / "settings.json")
    made, _ = build_artifact(whole, whole / "checkpoint-2", settings, None)
    artifact = tmp_path / "downloaded"
    shutil.copytree(made, artifact)
    # What an uninterrupted run would have come to is all that is kept of it.
    expected = {player: player_state(whole / "checkpoint-4", player) for player in PLAYERS}
    shutil.rmtree(whole)

    elsewhere = tmp_path / "elsewhere"
    restore_run(artifact, elsewhere, resume=str(artifact))
    resume_at(elsewhere, 2)
    cut_records(elsewhere, 2)
    settings_file = write_settings(elsewhere, tiny_model, **variables)
    assert "the next step is number 3" in run_trainer(settings_file)
    for player in PLAYERS:
        resumed = player_state(elsewhere / "checkpoint-4", player)
        assert differing_names(expected[player], resumed) == [], player
    assert recorded_steps(elsewhere) == [1, 2, 3, 4]


def test_zero3_takes_the_gradients_of_zero2_also_with_weights_in_the_hosts_memory(
    tiny_model: Path, tmp_path: Path
) -> None:
    config = {
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    offloaded = tmp_path / "offloaded.json"
    offloaded.write_text(json.dumps(config))
    norms = []
    for stage in ("zero2", "zero3", str(offloaded)):
        folder = tmp_path / Path(stage).stem
        variables = {**STAGES["zero2"], "DEEPSPEED": stage, "MAX_STEPS": "3"}
        run_trainer(write_settings(folder, tiny_model, **variables), processes=2)
        rows = read_metrics(folder)
        norms.append([row[f"{player}/grad_norm"] for row in rows for player in PLAYERS])
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    assert norms[2] == norms[1]


@pytest.mark.parametrize("stage", ["zero3", "critics"])
def test_steps_without_a_players_data_leave_all_of_it_bit_identical(
    stage: str, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    settings = write_settings(
        folder, tiny_model, MAX_STEPS="3", HANABI_SWAP_EVERY="2", **STAGES[stage]
    )
    absent = PlayerSteps(player=1, steps=(1, 2))
    run_trainer(settings, processes=num_processes(stage), plan=Plan(absent=absent))
    first = folder / "checkpoint-1"
    last = folder / "checkpoint-3"
    absent_before = player_state(first, "player_1")
    absent_after = player_state(last, "player_1")
    assert differing_names(absent_before, absent_after) == []
    present_before = player_state(first, "player_0")
    present_after = player_state(last, "player_0")
    assert present_after["updates"] == 3
    changed = differing_names(present_before, present_after)
    assert any("lora_B" in name and "|" not in name for name in changed)
    assert any(name.endswith("|exp_avg_sq") for name in changed)


def test_a_run_that_gets_no_better_stops_and_keeps_its_best_checkpoint(
    tiny_model: Path, tmp_path: Path
) -> None:
    # The scripted players never learn: the first version is the best, and every later one is stale.
    variables = {
        "SAVE_STEPS": "1",
        "HANABI_EVAL_STEPS": "1",
        "HANABI_EVAL_TASKS": "4",
        "SAVE_TOTAL_LIMIT": "1",
    }
    folder = tmp_path / "run"
    run_trainer(write_settings(folder, tiny_model, MAX_STEPS="2", **variables))
    validations = json.loads((folder / "validation.json").read_text())
    assert [validation["step"] for validation in validations] == [0, 1, 2]
    assert len({validation["score"] for validation in validations}) == 1
    resume_at(folder, 2)
    settings = write_settings(
        folder, tiny_model, MAX_STEPS="9", HANABI_EVAL_PATIENCE="4", **variables
    )
    output = run_trainer(settings)
    assert "best in validation: the start" in output
    assert recorded_steps(folder) == [1, 2, 3, 4, 5], (
        "the version before step 5 was the fourth that is no better"
    )
    stale = [row.get("validation/stale") for row in read_metrics(folder)]
    # A resumed run validates the version that it begins with again, whose row was moved aside.
    assert stale == [0, 1, 2, 3, 4]
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-5"]


def trained_players(folder: Path) -> list[list[str]]:
    """Return the players that each step of a run trained."""
    trained = []
    for row in read_metrics(folder):
        trained.append([player for player in PLAYERS if f"{player}/grad_norm" in row])
    return trained


def test_phases_of_best_response_resume_bit_by_bit_and_end_with_a_round_in_vain(
    tiny_model: Path, tmp_path: Path
) -> None:
    # The scripted players never learn, so each phase lasts as long as its patience: player_0 moves
    # in steps 1 and 2 and returns in step 3, player_1 moves in 4 and 5 and returns in 6, with which
    # the round and the run end.
    variables = {
        "SAVE_STEPS": "1",
        "HANABI_EVAL_STEPS": "1",
        "HANABI_EVAL_TASKS": "4",
        "HANABI_EVAL_PATIENCE": "2",
        "HANABI_UPDATE": "best_response",
        "LR_SCHEDULER_TYPE": "constant",
        "WARMUP_STEPS": "0",
        **STAGES["zero2"],
    }
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    settings = write_settings(whole, tiny_model, MAX_STEPS="9", **variables)
    output = run_trainer(settings, processes=2)
    assert "phase 1: now training player_1" in output
    assert "a full round of players found no version" in output
    # Interrupted between the validation that ends a phase, or the run, and the return after it.
    for start, end in ((0, 2), (2, 5), (5, 9)):
        if start > 0:
            resume_at(cut, start)
        settings = write_settings(cut, tiny_model, MAX_STEPS=str(end), **variables)
        run_trainer(settings, processes=2)
    for folder in (whole, cut):
        assert recorded_steps(folder) == [1, 2, 3, 4, 5, 6]
        assert trained_players(folder) == [
            ["player_0"],
            ["player_0"],
            [],
            ["player_1"],
            ["player_1"],
            [],
        ]
    assert (whole / "validation.json").read_text() == (cut / "validation.json").read_text()
    for player in PLAYERS:
        expected = player_state(whole / "checkpoint-6", player)
        resumed = player_state(cut / "checkpoint-6", player)
        assert differing_names(expected, resumed) == [], player
        assert expected["updates"] == 2, player
    for player, before, after in (("player_0", 2, 3), ("player_1", 5, 6)):
        changed = differing_names(
            player_state(whole / f"checkpoint-{before}", player),
            player_state(whole / f"checkpoint-{after}", player),
        )
        assert changed, "its phase was over: it returned to the best version of the phase"
        assert not any("|" in name for name in changed), "its moments rest"
    # The best version of each phase is the one that it began with, since nobody got better.
    for name, value in load_adapter(whole / "checkpoint-3", "player_0").items():
        assert not ("lora_B" in name and value.any()), "new adapters begin at 0"
    at_start = load_adapter(whole / "checkpoint-3", "player_1")
    at_end = load_adapter(whole / "checkpoint-6", "player_1")
    assert differing_names(at_start, at_end) == []


def test_a_zero_sum_game_trains_as_any_other(tiny_model: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "kuhn.jsonl"
    task = {
        "messages": [{"role": "user", "content": "x"}],
        "env": "kuhn_poker",
        "env_config": {"preset": "kuhn_poker"},
    }
    tasks.write_text(json.dumps(task) + "\n")
    folder = tmp_path / "run"
    settings = write_settings(
        folder, tiny_model, DATASET=str(tasks), HANABI_MAX_MODEL_LEN="512", MAX_STEPS="2"
    )
    run_trainer(settings, plan=Plan(any_vocabulary=True))
    assert recorded_steps(folder) == [1, 2]
    for row in read_metrics(folder):
        assert row["player_0/reward"] == row["first"]
        assert row["player_0/reward"] == -row["player_1/reward"]
        assert row["player_0/reward"] == row["score/mean"]
        assert "hints_per_game" not in row
    first = player_state(folder / "checkpoint-1", "player_0")
    last = player_state(folder / "checkpoint-2", "player_0")
    assert any("lora_B" in name for name in differing_names(first, last))


def test_faults_inside_a_step_are_dropped_counted_and_reported(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    plan = Plan(
        nan_loss=PlayerSteps(player=1, steps=(1,)),
        nan_reward=(2,),
        empty=(3,),
        full_disk=(2,),
    )
    output = run_trainer(write_settings(folder, tiny_model, MAX_STEPS="5"), plan=plan)
    rows = read_metrics(folder)
    assert recorded_steps(folder) == [1, 2, 3, 4, 5]
    assert [row["updates_dropped"] for row in rows] == [0, 1, 0, 0, 0]
    assert rows[2]["games_dropped"] == 1
    assert rows[3]["groups_dropped"] == 2
    kinds = [incident["kind"] for incident in read_json_lines(folder / "incidents.jsonl")]
    assert kinds.count("update_dropped") == 1
    assert kinds.count("step_dropped") == 1
    assert kinds.count("save_failed") == 1
    assert "games_dropped" in kinds
    assert not (folder / "checkpoint-2").exists()
    assert not list(folder.glob(".checkpoint-*"))
    assert (folder / "checkpoint-3").exists(), output[-3000:]
    # Steps 1, 3 and 5 moved player 1: its second update and everybody's fourth were dropped.
    assert player_state(folder / "checkpoint-4", "player_1")["updates"] == 2
    assert player_state(folder / "checkpoint-5", "player_1")["updates"] == 3


def test_a_bad_gradient_under_deepspeed_drops_the_step_of_all_players_and_the_run_goes_on(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    settings = write_settings(folder, tiny_model, MAX_STEPS="3", **STAGES["zero2"])
    nan_loss = PlayerSteps(player=1, steps=(1,))
    run_trainer(settings, processes=2, plan=Plan(nan_loss=nan_loss))
    assert [row["updates_dropped"] for row in read_metrics(folder)] == [0, 2, 0]
    for player in PLAYERS:
        first = player_state(folder / "checkpoint-1", player)
        second = player_state(folder / "checkpoint-2", player)
        third = player_state(folder / "checkpoint-3", player)
        assert differing_names(first, second) == []
        assert third["updates"] == 2


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            Plan(empty=(0, 1, 2)),
            "NonFiniteError: 3 steps in a row had no usable game; the last reasons: ",
        ),
        (
            # The fourth is the one with which a run that ends saves its last step.
            Plan(full_disk=(1, 2, 3)),
            r"RunFolderError: .* 4 saves in a row failed, over \d s; the earlier checkpoints",
        ),
    ],
    ids=["no-games", "full-disk"],
)
def test_three_bad_steps_in_a_row_stop_the_run(
    plan: Plan, message: str, tiny_model: Path, tmp_path: Path
) -> None:
    settings = write_settings(tmp_path / "run", tiny_model, MAX_STEPS="9")
    output = run_trainer(settings, plan=plan, exit_code=2)
    assert re.search(message, output), output[-4000:]
