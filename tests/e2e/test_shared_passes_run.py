"""Players' last micro-batches share a pass through the real trainer, and nothing else changes.

The games come from scripts (scripted_trainer.py).
"""

import json
from pathlib import Path

import pytest
from plans import Plan
from scripted_runs import (
    OPTIONS,
    PLAYERS,
    STAGES,
    cut_at,
    differing_names,
    num_processes,
    player_state,
    run_trainer,
    write_settings,
)

from conftest_e2e import read_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.usefixtures("in_repository_root")]

BY_TOKENS = {"HANABI_TOKENS_PER_MICRO_BATCH": "16384"}
"""Beside it PER_DEVICE_TRAIN_BATCH_SIZE counts nothing, and all players fit into one pass."""

STEPS = 3
TRIAL_PASSES = 3
"""Of `forward.can_share_passes`: one of two players, and one of each."""


# Unequal ranks, and seats that change; two processes; 16 bits, and layers that are computed again.
@pytest.mark.parametrize(
    ("stage", "options"),
    [
        ("torch", {"LORA_RANK": "player_0=8,player_1=16", "HANABI_SWAP_EVERY": "1"}),
        ("zero2", {"BETA": "0.05"}),
        ("bfloat16", {"HANABI_TOKENS_PER_MICRO_BATCH": "4096", "HANABI_UPDATES_PER_STEP": "1"}),
    ],
)
def test_a_run_that_shares_passes_is_the_run_that_does_not_and_resumes_bit_by_bit(
    tmp_path: Path, tiny_model: Path, stage: str, options: dict[str, str]
) -> None:
    processes = num_processes(stage)
    variables = {
        "SAVE_STEPS": "1",
        "MAX_STEPS": str(STEPS),
        **STAGES[stage],
        **BY_TOKENS,
        **options,
    }
    passes = {}
    for name, apart in (("together", False), ("apart", True)):
        counts = tmp_path / f"passes-{name}"
        counts.mkdir()
        settings = write_settings(tmp_path / name, tiny_model, **variables)
        plan = Plan(apart=apart, counts=str(counts))
        run_trainer(settings, processes=processes, plan=plan, options=OPTIONS.get(stage, ()))
        passes[name] = [json.loads(file.read_text()) for file in sorted(counts.iterdir())]
        assert len(passes[name]) == processes
        assert len(set(passes[name])) == 1, "every process makes as many passes"
    num_updates = STEPS * int(variables.get("HANABI_UPDATES_PER_STEP", "1"))
    assert passes["together"][0] - TRIAL_PASSES == passes["apart"][0] - num_updates
    together = tmp_path / "together"
    last = f"checkpoint-{STEPS}"
    for player in PLAYERS:
        expected = player_state(tmp_path / "apart" / last, player)
        found = player_state(together / last, player)
        assert differing_names(expected, found) == [], player
        assert found["updates"] == STEPS
    for row, expected_row in zip(
        read_metrics(together), read_metrics(tmp_path / "apart"), strict=True
    ):
        assert row.keys() == expected_row.keys()
        for player in PLAYERS:
            assert row[f"{player}/parity"] == pytest.approx(
                expected_row[f"{player}/parity"], rel=1e-6
            )

    cut = tmp_path / "cut"
    cut_at(together, cut, 2)
    settings = write_settings(cut, tiny_model, **variables)
    run_trainer(settings, processes=processes, options=OPTIONS.get(stage, ()))
    for player in PLAYERS:
        expected = player_state(together / last, player)
        assert differing_names(expected, player_state(cut / last, player)) == [], player
