"""The files that a warm start writes.

- `checkpoint-0/`, or `model/` if the whole model learns: the best weights so far.
- `last/checkpoint-0/`: the newest state, with everything for a resume in its folder `warm_start/`.
- `warm_start.json`: the held-out figures so far.
- `games/`: the games of scripts, see `kept_games`.

Checkpoints are written in the same way as in reinforcement learning (`training.checkpoint`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs.checkpoints import find_checkpoint, recover_checkpoints
from hanabi_grpo.runs.run_folder import make_run_folder, new_folder, write_json_atomic
from hanabi_grpo.sft.learning import WHOLE_MODEL, Student
from hanabi_grpo.sft.resume_key import check_same_work
from hanabi_grpo.training.checkpoint import (
    OPTIMIZER,
    OptimizerState,
    read_tensors,
    save_checkpoint,
    save_tensors,
)
from hanabi_grpo.training.model.adapters import copy_parameters, fill, holding

LAST = "last"
"""Folder of the newest state."""
MODEL = "model"
"""Folder of the best model if the whole model learns."""
FIGURES = "warm_start.json"
"""File of the held-out figures."""
_INDEX = "state.json"
_FORMAT = 3
"""Format of a saved state, including the learning-rate schedule that it belongs to.

Format 1, of versions up to 0.2, was not numbered. In format 2 the learning rate decayed to a tenth;
in format 3 it decays to 0.
"""
_WEIGHTS = "weights.safetensors"
"""A student's current parameters."""
_BEST = "best.safetensors"
"""A student's parameters at the lowest held-out loss."""
_CONTINUE = "run the same command with --resume"
"""How to continue after a write failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """Progress of a student; stored as JSON."""

    step: int
    """Number of updates so far."""
    best_step: int
    """Number of updates at the lowest held-out loss."""
    best_loss: float
    """The lowest held-out loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StudentState:
    """The state of one student that a resume restores. Tensors are on the CPU."""

    progress: _Progress
    weights: Mapping[str, torch.Tensor]
    """The current parameters."""
    best: Mapping[str, torch.Tensor]
    """The parameters at the lowest held-out loss; empty before the first evaluation."""
    moments: Mapping[str, torch.Tensor]
    """Optimizer moments, from `OptimizerState.collect`."""

    @classmethod
    def collect(cls, student: Student) -> "_StudentState":
        """Copy the state of a student."""
        progress = _Progress(
            step=student.step, best_step=student.best_step, best_loss=student.best_loss
        )
        optimizer = OptimizerState(student.parameters, student.optimizer)
        return cls(
            progress=progress,
            weights=copy_parameters(student.parameters),
            best=student.best or {},
            moments=optimizer.collect(),
        )

    def restore(self, student: Student) -> None:
        """Restore a new student, including its position in the batches."""
        fill(student.parameters, self.weights)
        if student.parts is not None:
            student.parts.restored()
        OptimizerState(student.parameters, student.optimizer).restore(self.moments)
        student.step = self.progress.step
        if self.best:
            student.best = dict(self.best)
            student.best_step = self.progress.best_step
            student.best_loss = self.progress.best_loss
        for _ in range(student.step):
            next(student.batches)

    def save(self, folder: Path) -> None:
        """Write the tensors."""
        folder.mkdir()
        save_tensors(self.weights, folder / _WEIGHTS)
        save_tensors(self.moments, folder / OPTIMIZER)
        if self.best:
            save_tensors(self.best, folder / _BEST)

    @classmethod
    def load(cls, folder: Path, progress: _Progress) -> "_StudentState":
        """Read what `save` wrote."""
        return cls(
            progress=progress,
            weights=read_tensors(folder / _WEIGHTS),
            best=read_tensors(folder / _BEST),
            moments=read_tensors(folder / OPTIMIZER),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _WarmStartState:
    """The folder `warm_start/` of a checkpoint: the `ResumeState` of a warm start."""

    FOLDER: ClassVar[str] = "warm_start"

    key: Mapping[str, Any]
    """See `ResultFolder.key`."""
    history: Sequence[Mapping[str, Any]]
    """See `ResultFolder.history`."""
    students: Mapping[str, _StudentState]
    """States by the student's name."""

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors that `save` writes."""
        tensors: list[torch.Tensor] = []
        for student in self.students.values():
            tensors += student.weights.values()
            tensors += student.best.values()
            tensors += student.moments.values()
        return tensors

    def save(self, folder: Path) -> None:
        """Write the folder: an index, and a folder of tensors for each student."""
        folder.mkdir()
        progress = {}
        for name, student in self.students.items():
            student.save(folder / name)
            progress[name] = asdict(student.progress)
        index = {
            "format": _FORMAT,
            "key": self.key,
            "students": progress,
            "history": self.history,
        }
        write_json_atomic(folder / _INDEX, index)


@dataclass(slots=True, kw_only=True)
class ResultFolder:
    """The folder of one warm start."""

    out: Path
    key: Mapping[str, Any]
    """Everything that the weights depend on; a resume must have the same."""
    facts: Mapping[str, Any]
    """Facts about the base model for the checkpoints' manifests."""
    history: list[dict[str, Any]]
    """Held-out figures of every student, oldest first."""

    def save(self, model: Any, tokenizer: Any, students: Sequence[Student]) -> None:
        """Write the best weights so far, if there are any, and the newest state.

        Args:
            model: The model that the students are part of.
            tokenizer: Saved with a whole model.
            students: The students.

        Raises:
            RunFolderError: The files cannot be written; the previous ones remain.
        """
        if all(student.best is not None for student in students):
            self._save_best(model, tokenizer, students)
        last = self.out / LAST
        make_run_folder(last, option="--out")
        state = _WarmStartState(
            key=self.key,
            history=self.history,
            students={student.name: _StudentState.collect(student) for student in students},
        )
        self._save_checkpoint(last, model, students, state)
        write_json_atomic(self.out / FIGURES, {**self._about(students), "held_out": self.history})

    def restore(self, students: Sequence[Student]) -> bool:
        """Restore the newest state bit-identically; return False if there is none.

        Raises:
            SettingsError: The state belongs to different games, settings or base weights.
            RunFolderError: The state is damaged.
        """
        last = self.out / LAST
        if not last.is_dir() or not any(last.iterdir()):
            return False
        recover_checkpoints(last)
        folder = find_checkpoint(last, needs=_WarmStartState.FOLDER).folder / _WarmStartState.FOLDER
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        self._check_format(index.get("format", 1))
        check_same_work(index["key"], self.key, self.out)
        for student in students:
            progress = _Progress(**index["students"][student.name])
            _StudentState.load(folder / student.name, progress).restore(student)
        self.history[:] = index["history"]
        return True

    def _check_format(self, saved: int) -> None:
        if saved != _FORMAT:
            raise SettingsError(
                f"--resume: the state in {self.out / LAST} has format {saved}; this version "
                f"resumes format {_FORMAT} only. Continue with the version of hanabi-grpo that "
                "wrote it, or start over with another --out; the best result so far in "
                f"{self.out} remains usable."
            )

    def _save_best(self, model: Any, tokenizer: Any, students: Sequence[Student]) -> None:
        weights: dict[str, torch.nn.Parameter] = {}
        best: dict[str, torch.Tensor] = {}
        for student in students:
            weights |= student.parameters
            best |= student.best or {}
        with holding(weights, best):
            if students[0].name == WHOLE_MODEL:
                self._save_model(model, tokenizer, students)
            else:
                self._save_checkpoint(self.out, model, students)

    def _save_checkpoint(
        self,
        folder: Path,
        model: Any,
        students: Sequence[Student],
        state: _WarmStartState | None = None,
    ) -> None:
        """Write a checkpoint with the present weights of the adapters.

        Args:
            folder: The folder of the checkpoint.
            model: The PEFT model, or the whole model, which has no adapters.
            students: The students.
            state: The state for a resume; None: without one.
        """
        names = [student.name for student in students if student.name != WHOLE_MODEL]
        facts = {**self.facts, "warm_start": self._about(students)}
        save_checkpoint(model, names, folder, 0, facts, state, next_step=_CONTINUE)

    def _save_model(self, model: Any, tokenizer: Any, students: Sequence[Student]) -> None:
        """Write a Hugging Face model folder, replacing the old one."""
        target = self.out / MODEL
        state = _convert_state(model, getattr(torch, self.key["dtype"]))
        try:
            with new_folder(target) as folder:
                model.save_pretrained(folder, state_dict=state)
                # config.json has the number format of training, which loaders would use.
                config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
                write_json_atomic(folder / "config.json", {**config, "dtype": self.key["dtype"]})
                tokenizer.save_pretrained(folder)
                write_json_atomic(folder / FIGURES, {**self.facts, **self._about(students)})
        except OSError as error:
            raise RunFolderError(
                f"{target}: cannot be written ({error.strerror or error}). Free some space, then "
                f"{_CONTINUE}."
            ) from error

    def _about(self, students: Sequence[Student]) -> dict[str, Any]:
        """Return the training data's key, the steps, and the best figures."""
        best = {(student.name, student.best_step) for student in students}
        return {
            "key": self.key,
            "steps": {student.name: student.step for student in students},
            "best": [row for row in self.history if (row["name"], row["step"]) in best],
        }


def _convert_state(model: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return a model's state on the CPU, converted to another number format.

    Tied weights remain one tensor, so that they are written once.
    """
    converted: dict[int, torch.Tensor] = {}
    state = {}
    for name, tensor in model.state_dict().items():
        address = tensor.data_ptr()
        if address not in converted:
            wanted = dtype if tensor.is_floating_point() else None
            converted[address] = tensor.detach().to("cpu", wanted).contiguous()
        state[name] = converted[address]
    return state
