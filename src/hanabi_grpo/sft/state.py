"""What a warm start keeps on disk.

- `checkpoint-0/`, or `model/` where the whole model learns: the best so far.
- `last/checkpoint-0/`: the newest state, with all that a resume needs.
- `warm_start.json`: the held-out figures so far.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs.checkpoints import find_checkpoint, recover_checkpoints, write_checkpoint
from hanabi_grpo.runs.run_folder import make_run_folder, new_folder, write_json_atomic
from hanabi_grpo.sft.learning import WHOLE_MODEL, Student
from hanabi_grpo.training.model.adapters import fill, holding, save_adapter

LAST = "last"
"""Folder of the newest state."""
MODEL = "model"
"""Folder of the best model, where the whole model learns."""
FIGURES = "warm_start.json"
"""File of the held-out figures."""
_STATE = "warm_start"
"""Folder in a checkpoint: all that a resume needs besides the adapters."""
_INDEX = "state.json"
_WEIGHT = "weight"
"""Kind of a tensor in the state: a parameter as it is now."""
_BEST = "best"
"""Kind of a tensor in the state: a parameter as it was at the lowest held-out loss."""
_MOMENTS = ("exp_avg", "exp_avg_sq")
"""Kinds of tensors in the state: what AdamW keeps of a parameter."""
_SHOWN_CHARACTERS = 80
"""Of a value that differs, in the message to a resume that does not fit."""
_BYTES_PER_PARAMETER = 4
_COPIES_IN_A_STATE = 5
"""Tensors per parameter of a state: adapter, weight, best, and two moments."""


@dataclass(slots=True, kw_only=True)
class Kept:
    """The folder of one warm start."""

    out: Path
    key: Mapping[str, Any]
    """Everything that the weights depend on; a resume needs the same."""
    facts: Mapping[str, Any]
    """What a checkpoint's manifest says of the base model."""
    history: list[dict[str, Any]]
    """Held-out figures of every student, oldest first."""

    def save(self, model: Any, tokenizer: Any, students: Sequence[Student]) -> None:
        """Write the best so far, if there is one, and the newest state.

        Args:
            model: The model that the students are part of.
            tokenizer: Kept with a whole model.
            students: What learns.

        Raises:
            RunFolderError: It cannot be written; what was there before stays.
        """
        if all(student.best is not None for student in students):
            self._save_best(model, tokenizer, students)
        last = self.out / LAST
        make_run_folder(last)
        self._save_adapters(last, model, students, with_state=True)
        write_json_atomic(self.out / FIGURES, {**self._about(students), "held_out": self.history})

    def restore(self, students: Sequence[Student]) -> bool:
        """Restore the newest state, bit by bit; return False where there is none.

        Raises:
            SettingsError: It is of other games, settings or base weights.
            RunFolderError: It is damaged.
        """
        last = self.out / LAST
        if not last.is_dir() or not any(last.iterdir()):
            return False
        recover_checkpoints(last)
        folder = find_checkpoint(last, needs=_STATE).folder / _STATE
        saved = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        self._check_key(saved["key"])
        for student in students:
            counts = saved["students"][student.name]
            tensors = load_file(folder / f"{student.name}.safetensors")
            _restore_student(student, tensors, counts["step"])
            if student.best:
                student.best_step = counts["best_step"]
                student.best_loss = counts["best_loss"]
        self.history[:] = saved["history"]
        return True

    def _check_key(self, saved: Mapping[str, Any]) -> None:
        """Refuse a state that depends on other games, settings or weights than this warm start."""
        changes = []
        for name in sorted({*saved, *self.key}):
            before = saved.get(name)
            now = self.key.get(name)
            if before != now:
                shown_before = str(before)[:_SHOWN_CHARACTERS]
                shown_now = str(now)[:_SHOWN_CHARACTERS]
                changes.append(f"{name} was {shown_before}, is {shown_now}")
        if changes:
            raise SettingsError(
                f"--resume: {self.out} is another warm start: {'; '.join(changes)}. Give the same "
                "options, games and settings, or choose another --out."
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
                self._save_adapters(self.out, model, students, with_state=False)

    def _save_adapters(
        self, folder: Path, model: Any, students: Sequence[Student], *, with_state: bool
    ) -> None:
        """Write a checkpoint of the adapters as they are now.

        Args:
            folder: The folder of the checkpoint.
            model: The PEFT model.
            students: What learns.
            with_state: Write what a resume needs too.
        """
        names = [student.name for student in students if student.name != WHOLE_MODEL]

        def write_content(partial: Path) -> None:
            for name in names:
                save_adapter(model, name, partial / name)
            if with_state:
                self._write_state(partial / _STATE, students)

        num_parameters = 0
        for student in students:
            for parameter in student.parameters.values():
                num_parameters += parameter.numel()
        needed_bytes = num_parameters * _BYTES_PER_PARAMETER
        if with_state:
            needed_bytes *= _COPIES_IN_A_STATE
        facts = {"adapters": names, **self.facts, "warm_start": self._about(students)}
        write_checkpoint(folder, 0, write_content, facts, needed_bytes=needed_bytes)

    def _write_state(self, folder: Path, students: Sequence[Student]) -> None:
        folder.mkdir()
        counts = {}
        for student in students:
            path = folder / f"{student.name}.safetensors"
            save_file(_collect_tensors(student), path, metadata={"format": "pt"})
            counts[student.name] = {
                "step": student.step,
                "best_step": student.best_step,
                "best_loss": student.best_loss,
            }
        index = {"key": self.key, "students": counts, "history": self.history}
        write_json_atomic(folder / _INDEX, index)

    def _save_model(self, model: Any, tokenizer: Any, students: Sequence[Student]) -> None:
        """Write a Hugging Face folder in the place of the old one."""
        target = self.out / MODEL
        state = _convert_state(model, getattr(torch, self.key["dtype"]))
        try:
            with new_folder(target) as folder:
                model.save_pretrained(folder, state_dict=state)
                # The file names the format of training, and loaders believe it.
                config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
                write_json_atomic(folder / "config.json", {**config, "dtype": self.key["dtype"]})
                tokenizer.save_pretrained(folder)
                write_json_atomic(folder / FIGURES, {**self.facts, **self._about(students)})
        except OSError as error:
            raise RunFolderError(
                f"{target}: cannot be written ({error.strerror or error}). Make room, then give "
                "the same command with --resume."
            ) from error

    def _about(self, students: Sequence[Student]) -> dict[str, Any]:
        """Return what was learned from, and how well."""
        best = {(student.name, student.best_step) for student in students}
        return {
            "key": self.key,
            "steps": {student.name: student.step for student in students},
            "best": [row for row in self.history if (row["name"], row["step"]) in best],
        }


def _convert_state(model: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the state of a model on the CPU, numbers in another format.

    Tied weights stay one tensor, so that they are written once.
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


def _collect_tensors(student: Student) -> dict[str, torch.Tensor]:
    """Return {"<kind>|<parameter>": tensor} on the CPU: all that a resume restores."""
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in student.parameters.items():
        tensors[f"{_WEIGHT}|{name}"] = parameter
        state = student.optimizer.state.get(parameter, {})
        for moment in _MOMENTS:
            if moment in state:
                tensors[f"{moment}|{name}"] = state[moment]
    for name, value in (student.best or {}).items():
        tensors[f"{_BEST}|{name}"] = value
    return {key: tensor.detach().to("cpu").contiguous() for key, tensor in tensors.items()}


def _restore_student(student: Student, saved: Mapping[str, torch.Tensor], step: int) -> None:
    """Restore weights, best weights, moments and the position in the batches.

    Args:
        student: What learns, at its start.
        saved: From `_collect_tensors`.
        step: Updates that were made.
    """
    weights = {}
    best = {}
    for key, tensor in saved.items():
        kind, _, name = key.partition("|")
        if kind == _WEIGHT:
            weights[name] = tensor
        elif kind == _BEST:
            best[name] = tensor
        else:
            parameter = student.parameters[name]
            state = student.optimizer.state[parameter]
            state["step"] = torch.tensor(float(step))
            state[kind] = tensor.to(parameter.device)
    fill(student.parameters, weights)
    student.best = best or None
    student.step = step
    for _ in range(step):
        next(student.batches)
