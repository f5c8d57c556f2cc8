"""Moments, counts and random states come back as they were."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.training.checkpoint import (
    OptimizerState,
    TrainingState,
    random_state,
    restore_random_state,
)
from hanabi_grpo.training.state import LossScale, StepState


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
        {"params": [model.lora_A[name].weight], "player": name, "updates": 0}
        for name in ("player_0", "player_1")
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    for _ in range(steps):
        # Player 1 has no data and therefore no state at all.
        model.lora_A["player_0"].weight.grad = torch.ones(2, 3)
        optimizer.step()
        optimizer.param_groups[0]["updates"] += 1
    return model, optimizer


def _state(moments: dict[str, torch.Tensor], **other: Any) -> TrainingState:
    return TrainingState(
        **{
            "moments": moments,
            "groups": [],
            "random_states": [random_state()],
            "step_state": StepState(step=3),
            **other,
        }
    )


def test_what_was_collected_is_restored_bit_by_bit_and_a_player_without_state_stays_without(
    tmp_path: Path,
) -> None:
    model, optimizer = _made(3)
    state = OptimizerState(dict(model.named_parameters()), optimizer)
    baselines = {"player_0 x": 0.1 + 0.2, "player_1 x": -1 / 3}
    step_state = StepState(
        step=3,
        baselines=baselines,
        critics={"player_0|head.0.weight": torch.rand(2, 3)},
        mismatch={"player_0|gap": [[0.1], [0.2]]},
        earlier={"lora_B.player_0.weight": torch.rand(3, 2)},
        phase_best={"lora_A.player_0.weight": torch.rand(2, 3)},
        loss_scale=LossScale(scale=1024.0, good_updates=7, hysteresis=1),
    )
    saved = _state(state.collect(), groups=state.groups, step_state=step_state)
    saved.save(tmp_path / "trainer")
    loaded = TrainingState.load(tmp_path / "trainer", 3)
    assert loaded.step_state.baselines == baselines
    assert loaded.step_state.mismatch == step_state.mismatch
    assert loaded.step_state.loss_scale == step_state.loss_scale
    for name in ("critics", "earlier", "phase_best"):
        before = getattr(step_state, name)
        after = getattr(loaded.step_state, name)
        assert before.keys() == after.keys()
        assert all(torch.equal(value, after[key]) for key, value in before.items())
    fresh_model, fresh = _made(0)
    restored = OptimizerState(dict(fresh_model.named_parameters()), fresh)
    restored.restore(loaded.moments)
    restored.restore_counts(loaded.groups)
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_without_deepspeed_the_float32_copy_of_a_16_bit_weight_becomes_the_weight(
    dtype: torch.dtype,
) -> None:
    copy = torch.tensor([1.0 + 2**-12, -0.1])
    rounded = copy.to(dtype).float()
    assert not torch.equal(rounded, copy)
    moments = {"weight|exp_avg": torch.zeros(2), "weight|step": torch.tensor(1.0)}
    parameter = torch.nn.Parameter(rounded)
    state = OptimizerState({"weight": parameter}, torch.optim.AdamW([parameter]))
    state.restore({**moments, "weight|master": copy})
    assert torch.equal(parameter, copy)
    # From now on the copy would be out of date.
    assert state.collect().keys() == moments.keys()


def test_a_copy_that_the_weight_has_moved_away_from_is_not_used() -> None:
    weights = torch.tensor([0.75, -0.1])
    parameter = torch.nn.Parameter(weights.clone())
    state = OptimizerState({"weight": parameter}, torch.optim.AdamW([parameter]))
    state.restore({"weight|master": torch.tensor([1.0, -0.1])})
    assert torch.equal(parameter, weights)
    assert not state.collect()


@pytest.mark.parametrize("option", ["fused", "capturable"])
def test_what_an_optimizer_reads_in_a_kernel_is_restored_to_the_device_of_its_weights(
    option: str,
) -> None:
    saved = {
        "weight|step": torch.tensor(3.0),
        "weight|exp_avg": torch.zeros(2),
        "weight|exp_avg_sq": torch.zeros(2),
    }
    parameter = torch.nn.Parameter(torch.zeros(2, device="meta"))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3)
    OptimizerState({"weight": parameter}, optimizer).restore(saved)
    # Elsewhere the counter is read by Python, and stays where that costs nothing.
    assert optimizer.state[parameter]["step"].device.type == "cpu"
    # What no device but a GPU is allowed to be told.
    optimizer.param_groups[0][option] = True
    OptimizerState({"weight": parameter}, optimizer).restore(saved)
    devices = {key: value.device.type for key, value in optimizer.state[parameter].items()}
    assert devices == {"step": "meta", "exp_avg": "meta", "exp_avg_sq": "meta"}


def test_the_state_of_another_model_is_refused() -> None:
    _, optimizer = _made(1)
    with pytest.raises(
        RunFolderError,
        match=r"names the parameter 'lora_A.player_7.weight', which this model does not have",
    ):
        OptimizerState(dict(_Model().named_parameters()), optimizer).restore(
            {"lora_A.player_7.weight|exp_avg": torch.zeros(1)}
        )


def test_the_state_of_another_optimizer_is_refused_unless_a_version_did_not_save_which(
    tmp_path: Path,
) -> None:
    model, adam = _made(1)
    collected = OptimizerState(dict(model.named_parameters()), adam)
    _state(collected.collect(), optimizer_kind=collected.kind).save(tmp_path / "trainer")
    saved = TrainingState.load(tmp_path / "trainer", 3)
    assert saved.optimizer_kind == "AdamW"
    parameters = dict(_Model().named_parameters())
    other = OptimizerState(parameters, torch.optim.Adagrad(list(parameters.values())))
    before = other.collect().keys()
    with pytest.raises(
        RunFolderError, match=r"is that of AdamW, but this run's optimizer is Adagrad; .*--optim"
    ):
        other.restore(saved.moments, kind=saved.optimizer_kind)
    assert other.collect().keys() == before
    fresh_model, fresh = _made(0)
    restored = OptimizerState(dict(fresh_model.named_parameters()), fresh)
    restored.restore(saved.moments, kind="AdamW")

    (tmp_path / "trainer/optimizer.json").unlink()
    old = TrainingState.load(tmp_path / "trainer", 3)
    assert old.optimizer_kind == ""
    restored.restore(old.moments, kind=old.optimizer_kind)
    assert restored.collect().keys() == saved.moments.keys()


def test_random_numbers_go_on_where_they_were_per_process(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    draw()
    _state({}).save(tmp_path / "trainer")
    expected = draw()
    draw()
    [state] = TrainingState.load(tmp_path / "trainer", 0).random_states
    restore_random_state(state)
    assert draw() == expected
