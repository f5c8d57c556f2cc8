"""What the folder of a run holds: scores by step, time, preset, evaluations, settings."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.evaluation_result import EvaluationResult, is_result, read_result
from hanabi_grpo.runs.history import number, read_history
from hanabi_grpo.runs.run_folder import TRAIN, recorded_settings, run_home

_SCORE = "score/"
_MEAN = "score/mean"
Row = Mapping[str, Any]
"""One step of `metrics.jsonl`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One training run: one seed of an arm."""

    folder: Path
    """As typed."""
    steps: NDArray[np.float64]
    """(n,) steps with a score, ascending."""
    games: NDArray[np.float64]
    """(n,) games seen up to each of them, itself included."""
    scores: NDArray[np.float64]
    """(n,) mean score of the training games of each of them."""
    num_games: float
    seconds: float | None
    """Wall time in seconds up to the last step; None where no row has it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Variables of `settings.json`; empty without one."""
    evaluations: Mapping[str, EvaluationResult] = field(default_factory=dict)
    """By file name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Runs that differ in their seed only."""

    name: str
    runs: tuple[Run, ...]


def load_arms(
    folders: Mapping[str, Sequence[Path]], *, preset: str | None = None, evaluations: Sequence[str] = ()
) -> tuple[str, tuple[Arm, ...]]:
    """Read every run.

    A folder is a run folder, or holds one as `train/` with evaluations beside it, as `tools/demo.sh` leaves it.

    Args:
        folders: By name of the arm.
        preset: Of which the training scores are; None: the only one that the runs have.
        evaluations: File names of evaluations; empty: every one that a run has.

    Returns:
        The preset, empty where runs do not say it, and the arms.

    Raises:
        SettingsError: A folder is no run or has no step; the presets differ; a named evaluation is nowhere or no
            evaluation.
    """
    rows = {folder: _rows(folder) for group in folders.values() for folder in group}
    preset = _common_preset({folder: _presets(found) for folder, found in rows.items()}, preset)
    arms = tuple(
        Arm(name=name, runs=tuple(_run(folder, rows[folder], preset, evaluations) for folder in group))
        for name, group in folders.items()
    )
    runs = [run for arm in arms for run in arm.runs]
    for name in evaluations:
        if not any(name in run.evaluations for run in runs):
            raise SettingsError(
                f"--evaluation {name}: no run has this file; hanabi-grpo evaluate --out RUN/{name} makes it."
            )
    return preset, arms


def _rows(folder: Path) -> list[dict[str, Any]]:
    path = run_home(folder) / "metrics.jsonl"
    if not path.is_file():
        what = f"neither it nor its {TRAIN}/ has a metrics.jsonl" if folder.is_dir() else "no such folder"
        raise SettingsError(f"{folder}: {what}; give the folder of a training run.")
    try:
        rows = read_history(path)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}).") from error
    if not any(number(row.get(_MEAN)) is not None for row in rows):
        raise SettingsError(f'{path}: no step has a "{_MEAN}"; the run ended before its first step.')
    return rows


def _presets(rows: Iterable[Row]) -> set[str]:
    names = {key.removeprefix(_SCORE) for row in rows for key in row if key.startswith(_SCORE)}
    return {name for name in names if any(f"games/{name}" in row for row in rows)}


def _common_preset(presets: Mapping[Path, set[str]], asked: str | None) -> str:
    said = {folder: ", ".join(sorted(found)) or "a preset it does not say" for folder, found in presets.items()}
    if asked is not None:
        for folder, found in presets.items():
            if asked not in found:
                raise SettingsError(f"--preset {asked}: {folder} trained on {said[folder]}.")
        return asked
    every = set().union(*presets.values())
    if len(every) < 2:
        return next(iter(every), "")
    what = "; ".join(f"{folder}: {names}" for folder, names in said.items())
    if shared := set.intersection(*presets.values()):
        raise SettingsError(f"the runs have several presets ({what}); choose one with --preset, e.g. {min(shared)}.")
    raise SettingsError(f"the runs have different presets ({what}); compare runs of one.")


def _run(folder: Path, rows: Sequence[Row], preset: str, evaluations: Sequence[str]) -> Run:
    home = run_home(folder)
    seen = np.cumsum([number(row.get("games")) or 0.0 for row in rows])
    # Rows of an old run have no score by preset.
    key = f"{_SCORE}{preset}" if preset in _presets(rows) else _MEAN
    points = [
        (float(row["step"]), float(games), score)
        for row, games in zip(rows, seen, strict=True)
        if (score := number(row.get(key))) is not None
    ]
    if not points:
        raise SettingsError(f'{folder}: no step has a "{key}".')
    steps, games, scores = (np.asarray(column) for column in zip(*points, strict=True))
    return Run(
        folder=folder,
        steps=steps,
        games=games,
        scores=scores,
        num_games=float(seen[-1]),
        seconds=_seconds(rows),
        settings=recorded_settings(home),
        evaluations=_evaluations([folder, folder.parent] if folder.name == TRAIN else [folder], evaluations),
    )


def _seconds(rows: Sequence[Row]) -> float | None:
    """Return the wall time; the parts of a resumed run, each of which counts from 0, are added."""
    clock = [value for row in rows if (value := number(row.get("seconds"))) is not None]
    return sum(now for now, later in pairwise(clock) if later < now) + clock[-1] if clock else None


def _evaluations(places: Sequence[Path], names: Sequence[str]) -> dict[str, EvaluationResult]:
    found: dict[str, EvaluationResult] = {}
    for place in places:
        for path in [place / name for name in names] if names else sorted(place.glob("*.json")):
            if path.name not in found and (path.is_file() if names else _is_evaluation(path)):
                found[path.name] = read_result(path)
    return found


def _is_evaluation(path: Path) -> bool:
    try:
        return is_result(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return False
