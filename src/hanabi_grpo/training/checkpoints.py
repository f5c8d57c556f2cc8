"""Checkpoints: every player's adapter, written whole or not at all."""

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from peft import PeftModel

from hanabi_grpo.training.adapters import save_adapter

logger = logging.getLogger(__name__)


def save_checkpoint(
    model: PeftModel, names: tuple[str, ...], run_folder: Path, step: int, state: Mapping[str, object]
) -> Path:
    """Write `checkpoint-<step>/<adapter>/{adapter_config.json,adapter_model.safetensors}` and a manifest.

    The folder appears by a rename once every file in it is on disk.
    """
    target = run_folder / f"checkpoint-{step}"
    partial = run_folder / f".checkpoint-{step}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    for name in names:
        save_adapter(model, name, partial / name)
    manifest = {"step": step, "adapters": list(names), **state}
    (partial / "manifest.json").write_text(json.dumps(manifest, indent=1))
    for path in [*partial.rglob("*"), partial]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    if target.exists():
        shutil.rmtree(target)
    os.replace(partial, target)
    logger.info("checkpoint: %s", target)
    return target


def rotate_checkpoints(run_folder: Path, keep: int) -> None:
    """Remove the oldest checkpoints so that `keep` remain."""
    found = [
        (int(match[1]), path)
        for path in run_folder.iterdir()
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
    ]
    for _, path in sorted(found)[:-keep]:
        shutil.rmtree(path)
