"""Updates of a step through the real trainer, alone and under DeepSpeed; its games come from
scripts.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_resumed_run import PLAYERS, STAGES, everything, resume_at, run, write_settings

from hanabi_grpo.runs.checkpoints import check_checkpoint
from hanabi_grpo.runs.history import read_history

pytestmark = [pytest.mark.e2e, pytest.mark.rest]


@pytest.fixture(autouse=True)
def _repository_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


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
                "HANABI_SWAP_EVERY": "1",
                "HANABI_MEMORY": "2",
            },
        ),
        # Pairs of games: every other task or so is flat.
        (
            "zero2",
            {"HANABI_RESAMPLE_FLAT": "2", "NUM_GENERATIONS": "2", "HANABI_TASKS_PER_STEP": "8"},
        ),
    ],
    ids=["passes-torch", "sequential-zero2", "resampled-zero2"],
)
def test_a_run_with_several_updates_resumes_bit_by_bit(
    tmp_path: Path, tiny_model: Path, stage: str, updates: dict[str, str]
) -> None:
    processes = int(STAGES[stage].get("NPROC_PER_NODE", "1"))
    # Constant: the end of any other schedule would be another in the run that is cut.
    constant = {"LR_SCHEDULER_TYPE": "constant", "WARMUP_STEPS": "0"}
    variables = {"SAVE_STEPS": "1", "MAX_STEPS": "4", **constant, **STAGES[stage], **updates}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(write_settings(whole, tiny_model, **variables), processes=processes)
    run(write_settings(cut, tiny_model, **{**variables, "MAX_STEPS": "2"}), processes=processes)
    resume_at(cut, 2)
    run(write_settings(cut, tiny_model, **variables), processes=processes)
    for player in PLAYERS:
        assert _same(
            everything(whole / "checkpoint-4", player), everything(cut / "checkpoint-4", player)
        ), player
    if "HANABI_RESAMPLE_FLAT" in updates:
        rows, cut_rows = (read_history(folder / "metrics.jsonl") for folder in (whole, cut))
        assert max(row["resample/rounds"] for row in rows) >= 1
        for row, same in zip(rows, cut_rows, strict=True):
            assert (
                row["resample/flat_after"] <= row["resample/flat_before"] == row["flat_group_share"]
            )
            assert row["games"] == row["resample/games_used"] == 16 <= row["resample/games_played"]
            assert all(row[name] == same[name] for name in row if name.startswith("resample/"))


def test_two_processes_under_zero_2_make_the_step_that_one_process_makes(
    tmp_path: Path, tiny_model: Path
) -> None:
    variables = {"MAX_STEPS": "1", "LR_SCHEDULER_TYPE": "constant", "WARMUP_STEPS": "0"}
    run(write_settings(tmp_path / "one", tiny_model, **variables))
    run(write_settings(tmp_path / "two", tiny_model, **variables, **STAGES["zero2"]), processes=2)
    for player in PLAYERS:
        files = (
            tmp_path / name / "checkpoint-1" / player / "adapter_model.safetensors"
            for name in ("one", "two")
        )
        one, two = (
            torch.cat(
                [value.flatten() for name, value in load_file(path).items() if "lora_B" in name]
            )
            for path in files
        )
        # Adam's first step is learning rate × sign, so an entry differs only where its gradient is
        # all but zero.
        assert one.abs().max() > 0.009
        share = ((one - two).abs() < 1e-4).float().mean()
        assert share > 0.99, f"{player}: {share:.1%} of the entries agree"


def test_a_frozen_player_is_saved_as_it_started_and_the_start_is_another_runs_checkpoint(
    tmp_path: Path, tiny_model: Path
) -> None:
    # The frozen run under DeepSpeed, which has the moments of all players in one place; the other
    # by itself.
    variables = {"SAVE_STEPS": "2", "MAX_STEPS": "2"}
    run(write_settings(tmp_path / "a", tiny_model, **variables))
    source = tmp_path / "a/checkpoint-2"
    entries = f"player_0={source}:player_1,player_1={source}:player_0"
    options = {**variables, "HANABI_START_FROM": entries, "HANABI_FREEZE": "player_1"}
    run(write_settings(tmp_path / "b", tiny_model, **options, **STAGES["zero2"]), processes=2)
    weights = "adapter_model.safetensors"
    frozen = load_file(tmp_path / "b/checkpoint-2/player_1" / weights)
    assert _same(frozen, load_file(source / "player_0" / weights))
    assert not _same(
        load_file(tmp_path / "b/checkpoint-2/player_0" / weights),
        load_file(source / "player_1" / weights),
    )
    started = check_checkpoint(tmp_path / "b/checkpoint-2").facts["started_from"]
    assert started["player_0"]["adapter"] == "player_1"
    assert started["player_1"]["step"] == 2
