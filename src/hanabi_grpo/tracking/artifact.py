"""The folder that goes up as an artifact: `artifacts/step_N` of the run folder.

It holds every adapter of `checkpoint-N` with its manifest, the card, the settings, the score of the training games,
evaluations that lie in the run folder and some recorded games; no optimizer state. `hanabi-grpo evaluate` and `view`
take such a folder as it is. Its adapters are hard links, so it costs next to nothing while the checkpoint is there, and
outlives its rotation.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs.evaluation_result import read_result
from hanabi_grpo.runs.manifest import MANIFEST, Manifest, check_checkpoint, spec_hashes
from hanabi_grpo.runs.resume import TRAINER_STATE
from hanabi_grpo.runs.run_folder import EVALUATIONS as KEPT
from hanabi_grpo.runs.run_folder import sync_folder, write_json_atomic, write_text_atomic
from hanabi_grpo.settings import Settings, settings_values
from hanabi_grpo.tracking.card import base_name, card_text
from hanabi_grpo.tracking.sample_games import write_sample_games
from hanabi_grpo.tracking.score import RunningScore

FOLDER = "artifacts"
CARD, SCORE, SETTINGS, EVALUATIONS = "README.md", "training_score.json", "settings.json", "evaluation"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME = 128
"""Characters of a name that W&B takes."""


def build_artifact(
    run_folder: Path,
    checkpoint: Path,
    settings: Settings,
    score: RunningScore | None,
    *,
    evaluations: Sequence[Path] = (),
) -> tuple[Path, dict[str, Any]]:
    """Make `artifacts/step_N`, or make it anew, and return it with the artifact's metadata.

    Args:
        run_folder: Of the run.
        checkpoint: Its `checkpoint-N`; every file is compared with the manifest.
        settings: Of the run.
        score: Running score of the training games.
        evaluations: Result files of `hanabi-grpo evaluate --out`.

    Raises:
        RunFolderError: The checkpoint is damaged or gone, or the folder cannot be written.
    """
    manifest = check_checkpoint(checkpoint)
    folder = run_folder / FOLDER / f"step_{manifest.step}"
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name in (*manifest.files, MANIFEST):
            if not name.startswith(f"{TRAINER_STATE}/"):
                _link(checkpoint / name, partial / name)
        write_json_atomic(partial / SETTINGS, {"settings": settings_values(settings)})
        write_json_atomic(partial / SCORE, _score_json(score))
        for path in evaluations:
            _link(path, partial / EVALUATIONS / path.name)
        games = write_sample_games(run_folder, partial, manifest.step)
        metadata = artifact_metadata(settings, manifest, score)
        facts = {
            "base model": metadata["base_model"],
            "optimizer steps": manifest.step,
            "adapters": metadata["adapters"],
            "preset": f"{settings.preset or 'as the dataset says'} (rules {', '.join(metadata['spec_hashes'])})",
            "LoRA rank / alpha": f"{settings.lora_rank} / {settings.lora_alpha}",
            "score of the last training games": score.text if score else "unknown",
            "evaluations": ", ".join(path.name for path in evaluations) or "none beside this card",
            "sample games": games.name if games else "none beside this card",
        }
        write_text_atomic(partial / CARD, card_text(settings.env, facts))
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(partial, folder)
        sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RunFolderError(f"{folder}: cannot be written ({error.strerror}); {checkpoint} is as it was.") from error
    return folder, metadata


def artifact_metadata(settings: Settings, manifest: Manifest, score: RunningScore | None) -> dict[str, Any]:
    """Return what W&B shows beside an artifact."""
    facts = manifest.facts
    return {
        "step": manifest.step,
        "players": settings.players,
        "adapters": list(facts.get("adapters", [])),
        "base_model": base_name(str(settings.model))[0],
        "base_fingerprint": facts.get("model_fingerprint"),
        "rank": settings.lora_rank,
        "alpha": settings.lora_alpha,
        "env": settings.env,
        "preset": settings.preset,
        "spec_hashes": list(spec_hashes(facts)),
        "score": score.mean if score else None,
        "score_se": score.standard_error if score else None,
        "score_steps": score.num_steps if score else 0,
        "score_of": "training games, sampled",
        "commit": commit(),
    }


def artifact_name(settings: Settings, run_folder: Path) -> str:
    """Return CKPT_ARTIFACT_NAME, or a name after the run folder; characters that W&B refuses become dashes."""
    if settings.ckpt_artifact_name:
        return settings.ckpt_artifact_name
    own = _NOT_IN_A_NAME.sub("-", run_folder.resolve().name).strip("-.") or "run"
    return f"{own[: _MOST_NAME - 9]}-adapters"


def find_evaluations(run_folder: Path) -> list[Path]:
    """Return the evaluations that lie in a run folder or in its `evaluations/`; other files are passed over."""
    found = []
    for path in [*sorted(run_folder.glob("*.json")), *sorted((run_folder / KEPT).glob("*.json"))]:
        try:
            read_result(path)
        except SettingsError:
            continue
        found.append(path)
    return found


def commit() -> str | None:
    """Return the commit of the checkout that this package runs from, with "+changes" where files differ from it."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        head, status = (
            subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}+changes" if status else head


def _score_json(score: RunningScore | None) -> dict[str, Any]:
    return {
        "of": "training games, sampled, of the last steps up to this checkpoint",
        "mean": score.mean if score else None,
        "standard_error": score.standard_error if score else None,
        "steps": score.num_steps if score else 0,
    }


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one without links.
        shutil.copy2(source, target)
