"""What a checkpoint contains, how it is written and restored, and how failed saves are handled.

A checkpoint holds the adapters and the state that a resumed run needs to continue exactly as the
run would have continued. The state is stored per parameter of the model, as safetensors or JSON, so
the number of processes and the DeepSpeed stage may change on resume, and no file runs code.

Warm starts (`sft.state`) write their checkpoints with the same `save_checkpoint` and
`OptimizerState`.
"""

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from peft import PeftModel
from safetensors.torch import load_file, save_file

from hanabi_grpo.errors import ParityError, RunFolderError
from hanabi_grpo.runs.checkpoints import rotate, write_checkpoint
from hanabi_grpo.runs.restored_run import TRAINER_STATE
from hanabi_grpo.training.matchmaking import PartnerRecord
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.policy import Policy
from hanabi_grpo.training.state import LossScale, StepState

OPTIMIZER = "optimizer.safetensors"
OPTIMIZER_KIND = "optimizer.json"
GROUPS = "groups.json"
RANDOM = "random.json"
BASELINES = "baselines.json"
CRITICS = "critics.safetensors"
MISMATCH = "mismatch.json"
EARLIER = "earlier.safetensors"
PHASE_BEST = "phase_best.safetensors"
KL_WEIGHTS = "kl_weights.json"
REFERENCE = "reference.safetensors"
PARTNERS = "partners.json"
LOSS_SCALE = "loss_scale.json"
SAVED_OF_A_GROUP = ("player", "updates", "lr")
"""What is saved of an optimizer group: its player, its number of updates, and its rate."""
SAVE_TRIES = 3
"""Smallest number of failed saves in a row that stops a run."""
SAVE_PATIENCE = 600.0
"""Seconds after the first failed save in a row before failed saves can stop a run."""
RETRY_SECONDS = 15.0
"""Seconds between a failed save and the next try, or until the end of the step if that is later."""
_KIND = "class"
"""Key of `OPTIMIZER_KIND`: the name of the optimizer's class."""
_MASTER = "master"
"""Key of a parameter's float32 copy, which DeepSpeed keeps for 16-bit weights."""
_DTYPES_WITH_A_COPY = (torch.bfloat16, torch.float16)
"""Types of the weights of which DeepSpeed keeps float32 copies."""


