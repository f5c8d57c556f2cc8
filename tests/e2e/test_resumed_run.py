"""A resumed run makes the steps that an uninterrupted run makes, and no player moves by another's
data.

The trainers are real; their games come from scripts (scripted_trainer.py), so that two runs see the
same data."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from conftest_e2e import VARIABLES, clean_environment
from hanabi_grpo.runs.checkpoints import check_checkpoint, find_checkpoint
from hanabi_grpo.settings import load_settings, settings_json
from waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.rest]
SCRIPT = Path(__file__).parent / "scripted_trainer.py"
PLAYERS = ("player_0", "player_1")
STAGES = {
    "torch": {},
    "zero1": {"DEEPSPEED": "zero1", "NPROC_PER_NODE": "2", "PER_DEVICE_TRAIN_BATCH_SIZE": "4"},
    "zero2": {"DEEPSPEED": "zero2", "NPROC_PER_NODE": "2", "PER_DEVICE_TRAIN_BATCH_SIZE": "4"},
}
# Each process has a copy of the critics. The players change seats between the steps that are
# compared.
STAGES["critics"] = {**STAGES["zero2"], "HANABI_ADVANTAGE": "ippo"}
STAGES["mappo"] = {**STAGES["zero2"], "HANABI_ADVANTAGE": "mappo", "HANABI_SWAP_EVERY": "1"}
STAGES["qmix"] = {"HANABI_ADVANTAGE": "qmix", "HANABI_SWAP_EVERY": "1"}
# As on GPUs, with layers that are computed again for their gradient. The scripted sampler rounds
# nothing.
STAGES["bfloat16"] = {
    **STAGES["zero2"],
    **{
        "HANABI_DTYPE": "bfloat16",
        "HANABI_PARITY_TOLERANCE": "0.05",
        "HANABI_UPDATES_PER_STEP": "2",
    },
}
OPTIONS = {
    "bfloat16": (
        "--gradient_checkpointing",
        "true",
        "--gradient_checkpointing_kwargs",
        '{"use_reentrant": true}',
    )
}


def write_settings(folder: Path, model: Path, **variables: str) -> Path:
    """Write settings.json as `hanabi-grpo train` does; returns its path."""
    folder.mkdir(exist_ok=True)
    given = {
        **VARIABLES,
        "MODEL": str(model),
        "DATASET": str(Path("data/hanabi.laptop.jsonl").resolve()),
        "OUTPUT_DIR": str(folder),
        "LR_SCHEDULER_TYPE": "linear",
        "WARMUP_STEPS": "2",
        "SAVE_TOTAL_LIMIT": "20",
        **variables,
    }
    os.environ.update(given)
    path = folder / "settings.json"
    path.write_text(json.dumps(settings_json(load_settings())))
    return path


def start(
    settings: Path,
    *,
    processes: int = 1,
    plan: dict[str, Any] | None = None,
    options: Sequence[str] = (),
) -> "subprocess.Popen[str]":
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    return subprocess.Popen(
        [
            sys.executable,
            *(launcher if processes > 1 else []),
            str(SCRIPT),
            "--settings",
            str(settings),
            *options,
        ],
        env={**clean_environment(), "SCRIPTED": json.dumps(plan or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(settings: Path, **options: Any) -> str:
    process = start(settings, **options)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output[-5000:]
    return output


def resume_at(folder: Path, step: int) -> None:
    """Do what `RESUME` does in `hanabi-grpo train`, without its server."""
    point = {"checkpoint": str(folder / f"checkpoint-{step}"), "step": step, "skipped": []}
    (folder / "resume.json").write_text(json.dumps(point))


def everything(checkpoint: Path, player: str) -> dict[str, torch.Tensor]:
    """Return a player's weights, moments and counters; of critics its own, and those that are
    nobody's own.
    """
    moments = load_file(checkpoint / "trainer/optimizer.safetensors")
    own = {key: value for key, value in moments.items() if f".{player}." in key}
    assert any(key.endswith("|exp_avg") for key in own), sorted(own)[:4]
    groups = {
        group["player"]: group
        for group in json.loads((checkpoint / "trainer/groups.json").read_text())
    }
    counts = {
        key: torch.tensor(groups[player][key], dtype=torch.float64) for key in ("updates", "lr")
    }
    critics = checkpoint / "trainer/critics.safetensors"
    if critics.exists():
        others = tuple(f"{one}|" for one in PLAYERS if one != player)
        own |= {
            key: value for key, value in load_file(critics).items() if not key.startswith(others)
        }
    return {**load_file(checkpoint / player / "adapter_model.safetensors"), **own, **counts}


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


@pytest.fixture(autouse=True)
def _repository_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


@pytest.mark.parametrize("stage", ["torch", "zero1", "critics", "mappo", "qmix", "bfloat16"])
def test_resumed_steps_are_bit_equal_to_uninterrupted_ones(
    stage: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a thread for each core, as a user's trainer.
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    variables = STAGES[stage]
    given: dict[str, Any] = {
        "processes": int(variables.get("NPROC_PER_NODE", "1")),
        "options": OPTIONS.get(stage, ()),
    }
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(write_settings(whole, tiny_model, MAX_STEPS="4", **variables), **given)
    # Killed after its second checkpoint, wherever it is by then.
    process = start(write_settings(cut, tiny_model, MAX_STEPS="4", **variables), **given)
    wait_until((cut / "checkpoint-2").exists, 300)
    for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        one.kill()
    process.communicate()
    found = find_checkpoint(cut)
    assert found.manifest.step >= 2
    resume_at(cut, 2)
    output = run(write_settings(cut, tiny_model, MAX_STEPS="4", **variables), **given)
    assert "the next step is number 3" in output
    for step in (3, 4):
        check_checkpoint(cut / f"checkpoint-{step}")
        for player in PLAYERS:
            one, other = (
                everything(folder / f"checkpoint-{step}", player) for folder in (whole, cut)
            )
            assert differing(one, other) == [], f"step {step}, {player}"
            assert one["updates"] == step
            assert any("|head." in key for key in one) == ("HANABI_ADVANTAGE" in variables)


@pytest.mark.parametrize("stage", ["torch", "critics"])
def test_steps_without_a_players_data_leave_all_of_it_bit_identical(
    stage: str, tiny_model: Path, tmp_path: Path
) -> None:
    variables = {**STAGES[stage], "HANABI_SWAP_EVERY": "2"}
    settings = write_settings(tmp_path / "run", tiny_model, MAX_STEPS="3", **variables)
    processes = int(variables.get("NPROC_PER_NODE", "1"))
    run(settings, processes=processes, plan={"absent": {"player": 1, "steps": [1, 2]}})
    first, last = (tmp_path / "run" / f"checkpoint-{step}" for step in (1, 3))
    assert differing(everything(first, "player_1"), everything(last, "player_1")) == []
    mine = everything(last, "player_0")
    assert mine["updates"] == 3
    moved = differing(everything(first, "player_0"), mine)
    assert any("lora_B" in name and "|" not in name for name in moved)
    assert any(name.endswith("|exp_avg_sq") for name in moved)


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
    run(write_settings(folder, tiny_model, **variables, MAX_STEPS="2"))
    rows = json.loads((folder / "validation.json").read_text())
    assert [row["step"] for row in rows] == [0, 1, 2] and len({row["score"] for row in rows}) == 1
    resume_at(folder, 2)
    output = run(
        write_settings(folder, tiny_model, **variables, MAX_STEPS="9", HANABI_EVAL_PATIENCE="4")
    )
    assert "best in validation: the start" in output
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5], (
        "the version before step 5 was the fourth that is no better"
    )
    assert [row.get("validation/stale") for row in rows] == [0, 1, None, 3, 4]
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-5"]


def test_phases_of_best_response_resume_bit_by_bit_and_end_with_a_round_in_vain(
    tiny_model: Path, tmp_path: Path
) -> None:
    # The scripted players never learn, so each phase lasts as long as its patience: player_0 moves
    # in steps 1 and 2 and returns behind step 3, player_1 moves in 3 and 4 and returns behind 5;
    # the version after step 4 ends the round, and player_0's step 5 the run.
    variables = {
        "SAVE_STEPS": "1",
        "HANABI_EVAL_STEPS": "1",
        "HANABI_EVAL_TASKS": "4",
        "HANABI_EVAL_PATIENCE": "2",
    }
    variables |= {
        "HANABI_UPDATE": "best_response",
        "LR_SCHEDULER_TYPE": "constant",
        "WARMUP_STEPS": "0",
    }
    variables |= STAGES["zero2"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    output = run(write_settings(whole, tiny_model, MAX_STEPS="9", **variables), processes=2)
    assert (
        "phase 1: player_1 is trained now" in output
        and "a whole round of players brought no version" in output
    )
    # Interrupted within a phase, and between the validation that ends the run and its last step.
    for start, end in ((0, 3), (3, 4), (4, 9)):
        if start:
            resume_at(cut, start)
        run(write_settings(cut, tiny_model, MAX_STEPS=str(end), **variables), processes=2)
    for folder in (whole, cut):
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
        assert [[name for name in PLAYERS if f"{name}/grad_norm" in row] for row in rows] == [
            [PLAYERS[number]] for number in (0, 0, 1, 1, 0)
        ]
    assert (whole / "validation.json").read_text() == (cut / "validation.json").read_text()
    for player, updates in zip(PLAYERS, (3, 2), strict=True):
        one, other = (everything(folder / "checkpoint-5", player) for folder in (whole, cut))
        assert differing(one, other) == [] and one["updates"] == updates, player
    for player, before, after in (("player_0", 2, 4), ("player_1", 4, 5)):
        one, other = (everything(whole / f"checkpoint-{step}", player) for step in (before, after))
        moved = differing(one, other)
        assert moved, "its phase was over: it returned to the best version of the phase"
        assert not any("|" in name for name in moved), "its moments rest"
    # The best version of each phase is the one that it began with, since nobody got better.
    for name, value in weights(whole / "checkpoint-4", "player_0").items():
        assert not ("lora_B" in name and value.any()), "new adapters begin at 0"
    began, ended = (weights(whole / f"checkpoint-{step}", "player_1") for step in (2, 5))
    assert differing(began, ended) == []


def weights(checkpoint: Path, player: str) -> dict[str, torch.Tensor]:
    """Return a player's adapter."""
    return load_file(checkpoint / player / "adapter_model.safetensors")


