"""What a warm start keeps on disk.

`checkpoint-0/` (or `model/` where the whole model learns) is the best, `last/checkpoint-0/` the
newest state with all that a resume needs, `warm_start.json` the held-out figures so far."""

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

LAST, MODEL, FIGURES = "last", "model", "warm_start.json"
_STATE, _INDEX = "warm_start", "state.json"
_MOMENTS, _COUNTS = ("exp_avg", "exp_avg_sq"), ("step", "best_step", "best_loss")


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
        """Write the best so far, if there is one, and the newest state; after a RunFolderError what
        was there stays.
        """
        if all(student.best is not None for student in students):
            weights = {
                name: value for student in students for name, value in student.parameters.items()
            }
            with holding(
                weights,
                {name: value for one in students for name, value in (one.best or {}).items()},
            ):
                if students[0].name == WHOLE_MODEL:
                    self._save_model(model, tokenizer, students)
                else:
                    self._save_adapters(self.out, model, students, with_state=False)
        last = self.out / LAST
        make_run_folder(last)
        self._save_adapters(last, model, students, with_state=True)
        write_json_atomic(self.out / FIGURES, {**self._about(students), "held_out": self.history})

    def restore(self, students: Sequence[Student]) -> bool:
        """Put the newest state back, bit by bit; False when there is none.

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
        changed = [
            f"{name} was {saved['key'].get(name)!s:.80}, is {self.key.get(name)!s:.80}"
            for name in sorted({*saved["key"], *self.key})
            if saved["key"].get(name) != self.key.get(name)
        ]
        if changed:
            raise SettingsError(
                f"--resume: {self.out} is another warm start: {'; '.join(changed)}. Give the same "
                "options, games and "
                "settings, or choose another --out."
            )
        for student in students:
            own = saved["students"][student.name]
            _put_back(student, load_file(folder / f"{student.name}.safetensors"), own["step"])
            if student.best:
                student.best_step, student.best_loss = own["best_step"], own["best_loss"]
        self.history[:] = saved["history"]
        return True

    def _save_adapters(
        self, folder: Path, model: Any, students: Sequence[Student], *, with_state: bool
    ) -> None:
        names = [student.name for student in students if student.name != WHOLE_MODEL]

        def fill(partial: Path) -> None:
            for name in names:
                save_adapter(model, name, partial / name)
            if with_state:
                (state := partial / _STATE).mkdir()
                for one in students:
                    save_file(
                        _tensors(one), state / f"{one.name}.safetensors", metadata={"format": "pt"}
                    )
                counts = {
                    one.name: {name: getattr(one, name) for name in _COUNTS} for one in students
                }
                write_json_atomic(
                    state / _INDEX, {"key": self.key, "students": counts, "history": self.history}
                )

        size = sum(
            value.numel() * 4 for student in students for value in student.parameters.values()
        )
        facts = {"adapters": names, **self.facts, "warm_start": self._about(students)}
        write_checkpoint(folder, 0, fill, facts, needed_bytes=size * (5 if with_state else 1))

    def _save_model(self, model: Any, tokenizer: Any, students: Sequence[Student]) -> None:
        """Write a Hugging Face folder in the place of the old one."""
        target = self.out / MODEL
        dtype = getattr(torch, self.key["dtype"])
        converted: dict[int, torch.Tensor] = {}
        # Tied weights stay one tensor, so that they are written once.
        state = {
            name: converted.setdefault(
                value.data_ptr(),
                value.detach().to("cpu", dtype if value.is_floating_point() else None).contiguous(),
            )
            for name, value in model.state_dict().items()
        }
        try:
            with new_folder(target) as new:
                model.save_pretrained(new, state_dict=state)
                # It names the format that was trained in; loaders take the file's word for it.
                config = json.loads((new / "config.json").read_text(encoding="utf-8"))
                write_json_atomic(new / "config.json", {**config, "dtype": self.key["dtype"]})
                tokenizer.save_pretrained(new)
                write_json_atomic(new / FIGURES, {**self.facts, **self._about(students)})
        except OSError as error:
            raise RunFolderError(
                f"{target}: cannot be written ({error.strerror or error}). Make room, then give "
                "the same command with "
                "--resume."
            ) from error

    def _about(self, students: Sequence[Student]) -> dict[str, Any]:
        """Return what was learned from, and how well."""
        best = {(student.name, student.best_step) for student in students}
        return {
            "key": self.key,
            "steps": {student.name: student.step for student in students},
            "best": [row for row in self.history if (row["name"], row["step"]) in best],
        }


def _tensors(student: Student) -> dict[str, torch.Tensor]:
    found = {f"weight|{name}": value for name, value in student.parameters.items()}
    found |= {f"best|{name}": value for name, value in (student.best or {}).items()}
    for name, parameter in student.parameters.items():
        state = student.optimizer.state.get(parameter, {})
        found |= {f"{moment}|{name}": state[moment] for moment in _MOMENTS if moment in state}
    return {key: value.detach().to("cpu").contiguous() for key, value in found.items()}


def _put_back(student: Student, saved: Mapping[str, torch.Tensor], step: int) -> None:
    def of(kind: str) -> dict[str, torch.Tensor]:
        return {
            key.removeprefix(kind): value for key, value in saved.items() if key.startswith(kind)
        }

    fill(student.parameters, of("weight|"))
    student.best = of("best|") or None
    for key, value in saved.items():
        moment, _, name = key.partition("|")
        if moment in _MOMENTS:
            parameter = student.parameters[name]
            own = {"step": torch.tensor(float(step)), moment: value.to(parameter.device)}
            student.optimizer.state[parameter].update(own)
    student.step = step
    for _ in range(step):
        next(student.batches)
