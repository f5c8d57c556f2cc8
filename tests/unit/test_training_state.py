"""Moments, counts and random states come back as they were."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.training.training_state import (
    OptimizerState,
    load_moments,
    random_state,
    restore_counts,
    restore_random_state,
    save_training_state,
)


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lora_A = torch.nn.ModuleDict(
            {name: torch.nn.Linear(3, 2, bias=False) for name in ("player_0", "player_1")}
        )


def _made(steps: int) -> tuple[_Model, torch.optim.AdamW]:
    torch.manual_seed(1)
    model = _Model()
    groups = [
        {"params": [model.lora_A[name].weight], "player": name, "updates": 0} for name in ("player_0", "player_1")
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    for _ in range(steps):
        # Player 1 has no data and therefore no state at all.
        model.lora_A["player_0"].weight.grad = torch.ones(2, 3)
        optimizer.step()
        optimizer.param_groups[0]["updates"] += 1
    return model, optimizer


def test_what_was_collected_is_restored_bit_by_bit_and_a_player_without_state_stays_without(tmp_path: Path) -> None:
    model, optimizer = _made(3)
    state = OptimizerState(model, optimizer)  # type: ignore[arg-type]
    save_training_state(tmp_path / "trainer", state.collect(), state.groups, [random_state()])
    fresh_model, fresh = _made(0)
    restored = OptimizerState(fresh_model, fresh)  # type: ignore[arg-type]
    restored.restore(load_moments(tmp_path / "trainer"))
    restore_counts(tmp_path / "trainer", restored.groups)
    before = optimizer.state[model.lora_A["player_0"].weight]
    after = fresh.state[fresh_model.lora_A["player_0"].weight]
    assert before.keys() == after.keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not fresh.state.get(fresh_model.lora_A["player_1"].weight)
    assert [group["updates"] for group in restored.groups] == [3, 0]
    with torch.no_grad():
        fresh_model.lora_A["player_0"].weight.copy_(model.lora_A["player_0"].weight)
    for one, step in ((model, optimizer), (fresh_model, fresh)):
        one.lora_A["player_0"].weight.grad = torch.full((2, 3), 0.5)
        step.step()
    assert torch.equal(model.lora_A["player_0"].weight, fresh_model.lora_A["player_0"].weight)


def test_the_state_of_another_model_is_refused() -> None:
    _, optimizer = _made(1)
    with pytest.raises(RunFolderError, match=r"names 'lora_A.player_7.weight', which this model does not have"):
        OptimizerState(_Model(), optimizer).restore({"lora_A.player_7.weight|exp_avg": torch.zeros(1)})  # type: ignore[arg-type]


def test_random_numbers_go_on_where_they_were_per_process(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    draw()
    save_training_state(tmp_path / "trainer", {}, [], [random_state()])
    expected = draw()
    draw()
    assert restore_random_state(tmp_path / "trainer", 0)
    assert draw() == expected
    assert not restore_random_state(tmp_path / "trainer", 1), "the checkpoint was written by one process"
    assert "python" in json.loads((tmp_path / "trainer/random.json").read_text())[0]
