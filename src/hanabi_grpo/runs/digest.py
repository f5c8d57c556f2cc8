"""Digests of what two runs with the same seed share: their metrics and their adapters.

Two runs with the same settings, SEED included, have the same digests on the same machine, see
docs/trust.md.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.runs.history import read_history

_CLOCK_METRICS = frozenset({"seconds", "step_time", "memory/peak_gib", "tokens/cached_share"})
"""Metrics of the machine and its clock, in addition to those below.

Hits in an engine's prefix cache depend on which request comes first."""
_CLOCK_PREFIXES = ("time/", "utilisation/")
_CLOCK_SUFFIX = "_per_second"
_BASE_MODEL = "base_model_name_or_path"
"""An absolute path, so it differs between two checkouts; adapters of a different base model differ
anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDigest:
    """SHA-256 of the parts of a run that its settings decide."""

    metrics: str
    """Digest of metrics.jsonl without metrics of the clock, see `timeless`."""
    adapters: dict[str, str]
    """Digest of each adapter of the last checkpoint: weights and PEFT configuration, by player."""

    def differences(self, other: "RunDigest") -> list[str]:
        """Return what differs from another run: "metrics", and names of adapters."""
        names = []
        if self.metrics != other.metrics:
            names.append("metrics")
        for name in sorted(self.adapters.keys() | other.adapters.keys()):
            if self.adapters.get(name) != other.adapters.get(name):
                names.append(name)
        return names


def run_digest(folder: Path) -> RunDigest:
    """Return the digests of a run.

    Args:
        folder: The run folder, or one of its checkpoints to use its adapters.

    Raises:
        RunFolderError: There are no metrics or no checkpoint.
    """
    checkpoint, run = folder, folder.parent
    if not folder.name.startswith("checkpoint-"):
        run = folder
        checkpoint = _last_checkpoint(folder)
    rows = [timeless(row) for row in read_history(run / "metrics.jsonl")]
    if not rows:
        raise RunFolderError(f"{run}: no rows in metrics.jsonl; name the folder of a run.")
    lines = [json.dumps(row, sort_keys=True) for row in rows]
    adapters = {}
    for weights in sorted(checkpoint.glob("*/adapter_model.safetensors")):
        config = _placeless_config(weights.with_name("adapter_config.json"))
        adapters[weights.parent.name] = _sha256(weights.read_bytes(), config)
    return RunDigest(metrics=_sha256("\n".join(lines).encode()), adapters=adapters)


def _placeless_config(path: Path) -> bytes:
    """Return an adapter's PEFT configuration without the folder of its base model."""
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path}: cannot be read ({error}); name another checkpoint."
        ) from error
    if isinstance(config, dict):
        config.pop(_BASE_MODEL, None)
    return json.dumps(config, sort_keys=True).encode()


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics without those that depend on the machine and its clock."""
    kept = {}
    for name, value in row.items():
        is_of_clock = (
            name in _CLOCK_METRICS
            or name.startswith(_CLOCK_PREFIXES)
            or name.endswith(_CLOCK_SUFFIX)
        )
        if not is_of_clock:
            kept[name] = value
    return kept


def _last_checkpoint(run: Path) -> Path:
    steps = []
    for checkpoint in run.glob("checkpoint-*"):
        number = checkpoint.name.removeprefix("checkpoint-")
        if number.isdigit():
            steps.append(int(number))
    if not steps:
        raise RunFolderError(f"{run}: no checkpoint; name the folder of a run that has saved one.")
    return run / f"checkpoint-{max(steps)}"


def _sha256(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
