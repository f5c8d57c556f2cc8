"""What goes into a checkpoint, what is said of a failed save, and what an interrupted run keeps.

A checkpoint holds the adapters and what a resumed run needs to take the steps that it would have
taken, per parameter of the model, as safetensors or JSON: processes and DeepSpeed stage may differ
at the resume, and no file runs code."""

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from peft import PeftModel
from safetensors.torch import load_file, save_file
from trl import GRPOTrainer

from hanabi_grpo.errors import ParityError, RunFolderError
from hanabi_grpo.runs.checkpoints import rotate, write_checkpoint
from hanabi_grpo.runs.resume import TRAINER_STATE
from hanabi_grpo.training.model import adapters

OPTIMIZER, GROUPS, RANDOM, BASELINES = (
    "optimizer.safetensors",
    "groups.json",
    "random.json",
    "baselines.json",
)
CRITICS, MISMATCH = "critics.safetensors", "mismatch.json"
_MASTER = "master"
SAVE_TRIES = 3
"""Failed saves in a row after which a run stops; the steps after a failed one try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """The folder `trainer/` of a checkpoint."""

    moments: Mapping[str, torch.Tensor]
    """Of `OptimizerState.collect`."""
    groups: Sequence[Mapping[str, Any]]
    """Of the optimizer; each player's count of updates and rate are kept."""
    random_states: Sequence[Mapping[str, Any]]
    """Per rank."""
    baselines: Mapping[str, float]
    critics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Empty without critics, as the next without the check."""
    mismatch: Mapping[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write the folder."""
        folder.mkdir(parents=True)
        save_file(dict(self.moments), folder / OPTIMIZER, metadata={"format": "pt"})
        kept = [{key: group[key] for key in ("player", "updates", "lr")} for group in self.groups]
        (folder / GROUPS).write_text(json.dumps(kept, indent=1))
        (folder / RANDOM).write_text(json.dumps(self.random_states))
        # Python writes the shortest decimal that reads back as the same number, bit by bit.
        (folder / BASELINES).write_text(json.dumps(dict(self.baselines), indent=1))
        if self.critics:
            save_file(dict(self.critics), folder / CRITICS, metadata={"format": "pt"})
        if self.mismatch:
            (folder / MISMATCH).write_text(json.dumps(self.mismatch))

    @classmethod
    def load(cls, folder: Path) -> "TrainingState":
        """Read the folder; checkpoints from before there were moving baselines have none."""
        groups, states = (json.loads((folder / name).read_text()) for name in (GROUPS, RANDOM))
        path, critics, mismatch = folder / BASELINES, folder / CRITICS, folder / MISMATCH
        return cls(
            moments=load_file(folder / OPTIMIZER),
            groups=groups,
            random_states=states,
            baselines=json.loads(path.read_text()) if path.exists() else {},
            critics=load_file(critics) if critics.exists() else {},
            mismatch=json.loads(mismatch.read_text()) if mismatch.exists() else {},
        )


