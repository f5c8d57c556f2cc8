"""When a trainer saves, what goes into a checkpoint, what it says of a failed save, what an interrupted run keeps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from peft import PeftModel

from hanabi_grpo.errors import ParityError, RunFolderError
from hanabi_grpo.runs.checkpoints import rotate, write_checkpoint
from hanabi_grpo.runs.resume import TRAINER_STATE, ResumePoint
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.fleet_link import Link
from hanabi_grpo.training.isolation import PlayerGuard
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.training_state import OptimizerState, random_state, save_training_state

SAVE_TRIES = 3
"""Failed saves in a row after which a run stops; the steps after a failed one try again."""


class CheckpointSaving:
    """Mixed into ms-swift's trainer, before it: ms-swift saves an adapter named `default` only."""

    settings: Settings
    link: Link
    guard: PlayerGuard
    adapter_names: tuple[str, ...]
    started_from: dict[str, Any]
    resume: ResumePoint | None
    failed_saves: int
    baselines: dict[int, dict[str, float]]
    """Moving baselines by the number of steps before them; an interrupt may come within a step."""
    accelerator: Any
    model: Any
    optimizer: Any
    state: Any
    _base_checksum: str
    _resumable: bool
    _incident: Any
    _whole_adapters: Any

    @property
    def first_step(self) -> int:
        """Steps that were made before this process started."""
        return self.resume.step if self.resume else 0

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # Gathering is for all ranks, writing for one; how it went, for all again.
        step = int(self.state.global_step)
        state = OptimizerState(self.accelerator.unwrap_model(self.model), self.optimizer) if self._resumable else None
        moments = state.collect() if state else None
        random_states = gather_object([random_state()])
        problem = None
        with self._whole_adapters():
            if self.accelerator.is_main_process:
                try:
                    self._write_checkpoint(step, moments, state.groups if state else [], random_states)
                except RunFolderError as error:
                    problem = str(error)
        problem = broadcast_object_list([problem], from_process=0)[0]
        self.failed_saves = self.failed_saves + 1 if problem else 0
        if problem:
            said = f"{problem} ({self.failed_saves} in a row, {SAVE_TRIES} stop the run)"
            self._incident("save_failed", said, step=step)
        if self.failed_saves >= SAVE_TRIES:
            raise RunFolderError(
                f"{problem} {SAVE_TRIES} saves in a row failed; the earlier checkpoints are complete. Make room, "
                "then go on with RESUME=latest."
            )

    def _write_checkpoint(self, step: int, moments: Any, groups: list[Any], random_states: list[Any]) -> None:
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
        state = {"moments": moments, "groups": groups, "random_states": random_states}
        baselines = self.baselines.get(step, {})
        folder = save_checkpoint(
            model, self.adapter_names, self.link.run_folder, step, facts, baselines=baselines, **state
        )
        self.state.last_model_checkpoint = str(folder)
        rotate(self.link.run_folder, self.settings.save_total_limit)

    def save_now(self) -> str:
        """Save the last finished step when a run is interrupted; returns what was done, for the log."""
        step = int(self.state.global_step)
        if step == self.first_step:
            return "no step was finished, so there is nothing to save"
        if self.guard.stepping:
            return "the update was cut in the middle; the newest checkpoint in the run folder stays the last one"
        if self.accelerator.num_processes > 1:
            return "the newest checkpoint in the run folder stays the last one (several processes were interrupted)"
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
    *,
    moments: dict[str, torch.Tensor] | None,
    groups: list[dict[str, object]],
    random_states: list[dict[str, object]],
    baselines: Mapping[str, float] | None = None,
) -> Path:
    """Write `checkpoint-<step>`: `<adapter>/` in PEFT's format, `trainer/`, and a manifest with hashes and `facts`.

    It appears in `run_folder` by a rename once all of it is on disk. Without `moments` (`OptimizerState.collect`) it
    has no `trainer/`, and the run cannot be resumed from here. `random_states` are per rank.

    Raises:
        RunFolderError: The disk is full, or another reason of the file system; nothing is left behind.
    """

    def fill(partial: Path) -> None:
        for name in names:
            adapters.save_adapter(model, name, partial / name)
        if moments is not None:
            save_training_state(partial / TRAINER_STATE, moments, groups, random_states, baselines=baselines)

    tensors = [*(moments or {}).values()]
    for name in names:
        tensors += adapters.adapter_tensors(model, name, torch.float32).values()
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return write_checkpoint(run_folder, step, fill, {"adapters": list(names), **facts}, needed_bytes=needed)
