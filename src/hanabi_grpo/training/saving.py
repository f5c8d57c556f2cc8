"""What goes into a checkpoint, what is said of a failed save, and what an interrupted run keeps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from peft import PeftModel
from trl import GRPOTrainer

from hanabi_grpo.errors import ParityError, RunFolderError
from hanabi_grpo.runs.checkpoints import rotate, write_checkpoint
from hanabi_grpo.runs.resume import TRAINER_STATE
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.training_state import OptimizerState, TrainingState, random_state

SAVE_TRIES = 3
"""Failed saves in a row after which a run stops; the steps after a failed one try again."""


class CheckpointSaving(GRPOTrainer):
    """A trainer that saves every player; ms-swift's own saves an adapter named `default` only."""

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
                f"{problem} {SAVE_TRIES} saves in a row failed; the earlier checkpoints are complete. Make room, "
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
        folder = save_checkpoint(model, self.adapter_names, self.link.run_folder, step, facts, state)
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
    state: TrainingState | None = None,
) -> Path:
    """Write `checkpoint-<step>`: `<adapter>/` in PEFT's format, `trainer/`, and a manifest with hashes and `facts`.

    It appears in `run_folder` by a rename once all of it is on disk. Without `state` it has no `trainer/`, and the run
    cannot be resumed from here.

    Raises:
        RunFolderError: The disk is full, or another reason of the file system; nothing is left behind.
    """

    def fill(partial: Path) -> None:
        for name in names:
            adapters.save_adapter(model, name, partial / name)
        if state is not None:
            state.save(partial / TRAINER_STATE)

    tensors = [*state.moments.values()] if state is not None else []
    for name in names:
        tensors += adapters.adapter_tensors(model, name, torch.float32).values()
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return write_checkpoint(run_folder, step, fill, {"adapters": list(names), **facts}, needed_bytes=needed)