class OptimizerState:
    """Moments and step counters of every adapter parameter, whatever holds them."""

    def __init__(self, model: PeftModel, optimizer: Any) -> None:
        """Bind the unwrapped model and accelerate's optimizer: torch's, ZeRO-1 or -2; others are a
        RunFolderError.
        """
        self._parameters = [
            (name, value) for name, value in model.named_parameters() if "lora_" in name
        ]
        inner = getattr(optimizer, "optimizer", optimizer)
        self._zero = inner if hasattr(inner, "single_partition_of_fp32_groups") else None
        self._torch: torch.optim.Optimizer = inner.optimizer if self._zero is not None else inner
        if not isinstance(self._torch, torch.optim.Optimizer):
            raise RunFolderError(
                f"the state of {type(inner).__name__} cannot be saved; allowed are torch's "
                "optimizers, alone or under "
                "DEEPSPEED=zero1 or zero2."
            )
        self.groups: list[dict[str, Any]] = self._torch.param_groups

    def collect(self) -> dict[str, torch.Tensor]:
        """Return {"<parameter>|<moment>": tensor} on the CPU; all ranks must call it together."""
        self._link()
        found: dict[str, torch.Tensor] = {}
        for name, parameter in self._parameters:
            for key, value in self._torch.state.get(self._holder(parameter), {}).items():
                if self._zero is not None and torch.is_tensor(value) and value.dim():
                    value = parameter.get_full_hp_param(key)
                found[f"{name}|{key}"] = _on_cpu(value)
            if self._zero is not None and parameter.dtype != torch.float32:
                found[f"{name}|{_MASTER}"] = _on_cpu(parameter.get_full_hp_param(None))
        return found

    def restore(self, saved: TrainingState) -> None:
        """Put moments and counts of updates back, bit by bit; a RunFolderError: those of another
        model or adapters.
        """
        by_parameter: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        for key, value in saved.moments.items():
            name, _, moment = key.rpartition("|")
            by_parameter[name][moment] = value
        unknown = sorted(set(by_parameter) - {name for name, _ in self._parameters})
        if unknown:
            raise RunFolderError(
                f"the optimizer state names {unknown[0]!r}, which this model does not have; "
                "resume with the MODEL, "
                "HANABI_PLAYERS and HANABI_ADAPTERS of the run."
            )
        self._allocate(by_parameter)
        self._link()
        for name, parameter in self._parameters:
            for key, value in by_parameter.get(name, {}).items():
                if self._zero is None:
                    state = self._torch.state[parameter]
                    state[key] = (
                        value.clone() if value.dim() == 0 else value.to(parameter.device).clone()
                    )
                elif key == _MASTER:
                    parameter.set_full_hp_param(value.to(parameter.device))
                elif value.dim():
                    parameter.set_full_hp_param(value.to(parameter.device), key)
            if self._zero is not None and parameter.dtype == torch.float32:
                # ZeRO steps a copy of its own; the adapter that was just loaded is the truth.
                parameter.set_full_hp_param(parameter.data)
        updates = {group["player"]: group["updates"] for group in saved.groups}
        for group in self.groups:
            group["updates"] = updates[group["player"]]

    def _holder(self, parameter: torch.Tensor) -> torch.Tensor:
        if self._zero is None:
            return parameter
        for number, group in enumerate(self._zero.bit16_groups):
            if any(one is parameter for one in group):
                return self._zero.single_partition_of_fp32_groups[number]
        raise RunFolderError(
            "an adapter parameter is in none of DeepSpeed's groups; the optimizer cannot be saved."
        )

    def _allocate(self, saved: dict[str, dict[str, torch.Tensor]]) -> None:
        # A player's partition has no state before its first update; the saved keys say what to
        # make.
        if self._zero is None:
            return
        for name, parameter in self._parameters:
            holder = self._holder(parameter)
            for key, value in saved.get(name, {}).items():
                if key == _MASTER:
                    continue
                if value.dim() == 0:
                    self._torch.state[holder][key] = value.clone()
                elif key not in self._torch.state[holder]:
                    self._torch.state[holder][key] = torch.zeros_like(holder)

    def _link(self) -> None:
        # ZeRO links moments to parameters once, after the first group's first step, when the other
        # groups have none.
        if self._zero is not None:
            self._zero._hp_optimizer_states_linked = False
            self._zero._lazy_init_hp_params_optimizer_state()


def random_state() -> dict[str, Any]:
    """Return this process's generators (Python, NumPy, torch) as JSON-able values."""
    version, internal, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=True)
    kind, keys, *place = numpy_state
    state: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "numpy": [kind, keys.tolist(), *place],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
    return state


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Set this process's generators."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *place = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *place))
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["torch"]), dtype=torch.uint8))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(
            torch.frombuffer(bytearray.fromhex(state["cuda"]), dtype=torch.uint8)
        )


def _on_cpu(value: Any) -> torch.Tensor:
    return (
        (value if torch.is_tensor(value) else torch.tensor(value))
        .detach()
        .to("cpu")
        .clone()
        .contiguous()
    )


