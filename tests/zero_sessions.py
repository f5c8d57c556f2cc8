"""Sessions of one run, each restored from what the one before it saved, with another DEEPSPEED.

A process of its own, because DeepSpeed's process group stays. Its last line of output is JSON: the
states after each session, by the name of the series of sessions. It needs the environment that
torchrun sets, and DS_ACCELERATOR=cpu.
"""

import contextlib
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

from hanabi_grpo.training.checkpoint import OptimizerState
from hanabi_grpo.training.model.adapters import copy_parameters, fill
from hanabi_grpo.training.state import LossScale

PLAYERS = ("player_0", "player_1")
SIZE = 4
BIG_RATE = 2.0**-2
SMALL_RATE = 2.0**-10
"""Less than the distance between 1 and the next smaller number in bfloat16, which is 2^-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a session leaves behind."""

    weights: dict[str, torch.Tensor]
    moments: dict[str, torch.Tensor]
    loss_scale: LossScale | None


class Model(torch.nn.Module):
    """A 16-bit base model and two adapters of ones, of which only player_0's is used."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.base = torch.nn.Linear(SIZE, SIZE, dtype=dtype)
        self.base.requires_grad_(False)
        self.lora_A = torch.nn.ModuleDict()
        for name in PLAYERS:
            self.lora_A[name] = torch.nn.Linear(SIZE, SIZE, bias=False)
            torch.nn.init.ones_(self.lora_A[name].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lora_A["player_0"](x)


class Session:
    """A process of a run: a new model, and an optimizer with a learning rate."""

    def __init__(self, stage: int, dtype: torch.dtype, rate: float, gradient: float) -> None:
        self._stage = stage
        self._gradient = gradient
        self.dropped = 0
        self.model = Model(dtype)
        groups = []
        for name in PLAYERS:
            weight = self.model.lora_A[name].weight
            groups.append({"params": [weight], "player": name, "updates": 0})
        optimizer = torch.optim.AdamW(groups, lr=rate, weight_decay=0.0)
        self.engine: Any = None
        self._scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
        self._optimizer: Any = SimpleNamespace(optimizer=optimizer, scaler=self._scaler)
        if stage:
            config = deepspeed_config(stage, dtype)
            self.engine, inner, _, _ = deepspeed.initialize(
                model=self.model, optimizer=optimizer, config=config
            )
            # accelerate's wrapper has no scaler under DeepSpeed.
            self._optimizer = SimpleNamespace(optimizer=inner, scaler=None)
        self.parameters = {}
        for name, value in self.model.named_parameters():
            if "lora_" in name:
                self.parameters[name] = value

    def gathered(self, *, written: bool = False) -> AbstractContextManager[Any]:
        """Return the context of whole weights, as `Policy.whole_adapters` does."""
        if self._stage < 3:
            return contextlib.nullcontext()
        writer = 0 if written else None
        return deepspeed.zero.GatheredParameters(
            list(self.parameters.values()), modifier_rank=writer
        )

    def set_weights(self, weights: dict[str, torch.Tensor]) -> None:
        with self.gathered(written=True):
            fill(self.parameters, weights)

    def restore(self, saved: Saved) -> None:
        """Restore as `TrainingRun` does."""
        self.set_weights(saved.weights)
        optimizer = OptimizerState(self.parameters, self._optimizer)
        with self.gathered(written=True):
            optimizer.restore(saved.moments)
        optimizer.restore_loss_scale(saved.loss_scale)

    def save(self) -> Saved:
        optimizer = OptimizerState(self.parameters, self._optimizer)
        moments = optimizer.collect()
        with self.gathered():
            weights = copy_parameters(self.parameters)
        # Adapters are saved in float32.
        whole = {name: value.float() for name, value in weights.items()}
        return Saved(weights=whole, moments=moments, loss_scale=optimizer.loss_scale())

    def update(self) -> None:
        """Make an update with a constant gradient, by which Adam moves weights by its rate."""
        weight = self.model.lora_A["player_0"].weight
        x = torch.full((1, SIZE), self._gradient, dtype=weight.dtype)
        if self.engine is not None:
            self.engine.backward(self.engine(x).float().sum())
            self.engine.step()
            self.dropped += self._optimizer.optimizer.overflow
            return
        scale = self._scaler.get_scale()
        self._scaler.scale(self.model(x).sum()).backward()
        if self._scaler.is_enabled():
            # As if float16 had been computed.
            weight.grad = weight.grad.half().float()
        self._scaler.step(self._optimizer.optimizer)
        self._scaler.update()
        self._optimizer.optimizer.zero_grad()
        self.dropped += self._scaler.get_scale() < scale


def deepspeed_config(stage: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return the parts of ms-swift's configuration that matter here."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
    }
    if stage == 2:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    if dtype == torch.bfloat16:
        config["bf16"] = {"enabled": True}
    else:
        config["fp16"] = {
            "enabled": True,
            "loss_scale": 0,
            "loss_scale_window": 1000,
            "initial_scale_power": 16,
            "hysteresis": 2,
            "min_loss_scale": 1,
        }
    return config


def states_after(
    stages: Sequence[int],
    *,
    rate: float = BIG_RATE,
    num_updates: int = 2,
    dtype: torch.dtype = torch.bfloat16,
    gradient: float = 1.0,
    keeps_copies: bool = False,
) -> list[dict[str, Any]]:
    """Run one session after the other, and return the state after each of them.

    Args:
        stages: The ZeRO stage of each session; 0: without DeepSpeed.
        rate: Learning rate.
        num_updates: Number of player_0's updates in each session.
        dtype: Data type of the base model.
        gradient: Gradient of each weight of player_0.
        keeps_copies: Whether sessions without DeepSpeed save the copies that they resumed from, as
            in versions up to 0.2.
    """
    states = []
    saved: Saved | None = None
    for stage in stages:
        session = Session(stage, dtype, rate, gradient)
        if saved is None:
            weights = {"lora_A.player_0.weight": torch.ones(SIZE, SIZE)}
            # What player_1 has learned before: it has no moments yet.
            weights["lora_A.player_1.weight"] = torch.full((SIZE, SIZE), 5.0)
            session.restore(Saved(weights=weights, moments={}, loss_scale=None))
        else:
            session.restore(saved)
        for _ in range(num_updates):
            session.update()
        copies = {}
        if keeps_copies and saved is not None and not stage:
            copies = {key: value for key, value in saved.moments.items() if "|master" in key}
        saved = session.save()
        saved.moments.update(copies)
        state: dict[str, Any] = {"dropped": session.dropped}
        for player in PLAYERS:
            [value] = saved.weights[f"lora_A.{player}.weight"].unique().tolist()
            state[player] = value
        state["has_copies"] = any(key.endswith("|master") for key in saved.moments)
        if saved.loss_scale is not None:
            state["scale"] = saved.loss_scale.scale
            state["good_updates"] = saved.loss_scale.good_updates
        states.append(state)
    return states


def main() -> None:
    """Print the states of all series."""
    # As in `pipeline`: nothing has to be compiled.
    deepspeed.ops.__compatible_ops__ = {}
    # Every CPU computes in float16; DeepSpeed refuses those that are slow.
    get_accelerator().is_fp16_supported = lambda: True
    deepspeed.init_distributed("gloo")
    series = {}
    for stage in (1, 2, 3):
        series[f"none, zero{stage}"] = states_after([0, stage])
        series[f"zero{stage}, none, zero{stage}"] = states_after([stage, 0, stage])
        series[f"zero{stage}, none in small steps"] = states_after(
            [stage, 0], rate=SMALL_RATE, num_updates=1
        )
    series["outdated copies"] = states_after([2, 0, 2], keeps_copies=True)
    for name, stages in (("zero2, zero2, none", [2, 2, 0]), ("none, none, zero2", [0, 0, 2])):
        series[f"float16: {name}"] = states_after(
            stages, dtype=torch.float16, gradient=300.0, num_updates=12
        )
    print(json.dumps(series))


if __name__ == "__main__":
    main()
