"""Where adapters come from: the settings they were trained with, their score in training, and their evaluations."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.hanabi.dynamics import read_history
from hanabi_grpo.report.export.results import PlayedResult, played_results
from hanabi_grpo.runs.run_folder import recorded_settings
from hanabi_grpo.runs.saved_adapters import SavedAdapters, newest_checkpoint, read_adapters
from hanabi_grpo.settings import variables
from hanabi_grpo.tracking.artifact import EVALUATIONS, SCORE, find_evaluations
from hanabi_grpo.tracking.score import RunningScore, running_score

PUBLISHED = "settings"
"""Fact of an exported manifest: the settings that are fit for publishing."""
_TRAINING = (
    "HANABI_ADAPTERS",
    "HANABI_ADVANTAGE",
    "HANABI_ADVANTAGE_SCALE",
    "NUM_GENERATIONS",
    "HANABI_DEALS_PER_STEP",
    "LEARNING_RATE",
    "BETA",
    "HANABI_ENTROPY_BONUS",
    "SEED",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """All that is known of a checkpoint."""

    folder: Path
    """The checkpoint, or a folder like one."""
    saved: SavedAdapters
    settings: Mapping[str, Any]
    """By variable; no paths, no addresses, no secrets. Empty where the settings are unknown."""
    model: str
    """MODEL as it was trained on: a folder or a hub name; empty where that is unknown."""
    score: RunningScore | None
    """Of the last training games."""
    results: tuple[PlayedResult, ...]
    """Evaluations of these adapters."""
    places: tuple[Path, ...] = ()
    """Folders that may have games of its training: its own, its run's."""
    left_out: tuple[str, ...] = ()
    """Evaluations beside them that are of other adapters, and why."""


def read_origin(folder: Path, *, evaluations: Sequence[Path] = ()) -> Origin:
    """Read a run, a checkpoint of it, an artifact's folder, or an exported one.

    Args:
        folder: As typed.
        evaluations: Further result files of `hanabi-grpo evaluate --out`.

    Raises:
        SettingsError: There are no whole adapters, or a given evaluation is of others.
    """
    checkpoint = newest_checkpoint(folder)
    saved = read_adapters(checkpoint)
    around = _around(checkpoint)
    values = next((found for place in around if (found := recorded_settings(place))), {})
    published = saved.facts.get(PUBLISHED)
    model = str(saved.facts.get("model") or values.get("MODEL") or "")
    lying = [*sorted((checkpoint / EVALUATIONS).glob("*.json"))]
    lying += [path for place in around for path in find_evaluations(place)]
    results, left_out = played_results(saved, given=evaluations, lying=lying)
    return Origin(
        folder=checkpoint,
        saved=saved,
        settings=_for_publishing(values) or (dict(published) if isinstance(published, Mapping) else {}),
        model=model,
        score=_score(checkpoint, around, saved.step),
        results=results,
        places=tuple(around),
        left_out=left_out,
    )


def _around(checkpoint: Path) -> list[Path]:
    """Return the folders that may say more of a checkpoint: its own, its run's, and an artifact's run's."""
    own = checkpoint.absolute()
    runs = [own.parent, own.parent.parent] if own.parent.name == "artifacts" else [own.parent]
    return [own, *(run for run in runs if (run / "settings.json").is_file())]


def _for_publishing(values: Mapping[str, Any]) -> dict[str, Any]:
    known = variables(str(values.get("HANABI_ENV", "hanabi")))
    names = [variable.env for variable in known if variable.section == "game"]
    return {name: values[name] for name in (*names, *_TRAINING) if values.get(name) is not None}


def _score(checkpoint: Path, around: Sequence[Path], step: int) -> RunningScore | None:
    try:
        data = json.loads((checkpoint / SCORE).read_text(encoding="utf-8"))
        if data["mean"] is not None:
            error = data["standard_error"]
            return RunningScore(
                step=step,
                mean=float(data["mean"]),
                standard_error=None if error is None else float(error),
                num_steps=int(data["steps"]),
            )
    except (OSError, ValueError, KeyError, TypeError):
        pass
    rows = next((path for place in around if (path := place / "metrics.jsonl").is_file()), None)
    return running_score(read_history(rows), step) if rows else None