def test_a_zero_sum_game_trains_as_any_other(tiny_model: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "kuhn.jsonl"
    row = {
        "messages": [{"role": "user", "content": "x"}],
        "env": "kuhn_poker",
        "env_config": {"preset": "kuhn_poker"},
    }
    tasks.write_text(json.dumps(row) + "\n")
    variables = {"DATASET": str(tasks), "HANABI_MAX_MODEL_LEN": "512", "MAX_STEPS": "2"}
    folder = tmp_path / "run"
    run(write_settings(folder, tiny_model, **variables), plan={"any_words": True})
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert (
            row["player_0/reward"] == -row["player_1/reward"] == row["score/mean"] == row["first"]
        )
        assert "hints_per_game" not in row
    first, last = (everything(folder / f"checkpoint-{step}", "player_0") for step in (1, 2))
    assert any("lora_B" in name for name in differing(first, last))


def test_bad_days_inside_a_step_are_dropped_counted_and_reported(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    plan = {
        "nan_loss": {"player": 1, "steps": [1]},
        "nan_reward": [2],
        "empty": [3],
        "full_disk": [2],
    }
    output = run(write_settings(folder, tiny_model, MAX_STEPS="5"), plan=plan)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["updates_dropped"] for row in rows] == [0, 1, 0, 0, 0]
    assert [row["games_dropped"] for row in rows][2] == 1
    assert rows[3]["groups_dropped"] == 2
    kinds = [
        json.loads(line)["kind"] for line in (folder / "incidents.jsonl").read_text().splitlines()
    ]
    assert {
        kind: kinds.count(kind) for kind in ("update_dropped", "step_dropped", "save_failed")
    } == {
        "update_dropped": 1,
        "step_dropped": 1,
        "save_failed": 1,
    }
    assert "games_dropped" in kinds
    assert not (folder / "checkpoint-2").exists()
    assert not list(folder.glob(".checkpoint-*"))
    assert (folder / "checkpoint-3").exists(), output[-3000:]
    at_four, at_five = (
        everything(folder / f"checkpoint-{step}", "player_1")["updates"] for step in (4, 5)
    )
    # Steps 1, 3 and 5 moved player 1: its second update and everybody's fourth were dropped.
    assert (at_four, at_five) == (2, 3)


def test_a_bad_gradient_under_deepspeed_drops_the_step_of_all_players_and_the_run_goes_on(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    settings = write_settings(folder, tiny_model, MAX_STEPS="3", **STAGES["zero2"])
    run(settings, processes=2, plan={"nan_loss": {"player": 1, "steps": [1]}})
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["updates_dropped"] for row in rows] == [0, 2, 0]
    first, second, third = (folder / f"checkpoint-{step}" for step in (1, 2, 3))
    for player in PLAYERS:
        assert differing(everything(first, player), everything(second, player)) == []
        assert everything(third, player)["updates"] == 2


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            {"empty": [0, 1, 2]},
            "NonFiniteError: 3 steps in a row had no usable game; the last reasons: ",
        ),
        (
            {"full_disk": [1, 2, 3]},
            "RunFolderError: .* 3 saves in a row failed; the earlier checkpoints are complete",
        ),
    ],
)
def test_three_bad_steps_in_a_row_stop_the_run(
    plan: dict[str, Any], message: str, tiny_model: Path, tmp_path: Path
) -> None:
    process = start(write_settings(tmp_path / "run", tiny_model, MAX_STEPS="9"), plan=plan)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 2, output[-4000:]
    assert re.search(message, output), output[-4000:]