class ResumeState(Protocol):
    """What a resume needs besides the adapters: one folder of a checkpoint."""

    FOLDER: ClassVar[str]
    """Name of the folder."""

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors that `save` writes, so that their size is known beforehand."""

    def save(self, folder: Path) -> None:
        """Write the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """The folder `trainer/` of a checkpoint: the `ResumeState` of a run."""

    FOLDER: ClassVar[str] = TRAINER_STATE

    moments: Mapping[str, torch.Tensor]
    """Returned by `OptimizerState.collect`."""
    groups: Sequence[Mapping[str, Any]]
    """The optimizer's groups; the keys in `SAVED_OF_A_GROUP` are saved."""
    random_states: Sequence[Mapping[str, Any]]
    """One per process, see `random_state`."""
    step_state: StepState
    """The state that each step passes to the next."""
    optimizer_kind: str = ""
    """`OptimizerState.kind`; empty in checkpoints of versions that did not save it."""

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors that `save` writes."""
        return [
            *self.moments.values(),
            *self.step_state.critics.values(),
            *self.step_state.earlier.values(),
            *self.step_state.phase_best.values(),
            *self.step_state.reference.values(),
        ]

    def save(self, folder: Path) -> None:
        """Write the folder; files for features that the run does not use are omitted."""
        folder.mkdir(parents=True)
        save_tensors(self.moments, folder / OPTIMIZER)
        if self.optimizer_kind:
            kind = {_KIND: self.optimizer_kind}
            (folder / OPTIMIZER_KIND).write_text(json.dumps(kind))
        groups = []
        for group in self.groups:
            groups.append({key: group[key] for key in SAVED_OF_A_GROUP})
        (folder / GROUPS).write_text(json.dumps(groups, indent=1))
        (folder / RANDOM).write_text(json.dumps(self.random_states))
        # Python writes the shortest decimal that reads back as exactly the same number.
        baselines = dict(self.step_state.baselines)
        (folder / BASELINES).write_text(json.dumps(baselines, indent=1))
        if self.step_state.mismatch:
            (folder / MISMATCH).write_text(json.dumps(self.step_state.mismatch))
        if self.step_state.kl_weights:
            (folder / KL_WEIGHTS).write_text(json.dumps(dict(self.step_state.kl_weights)))
        if self.step_state.partners.games:
            (folder / PARTNERS).write_text(json.dumps(self.step_state.partners.to_json()))
        if self.step_state.loss_scale is not None:
            (folder / LOSS_SCALE).write_text(json.dumps(asdict(self.step_state.loss_scale)))
        if self.step_state.reference:
            save_tensors(self.step_state.reference, folder / REFERENCE)
        if self.step_state.critics:
            save_tensors(self.step_state.critics, folder / CRITICS)
        if self.step_state.earlier:
            save_tensors(self.step_state.earlier, folder / EARLIER)
        if self.step_state.phase_best:
            save_tensors(self.step_state.phase_best, folder / PHASE_BEST)

    @classmethod
    def load(cls, folder: Path, step: int) -> "TrainingState":
        """Read the folder of a step's checkpoint; anything without a file is empty."""
        groups = json.loads((folder / GROUPS).read_text())
        random_states = json.loads((folder / RANDOM).read_text())
        loss_scale = _read_json(folder / LOSS_SCALE)
        step_state = StepState(
            step=step,
            baselines=_read_json(folder / BASELINES),
            critics=read_tensors(folder / CRITICS),
            mismatch=_read_json(folder / MISMATCH),
            earlier=read_tensors(folder / EARLIER),
            phase_best=read_tensors(folder / PHASE_BEST),
            kl_weights=_read_json(folder / KL_WEIGHTS),
            partners=PartnerRecord.from_json(_read_json(folder / PARTNERS)),
            reference=read_tensors(folder / REFERENCE),
            loss_scale=LossScale(**loss_scale) if loss_scale else None,
        )
        return cls(
            moments=load_file(folder / OPTIMIZER),
            groups=groups,
            random_states=random_states,
            step_state=step_state,
            optimizer_kind=_read_json(folder / OPTIMIZER_KIND).get(_KIND, ""),
        )


