"""Four processes with unequal players, and a fault on one of two: nobody waits for ever.

The trainers are real and talk over Gloo; their games come from scripts (scripted_trainer.py).
"""

import json
import re
import time
from pathlib import Path

import psutil
import pytest
from plans import PLANTED_RANK, Plan, PlayerSteps
from scripted_runs import (
    OPTIONS,
    PLAYERS,
    PRINTED_CHARACTERS,
    run_trainer,
    start_trainer,
    write_settings,
)

from conftest_e2e import read_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.usefixtures("in_repository_root")]

PROCESSES = 4
FAULTY_PROCESSES = 2
"""Of which one has the fault."""
ROWS = ((7, 1), (0, 30))
"""By step, in how many of its 32 episodes each of two players has turns."""
SIZES = {"HANABI_TASKS_PER_STEP": "2", "NUM_GENERATIONS": "16"}
RANKS = {"DEEPSPEED": "zero2", "NPROC_PER_NODE": "4", "PER_DEVICE_TRAIN_BATCH_SIZE": "4"}
END_SECONDS = 40
"""From a fault on one process to the end of all, at most: torchrun waits 30 s before it kills."""


def norms(folder: Path) -> list[dict[str, float]]:
    """Return each step's norms of gradients by player; a player without data has none."""
    steps = []
    for row in read_metrics(folder):
        players = [player for player in PLAYERS if f"{player}/grad_norm" in row]
        steps.append({player: row[f"{player}/grad_norm"] for player in players})
    return steps


def test_processes_with_unequal_shares_make_equal_passes_and_the_gradients_of_one_process(
    tiny_model: Path, tmp_path: Path
) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    plan = Plan(rows=ROWS, counts=str(counts))
    alone = tmp_path / "alone"
    settings = write_settings(alone, tiny_model, MAX_STEPS="2", **SIZES)
    run_trainer(settings, plan=plan)
    # Layers are computed again for their gradient, as on GPUs, which changes none.
    options = OPTIONS["bfloat16"]
    together = tmp_path / "together"
    settings = write_settings(together, tiny_model, MAX_STEPS="2", **SIZES, **RANKS)
    run_trainer(settings, processes=PROCESSES, plan=plan, options=options)

    passes = [json.loads((counts / f"rank-{rank}.json").read_text()) for rank in range(PROCESSES)]
    assert passes[0] > 0
    assert passes == [passes[0]] * PROCESSES
    expected = norms(alone)
    assert [list(step) for step in expected] == [["player_0", "player_1"], ["player_1"]]
    for step, actual in zip(expected, norms(together), strict=True):
        assert actual == pytest.approx(step, rel=1e-3)


@pytest.mark.parametrize(
    ("plan", "sentence", "num_told"),
    [
        (
            # Only one process sees the fault; all of them are told and raise.
            Plan(wrong_logprobs=PlayerSteps(player=0, steps=(1,))),
            r"ParityError: player_0@1: trainer and sampler logprobs differ by 1 on average",
            FAULTY_PROCESSES,
        ),
        (
            # Nobody foresaw it: the others are ended while they wait.
            Plan(broken=(1,)),
            r"RuntimeError: planted on one rank",
            1,
        ),
    ],
    ids=["parity", "unforeseen"],
)
def test_a_fault_on_one_process_ends_all_of_them_with_its_sentence(
    plan: Plan, sentence: str, num_told: int, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    variables = {**SIZES, **RANKS, "NPROC_PER_NODE": str(FAULTY_PROCESSES)}
    settings = write_settings(folder, tiny_model, MAX_STEPS="9", **variables)
    trainer = start_trainer(settings, processes=FAULTY_PROCESSES, plan=plan)
    assert trainer.stdout is not None
    lines = []
    family: list[psutil.Process] = []
    seen_at = 0.0
    for line in trainer.stdout:
        lines.append(line)
        if not seen_at and re.search(sentence, line):
            seen_at = time.monotonic()
            family = psutil.Process(trainer.pid).children(recursive=True)
    assert trainer.wait(END_SECONDS) != 0
    output = "".join(lines)
    assert seen_at, output[-PRINTED_CHARACTERS:]
    assert time.monotonic() - seen_at < END_SECONDS
    assert [process for process in family if process.is_running()] == []
    told = len(re.findall(sentence, output))
    assert told == num_told, output[-PRINTED_CHARACTERS:]
    assert len(read_metrics(folder)) == 1, f"rank {PLANTED_RANK} breaks in the second step"
