"""What goes into a checkpoint: every player's adapter for everybody, and `trainer/` for a resume."""

from collections.abc import Mapping
from pathlib import Path

import torch
from peft import PeftModel

from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.resume import TRAINER_STATE
from hanabi_grpo.training.adapters import adapter_tensors, save_adapter
from hanabi_grpo.training.training_state import save_training_state

SAVE_TRIES = 3
"""Failed saves in a row after which a run stops; the steps after a failed one try again."""


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
    """Write `checkpoint-<step>`: `<adapter>/` in PEFT's format, `trainer/`, and a manifest with hashes.

    Args:
        model: Holds the adapters.
        names: Of the adapters.
        run_folder: Where the checkpoint appears, by a rename once all of it is on disk.
        step: Optimizer steps behind it.
        facts: Further entries of the manifest.
        moments: From `OptimizerState.collect`; None leaves `trainer/` out, and the run cannot be resumed from here.
        groups: The optimizer's groups.
        random_states: Per rank.
        baselines: The players' moving baselines.

    Raises:
        RunFolderError: The disk is full, or another reason of the file system; nothing is left behind.
    """

    def fill(partial: Path) -> None:
        for name in names:
            save_adapter(model, name, partial / name)
        if moments is not None:
            save_training_state(partial / TRAINER_STATE, moments, groups, random_states, baselines=baselines)

    tensors = [*(moments or {}).values()]
    for name in names:
        tensors += adapter_tensors(model, name, torch.float32).values()
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return write_checkpoint(run_folder, step, fill, {"adapters": list(names), **facts}, needed_bytes=needed)