class OptimizerState:
    """What an optimizer keeps between updates, with or without DeepSpeed.

    This is the moments and step counters of every trained parameter and, in float16, the loss
    scale. With 16-bit weights, it is also the float32 copy of every parameter: DeepSpeed trains in
    the format of the base model and updates copies, while torch's optimizer updates the adapters
    themselves, which are float32 then.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], optimizer: Any) -> None:
        """Bind parameters and their optimizer.

        Args:
            parameters: The parameters that the optimizer trains, by name.
            optimizer: torch's optimizer, or accelerate's wrapper of torch's or DeepSpeed's.

        Raises:
            RunFolderError: The optimizer is of another kind, whose state cannot be saved per
                parameter.
        """
        self._parameters = list(parameters.items())
        inner = getattr(optimizer, "optimizer", optimizer)
        self._has_whole_weights = not hasattr(inner, "fp32_partitioned_groups_flat")
        """False under ZeRO-3."""
        is_zero = not self._has_whole_weights or hasattr(inner, "single_partition_of_fp32_groups")
        self._zero = inner if is_zero else None
        self._torch: torch.optim.Optimizer = inner.optimizer if is_zero else inner
        self._torch_scaler: torch.amp.GradScaler | None = getattr(optimizer, "scaler", None)
        """Scales the loss in float16 without DeepSpeed, which scales it itself."""
        if not isinstance(self._torch, torch.optim.Optimizer):
            raise RunFolderError(
                f"the optimizer state of {type(inner).__name__} cannot be saved; allowed: torch's "
                "optimizers, alone or with DEEPSPEED=zero1, zero2 or zero3."
            )
        self.groups: list[dict[str, Any]] = self._torch.param_groups
        self.kind = type(self._torch).__name__
        """Name of torch's optimizer class, e.g. "AdamW"; the moments have no meaning for another
        one."""

    def collect(self) -> dict[str, torch.Tensor]:
        """Return {"<parameter>|<moment>": tensor} on the CPU; all ranks must call it together."""
        self._link_moments()
        moments: dict[str, torch.Tensor] = {}
        for name, parameter in self._parameters:
            state = self._torch.state.get(self._holder(parameter), {})
            for key, value in state.items():
                if self._zero is not None and torch.is_tensor(value) and value.dim():
                    value = self._gather(parameter, key)
                moments[f"{name}|{key}"] = _on_cpu(value)
            if self._zero is not None and parameter.dtype != torch.float32:
                moments[f"{name}|{_MASTER}"] = _on_cpu(self._gather(parameter, None))
        return moments

    def restore(self, saved: Mapping[str, torch.Tensor], *, kind: str = "") -> None:
        """Restore moments, step counters and float32 copies of 16-bit weights exactly.

        The weights must have been restored before, and be gathered to be written meanwhile.

        Args:
            saved: Returned by `collect`, with the same or another DEEPSPEED.
            kind: `kind` of the optimizer that they were collected from; empty: unknown.

        Raises:
            RunFolderError: They belong to another model, other adapters or another optimizer.
        """
        if kind and kind != self.kind:
            raise RunFolderError(
                f"the optimizer state is that of {kind}, but this run's optimizer is {self.kind}; "
                "resume with the --optim of the run, or start a new run from its adapters with "
                "HANABI_START_FROM=(the checkpoint)."
            )
        by_parameter: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        copies: dict[str, torch.Tensor] = {}
        for key, value in saved.items():
            name, _, moment = key.rpartition("|")
            if moment == _MASTER:
                copies[name] = value
            else:
                by_parameter[name][moment] = value
        unknown = sorted({*by_parameter, *copies} - set(dict(self._parameters)))
        if unknown:
            raise RunFolderError(
                f"the optimizer state names the parameter {unknown[0]!r}, which this model does "
                "not have; resume with the MODEL, HANABI_PLAYERS and HANABI_ADAPTERS of the run."
            )
        self._allocate(by_parameter)
        self._link_moments()
        for name, parameter in self._parameters:
            for key, value in by_parameter.get(name, {}).items():
                self._put_moment(parameter, key, value)
        without_copy = []
        for name, parameter in self._parameters:
            copy = copies.get(name)
            if copy is not None and _is_rounded(copy, parameter):
                self._put_copy(parameter, copy)
            else:
                without_copy.append(name)
        self.adopt_weights(without_copy)

    def restore_counts(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Restore each player's number of updates.

        Args:
            saved: The saved groups, see `SAVED_OF_A_GROUP`.
        """
        updates = {group["player"]: group["updates"] for group in saved}
        for group in self.groups:
            group["updates"] = updates[group["player"]]

    def loss_scale(self) -> LossScale | None:
        """Return the loss scale; None without one, or if it never changes."""
        if self._zero is not None:
            scaler = self._zero.loss_scaler
            if not scaler.dynamic:
                return None
            return LossScale(
                scale=float(scaler.cur_scale),
                good_updates=scaler.cur_iter - scaler.last_overflow_iter - 1,
                hysteresis=scaler.cur_hysteresis,
            )
        if self._torch_scaler is None or not self._torch_scaler.is_enabled():
            return None
        state = self._torch_scaler.state_dict()
        return LossScale(scale=state["scale"], good_updates=state["_growth_tracker"])

    def restore_loss_scale(self, saved: LossScale | None) -> None:
        """Restore a loss scale exactly, or as exactly as another DEEPSPEED allows.

        Args:
            saved: Returned by `loss_scale`. None leaves the initial scale; checkpoints of versions
                up to 0.2 have no scale.
        """
        if saved is None or self.loss_scale() is None:
            return
        if self._zero is not None:
            scaler = self._zero.loss_scaler
            scaler.cur_scale = saved.scale
            # DeepSpeed uses only the difference of the two numbers.
            scaler.cur_iter = saved.good_updates
            scaler.last_overflow_iter = -1
            if saved.hysteresis is not None:
                scaler.cur_hysteresis = saved.hysteresis
        elif self._torch_scaler is not None:
            state = self._torch_scaler.state_dict()
            state["scale"] = saved.scale
            # torch counts from 0 again when the scale grows, DeepSpeed does not.
            state["_growth_tracker"] = saved.good_updates % state["growth_interval"]
            self._torch_scaler.load_state_dict(state)

    def adopt_weights(self, names: Collection[str]) -> None:
        """Set DeepSpeed's float32 copies of some parameters to the parameters' current values.

        ZeRO updates its own copies, so without this call, weights that were written into the model
        would be lost. The weights must be gathered meanwhile.
        """
        if self._zero is None:
            return
        for name, parameter in self._parameters:
            if name in names:
                self._scatter(parameter, None, parameter.data.float())

    def _gather(self, parameter: Any, key: str | None) -> torch.Tensor:
        """Return a whole moment of a parameter; key None: its float32 copy. Only for ZeRO."""
        if self._has_whole_weights:
            return parameter.get_full_hp_param(key)
        assert self._zero is not None
        return self._zero.get_full_hp_param(parameter, key)

    def _scatter(self, parameter: Any, key: str | None, value: torch.Tensor) -> None:
        """Restore a value that `_gather` returned."""
        value = value.to(parameter.device)
        if self._has_whole_weights:
            parameter.set_full_hp_param(value, key)
        elif self._zero is not None:
            # DeepSpeed (0.19) has a call for whole values, but it fails if their number is not
            # divisible by the number of processes.
            length = parameter.partition_numel()
            start = length * dist.get_rank()
            share = torch.zeros(length, dtype=value.dtype, device=value.device)
            own = value.flatten()[start : start + length]
            share[: len(own)] = own
            self._zero.set_local_hp_param(share, parameter, key)

    def _put_moment(self, parameter: Any, key: str, value: torch.Tensor) -> None:
        if self._zero is None:
            device = parameter.device if value.dim() else self._counter_device(parameter)
            self._torch.state[parameter][key] = value.to(device, copy=True)
        elif value.dim():
            self._scatter(parameter, key, value)

    def _put_copy(self, parameter: Any, copy: torch.Tensor) -> None:
        """Restore a parameter and its float32 copy, which without DeepSpeed are the same."""
        parameter.data.copy_(copy)
        if self._zero is not None:
            self._scatter(parameter, None, copy)

    def _holder(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the tensor under which the torch optimizer stores a parameter's state."""
        if self._zero is None:
            return parameter
        if self._has_whole_weights:
            groups = self._zero.bit16_groups
            partitions = self._zero.single_partition_of_fp32_groups
        else:
            groups = self._zero.fp16_groups
            partitions = self._zero.fp32_partitioned_groups_flat
        for group, partition in zip(groups, partitions, strict=True):
            if any(member is parameter for member in group):
                return partition
        raise RunFolderError(
            "an adapter parameter is missing from DeepSpeed's groups; the optimizer state cannot "
            "be saved."
        )

    def _counter_device(self, holder: torch.Tensor) -> torch.device:
        """Return the device on which the optimizer expects the step counter of a parameter.

        Counters are on the CPU, except for optimizers that read them in a kernel
        (`Optimizer._process_value_according_to_param_policy` in torch 2.13). A fused kernel that
        gets a pointer to CPU memory reads an illegal address.

        Args:
            holder: The parameter's tensor in the optimizer, see `_holder`.
        """
        for group in self._torch.param_groups:
            if any(member is holder for member in group["params"]):
                is_read_by_kernel = group.get("fused") or group.get("capturable")
                return holder.device if is_read_by_kernel else torch.device("cpu")
        return torch.device("cpu")

    def _allocate(self, saved: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Allocate the state of DeepSpeed's partitions, missing before the first update."""
        if self._zero is None:
            return
        for name, parameter in self._parameters:
            holder = self._holder(parameter)
            for key, value in saved.get(name, {}).items():
                if value.dim() == 0:
                    device = self._counter_device(holder)
                    self._torch.state[holder][key] = value.to(device, copy=True)
                elif key not in self._torch.state[holder]:
                    self._torch.state[holder][key] = torch.zeros_like(holder)

    def _link_moments(self) -> None:
        # ZeRO-1 and -2 link moments to parameters once, after the first group's first step. The
        # other groups have no moments by then.
        if self._zero is not None and self._has_whole_weights:
            self._zero._hp_optimizer_states_linked = False
            self._zero._lazy_init_hp_params_optimizer_state()


class CheckpointSaver:
    """Writes `checkpoint-<step>` of a run, all processes together."""

    def __init__(
        self,
        policy: Policy,
        optimizer: Any,
        accelerator: Accelerator,
        *,
        run_folder: Path,
        base_checksum: str,
        facts: Callable[[], Mapping[str, object]],
        best_step: Callable[[], int | None],
        keep: int,
        every: int = 1,
        report: Callable[..., None],
    ) -> None:
        """Prepare.

        Args:
            policy: The policy to save.
            optimizer: accelerate's optimizer.
            accelerator: Gathers the processes' parts.
            run_folder: Where checkpoints are written.
            base_checksum: Checksum of the frozen weights before training, see
                `adapters.base_checksum`.
            facts: Returns further facts for the manifest when it is written.
            best_step: Returns the step whose checkpoint is never rotated out.
            keep: SAVE_TOTAL_LIMIT.
            every: Steps between the checkpoints that `keep` counts, see `runs.checkpoints.rotate`.
            report: Called as report(kind, message, **details) for an incident.
        """
        self._policy = policy
        self._optimizer = optimizer
        self._accelerator = accelerator
        self._run_folder = run_folder
        self._base_checksum = base_checksum
        self._facts = facts
        self._best_step = best_step
        self._keep = keep
        self._every = every
        self._report = report
        self.num_failed = 0
        """Failed saves in a row."""
        self._first_failure = 0.0
        self._last_try = 0.0

    def folder(self, step: int) -> Path:
        """Return where the checkpoint of a step is."""
        return self._run_folder / f"checkpoint-{step}"

    def should_retry(self) -> bool:
        """Tell whether to retry a failed save now; the answer is the same on all processes."""
        if not self.num_failed:
            return False
        is_due = time.monotonic() - self._last_try >= RETRY_SECONDS
        return bool(broadcast_object_list([is_due], from_process=0)[0])

    def save(self, state: StepState, *, is_last: bool = False) -> None:
        """Save the state after a step.

        Args:
            state: The state.
            is_last: Whether no step follows in which a failed save could be retried. If so, the
                save is retried here until the patience is used up.

        Raises:
            RunFolderError: At least `SAVE_TRIES` saves in a row failed, over at least
                `SAVE_PATIENCE` seconds.
            ParityError: The base model's weights have changed.
        """
        training_state = self._collect(state)
        while not self._try_to_save(state.step, training_state) and is_last:
            time.sleep(RETRY_SECONDS)

    def _try_to_save(self, step: int, training_state: TrainingState) -> bool:
        """Return whether the checkpoint was written, see `save`."""
        now = time.monotonic()
        problem: str | None = None
        with self._policy.whole_adapters():
            if self._accelerator.is_main_process:
                try:
                    self._write(step, training_state)
                except RunFolderError as error:
                    problem = str(error)
        if not self.num_failed:
            self._first_failure = now
        self._last_try = now
        # The main process knows both, and its clock decides for all processes.
        problem, seconds = broadcast_object_list(
            [problem, now - self._first_failure], from_process=0
        )
        if problem is None:
            self.num_failed = 0
            return True
        self.num_failed += 1
        self._report(
            "save_failed",
            f"{problem} ({self.num_failed} failed saves in a row; the run stops after "
            f"{SAVE_TRIES} failed saves over at least {SAVE_PATIENCE:.0f} s)",
            step=step,
        )
        if self.num_failed >= SAVE_TRIES and seconds >= SAVE_PATIENCE:
            raise RunFolderError(
                f"{problem} {self.num_failed} saves in a row failed, over {seconds:.0f} s; the "
                "earlier checkpoints are complete. Free disk space, then continue with "
                "RESUME=latest."
            )
        return False

    def _collect(self, state: StepState) -> TrainingState:
        """Return what a resume needs, gathered from all processes."""
        parameters = self._policy.adapter_parameters
        optimizer = OptimizerState(parameters, self._optimizer)
        return TrainingState(
            moments=optimizer.collect(),
            groups=optimizer.groups,
            random_states=gather_object([random_state()]),
            step_state=state,
            optimizer_kind=optimizer.kind,
        )

    def _write(self, step: int, state: TrainingState) -> None:
        checksum = adapters.base_checksum(self._policy.model)
        if checksum != self._base_checksum:
            raise ParityError(
                "the base model's weights changed during training "
                f"(checksum {self._base_checksum}, now {checksum}); only adapters may change. "
                "Nothing was saved; look for code that merges adapters or optimizes base weights."
            )
        facts = {**self._facts(), "base_checksum": checksum}
        of_players = adapters.base_checksums(self._policy.model, self._policy.adapter_names)
        if of_players:
            facts["base_checksums"] = of_players
        save_checkpoint(
            self._policy.model,
            self._policy.adapter_names,
            self._run_folder,
            step,
            facts,
            state,
        )
        self.rotate(self._best_step())

    def rotate(self, best: int | None) -> None:
        """Remove the checkpoints beyond the limit; only the main process calls it.

        Args:
            best: Step of the checkpoint to keep in any case.
        """
        rotate(self._run_folder, self._keep, best=best, every=self._every)


def save_checkpoint(
    model: PeftModel,
    names: Sequence[str],
    run_folder: Path,
    step: int,
    facts: Mapping[str, object],
    state: ResumeState | None = None,
    *,
    next_step: str | None = None,
) -> Path:
    """Write `checkpoint-<step>`: `<adapter>/` in PEFT's format, a state, and a manifest.

    Args:
        model: The model with the adapters.
        names: The adapters to save.
        run_folder: Where the checkpoint is written.
        step: Number of finished steps.
        facts: Facts for the manifest besides the hashes of the files.
        state: What a resume needs, in its own folder, e.g. `trainer/`. None: the checkpoint cannot
            be resumed from.
        next_step: See `write_checkpoint`.

    Returns:
        The folder.

    Raises:
        RunFolderError: See `write_checkpoint`.
    """

    def fill(partial: Path) -> None:
        for name in names:
            adapters.save_adapter(model, name, partial / name)
        if state is not None:
            state.save(partial / state.FOLDER)

    tensors = state.tensors() if state is not None else []
    for name in names:
        tensors += adapters.adapter_tensors(model, name, torch.float32).values()
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    manifest = {"adapters": list(names), **facts}
    return write_checkpoint(
        run_folder, step, fill, manifest, needed_bytes=needed, next_step=next_step
    )


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write CPU tensors to a safetensors file."""
    save_file(dict(tensors), path, metadata={"format": "pt"})


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file; empty if the file does not exist."""
    return load_file(path) if path.exists() else {}


def random_state() -> dict[str, Any]:
    """Return the state of this process's random generators (Python, NumPy, torch) for JSON."""
    version, internal, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=True)
    kind, keys, *position = numpy_state
    state: dict[str, Any] = {
        "python": [version, list(internal), gauss],
        "numpy": [kind, keys.tolist(), *position],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
    return state


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Restore this process's random generators from a `random_state`."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *position = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *position))
    torch.set_rng_state(_bytes_tensor(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes_tensor(state["cuda"]))


def _bytes_tensor(hexadecimal: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(hexadecimal), dtype=torch.uint8)


def _is_rounded(copy: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Tell whether a parameter is its float32 copy, rounded to 16 bits.

    If it is not, the copy is out of date: without DeepSpeed, versions up to 0.2 saved the copies
    that they had resumed from once more, while the parameters moved on.

    Args:
        copy: The saved float32 copy.
        parameter: The restored parameter, of any type.
    """
    weights = parameter.detach().float()
    exact = copy.to(weights.device)
    return any(torch.equal(exact.to(dtype).float(), weights) for dtype in _DTYPES_WITH_A_COPY)


def _on_cpu(value: Any) -> torch.Tensor:
    tensor = value if torch.is_tensor(value) else torch.tensor(value)
    return tensor.detach().to("cpu", copy=True).contiguous()


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}
