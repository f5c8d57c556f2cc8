"""Several updates of a step through the real trainer, in one process and under DeepSpeed.

The games come from scripts.
"""

from pathlib import Path

import pytest
import torch
from scripted_runs import (
    PLAYERS,
    STAGES,
    cut_at,
    differing_names,
    load_adapter,
    num_processes,
    player_state,
    run_trainer,
    write_settings,
)

from hanabi_grpo.runs.checkpoints import check_checkpoint
from hanabi_grpo.runs.history import read_history

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.usefixtures("in_repository_root")]

CONSTANT = {"LR_SCHEDULER_TYPE": "constant", "WARMUP_STEPS": "0"}


@pytest.mark.parametrize(
    ("stage", "updates"),
    [
        (
            "torch",
            {
                "HANABI_UPDATES_PER_STEP": "2",
                "HANABI_SWAP_EVERY": "1",
                "HANABI_ENTROPY_BONUS": "0.01",
                "HANABI_ENTROPY_TARGET": "2",
                "BETA": "0.1",
                "HANABI_SAMPLER_CORRECTION": "token_truncate",
            },
        ),
        (
            "zero2",
            {
                "HANABI_UPDATE": "sequential",
                "HANABI_UPDATES_PER_STEP": "2",
                "HANABI_MINIBATCHES": "2",
                "HANABI_LOSS_UNIT": "turn",
                "HANABI_SWAP_EVERY": "1",
                "HANABI_MEMORY": "2",
            },
        ),
        # Pairs of games: every other task or so is flat.
        (
            "zero2",
            {"HANABI_RESAMPLE_FLAT": "2", "NUM_GENERATIONS": "2", "HANABI_TASKS_PER_STEP": "8"},
        ),
        (
            "torch",
            {
                "NUM_GENERATIONS": "1",
                "HANABI_TASKS_PER_STEP": "8",
                "HANABI_ADVANTAGE": "return_to_go",
                "HANABI_GAMMA": "0.9",
                "HANABI_NORMALIZE": "mean_std",
                "HANABI_NORMALIZE_OVER": "step",
                "HANABI_WHITEN_REWARDS": "1",
                "HANABI_WHITEN_ADVANTAGES": "1",
                "HANABI_REWARD_CLIP": "3",
                "HANABI_ADVANTAGE_CLIP": "2",
                "HANABI_TRAIN_THOUGHTS": "0",
                "BETA": "0.05",
                "HANABI_KL_TARGET": "0.001",
                "HANABI_REFERENCE": "start",
            },
        ),
        (
            "zero2",
            {
                "HANABI_ADVANTAGE": "rloo",
                "HANABI_UPDATES_PER_STEP": "2",
                "HANABI_DUAL_CLIP": "1.5",
                "HANABI_WHITEN_ADVANTAGES": "1",
                "BETA": "0.05",
                "HANABI_KL_IN": "reward",
                "HANABI_KL_TARGET": "0.001",
                "HANABI_REFERENCE": "every:2",
            },
        ),
        (
            "zero2",
            {
                "HANABI_ADVANTAGE": "ippo",
                "HANABI_CRITIC": "adapter",
                "HANABI_GAE_UNIT": "token",
                "HANABI_GAE_LAMBDA": "0.99",
                "HANABI_WHITEN_ADVANTAGES": "1",
                "LORA_RANK": "player_0=8,player_1=16",
                "LEARNING_RATE": "player_0=1e-3,player_1=2e-3",
            },
        ),
        # The weight is 0 from the last step on.
        (
            "zero2",
            {
                "HANABI_TEACHER": "player_0=iggi,player_1=focus-bot",
                "HANABI_TEACHER_WEIGHT": "player_0=1,player_1=0.3",
                "HANABI_TEACHER_STEPS": "3",
                "HANABI_TEACHER_PLAYS": "player_0=0,player_1=0.3",
                "HANABI_REWARD_WEIGHT": "player_0=0.5,player_1=1",
                "HANABI_SWAP_EVERY": "1",
                "HANABI_MEMORY": "turn",
                "HANABI_LOSS_UNIT": "turn",
            },
        ),
    ],
    ids=[
        "passes-torch",
        "sequential-minibatches-zero2",
        "resampled-zero2",
        "groups-of-one-torch",
        "kl-in-reward-zero2",
        "adapter-critic-zero2",
        "taught-zero2",
    ],
)
def test_a_run_with_several_updates_resumes_bit_by_bit(
    tmp_path: Path, tiny_model: Path, stage: str, updates: dict[str, str]
) -> None:
    processes = num_processes(stage)
    variables = {"SAVE_STEPS": "1", **STAGES[stage], **updates}
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    run_trainer(write_settings(whole, tiny_model, MAX_STEPS="4", **variables), processes=processes)
    cut_at(whole, cut, 2)
    run_trainer(write_settings(cut, tiny_model, MAX_STEPS="4", **variables), processes=processes)
    for player in PLAYERS:
        expected = player_state(whole / "checkpoint-4", player)
        resumed = player_state(cut / "checkpoint-4", player)
        assert differing_names(expected, resumed) == [], player
    if "HANABI_RESAMPLE_FLAT" in updates:
        assert_same_resampling(whole, cut)