class CheckpointSaving(GRPOTrainer):
    """A trainer that saves every player; ms-swift's own saves an adapter named `default` only."""

    failed_saves = 0
    """In a row."""

    @property
    def first_step(self) -> int:
        """Steps that were made before this process started."""
        return self.resume.step if self.resume else 0

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Gathering is for all ranks, writing for one; how it went, for all again.
        step = int(self.state.global_step)
        state, problem = None, None
        if self._resumable:
            optimizer = OptimizerState(self.accelerator.unwrap_model(self.model), self.optimizer)
            state = TrainingState(
                moments=optimizer.collect(),
                groups=optimizer.groups,
                random_states=gather_object([random_state()]),
                baselines=self.baselines.get(step, {}),
                critics=self.critic_states.get(step, {}),
                mismatch=self.evidence.get(step, {}),
            )
        with self._whole_adapters():
            if self.accelerator.is_main_process:
                try:
                    self._write_checkpoint(step, state)
                except RunFolderError as error:
                    problem = str(error)
        problem = broadcast_object_list([problem], from_process=0)[0]
        self.failed_saves = self.failed_saves + 1 if problem else 0
        if problem:
            said = f"{problem} ({self.failed_saves} in a row, {SAVE_TRIES} stop the run)"
            self._incident("save_failed", said, step=step)
        if self.failed_saves >= SAVE_TRIES:
            raise RunFolderError(
                f"{problem} {SAVE_TRIES} saves in a row failed; the earlier checkpoints are "
                "complete. Make room, "
                "then go on with RESUME=latest."
            )

    def _write_checkpoint(self, step: int, state: TrainingState | None) -> None:
        model = self.accelerator.unwrap_model(self.model)
        checksum = adapters.base_checksum(model)
        if checksum != self._base_checksum:
            raise ParityError(
                "the base model's weights changed during training "
                f"(checksum {self._base_checksum}, now {checksum}); only adapters may. "
                "Nothing was saved; look for a merge or an optimizer over base weights."
            )
        facts = {
            "spec_hashes": self.link.spec_hashes,
            "model": self.settings.model,
            "base_checksum": checksum,
            **({"started_from": self.started_from} if self.started_from else {}),
            **self.link.server_facts,
        }
        folder = save_checkpoint(
            model, self.adapter_names, self.link.run_folder, step, facts, state
        )
        self.state.last_model_checkpoint = str(folder)
        best = self.validation.best
        rotate(
            self.link.run_folder, self.settings.save_total_limit, best=best.step if best else None
        )

    def save_now(self) -> str:
        """Save the last finished step when a run is interrupted; returns what was done, for the
        log.
        """
        step = int(self.state.global_step)
        if step == self.first_step:
            return "no step was finished, so there is nothing to save"
        if self.guard.stepping:
            return (
                "the update was cut in the middle; the newest checkpoint in the run folder "
                "stays the last one"
            )
        if self.accelerator.num_processes > 1:
            return (
                "the newest checkpoint in the run folder stays the last one (several processes "
                "were interrupted)"
            )
        if not (self.link.run_folder / f"checkpoint-{step}").exists():
            self._save_checkpoint(None, None)
        if self.failed_saves:
            return f"step {step} could not be saved; the earlier checkpoints are complete"
        return f"step {step} is saved in {self.link.run_folder / f'checkpoint-{step}'}"


def save_checkpoint(
    model: PeftModel,
    names: tuple[str, ...],
    run_folder: Path,
    step: int,
    facts: Mapping[str, object],
    state: TrainingState | None = None,
) -> Path:
    """Write `checkpoint-<step>`: `<adapter>/` in PEFT's format, `trainer/`, and a manifest with
    hashes and `facts`.

    Without `state` it has no `trainer/`, and the run cannot be resumed from it. Errors: see
    `write_checkpoint`."""

    def fill(partial: Path) -> None:
        for name in names:
            adapters.save_adapter(model, name, partial / name)
        if state is not None:
            state.save(partial / TRAINER_STATE)

    tensors = [*state.moments.values(), *state.critics.values()] if state is not None else []
    for name in names:
        tensors += adapters.adapter_tensors(model, name, torch.float32).values()
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return write_checkpoint(
        run_folder, step, fill, {"adapters": list(names), **facts}, needed_bytes=needed
    )