def assert_same_resampling(whole: Path, cut: Path) -> None:
    rows = read_history(whole / "metrics.jsonl")
    resumed_rows = read_history(cut / "metrics.jsonl")
    assert max(row["resample/rounds"] for row in rows) >= 1
    for row, resumed_row in zip(rows, resumed_rows, strict=True):
        assert row["resample/flat_before"] == row["flat_group_share"]
        assert row["resample/flat_after"] <= row["resample/flat_before"]
        assert row["games"] == 16
        assert row["resample/games_used"] == 16
        assert row["resample/games_played"] >= 16
        for name, value in row.items():
            if name.startswith("resample/"):
                assert value == resumed_row[name], name


def flat_lora_b(checkpoint: Path, player: str) -> torch.Tensor:
    """Return all entries of a player's LoRA B matrices in one row."""
    matrices = []
    for name, value in load_adapter(checkpoint, player).items():
        if "lora_B" in name:
            matrices.append(value.flatten())
    return torch.cat(matrices)


def test_two_processes_under_zero_2_make_the_step_that_one_process_makes(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extensions = tmp_path / "extensions"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(extensions))
    one_process = tmp_path / "one"
    two_processes = tmp_path / "two"
    run_trainer(write_settings(one_process, tiny_model, MAX_STEPS="1", **CONSTANT))
    settings = write_settings(
        two_processes, tiny_model, MAX_STEPS="1", **CONSTANT, **STAGES["zero2"]
    )
    run_trainer(settings, processes=2)
    for player in PLAYERS:
        expected = flat_lora_b(one_process / "checkpoint-1", player)
        actual = flat_lora_b(two_processes / "checkpoint-1", player)
        # Adam's first step is learning rate × sign, so an entry differs only where its gradient is
        # all but zero.
        assert expected.abs().max() > 0.009
        share = ((expected - actual).abs() < 1e-4).float().mean()
        assert share > 0.99, f"{player}: {share:.1%} of the entries agree"
    assert not extensions.exists(), "DeepSpeed compiled something that training does not use"


def test_a_frozen_player_is_saved_as_it_started_and_the_start_is_another_runs_checkpoint(
    tmp_path: Path, tiny_model: Path
) -> None:
    variables = {"SAVE_STEPS": "2", "MAX_STEPS": "2"}
    run_trainer(write_settings(tmp_path / "source", tiny_model, **variables))
    source = tmp_path / "source/checkpoint-2"
    # The frozen run under DeepSpeed, which has the moments of all players in one place.
    settings = write_settings(
        tmp_path / "frozen",
        tiny_model,
        HANABI_START_FROM=f"player_0={source}:player_1,player_1={source}:player_0",
        HANABI_FREEZE="player_1",
        **variables,
        **STAGES["zero2"],
    )
    run_trainer(settings, processes=2)
    checkpoint = tmp_path / "frozen/checkpoint-2"
    frozen = load_adapter(checkpoint, "player_1")
    assert differing_names(frozen, load_adapter(source, "player_0")) == []
    trained = load_adapter(checkpoint, "player_0")
    assert differing_names(trained, load_adapter(source, "player_1")) != []
    started = check_checkpoint(checkpoint).facts["started_from"]
    assert started["player_0"]["adapter"] == "player_1"
    assert started["player_1"]["step"] == 2
