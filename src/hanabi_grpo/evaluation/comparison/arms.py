"""Arms of a comparison: parsed from the command line, and read from the run folders."""

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.comparison.kinds import (
    EvaluationKind,
    evaluations_by_kind,
    with_known_limits,
)
from hanabi_grpo.runs.evaluation_files import find_evaluations
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.runs.history import number, read_history, trained_presets
from hanabi_grpo.runs.run_folder import TRAIN, recorded_settings, run_home
from hanabi_grpo.settings import Affects, variables
from hanabi_grpo.settings.variables import typed

SCORE = "score/mean"
"""The metric that is compared by default."""
_ARM_FORM = "give NAME=RUN,RUN,…, e.g. 'shared=outputs/b-0,outputs/b-1,outputs/b-2'"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One training run: one seed of an arm."""

    folder: Path
    """The folder, as given on the command line."""
    x: NDArray[np.float64]
    """(n,), ascending: steps with the metric."""
    scores: NDArray[np.float64]
    """(n,): the metric at each of them, by default the mean score of the training games."""
    last_step: int
    num_games: float
    """Training games of the whole run."""
    seconds: float | None
    """Wall time in seconds up to the last step; None where no row has it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Variables of `settings.json`; empty without one."""
    evaluations: Mapping[EvaluationKind, EvaluationResult] = field(default_factory=dict)
    """By kind, see `kinds`."""
    problems: tuple[str, ...] = ()
    """Evaluations that cannot be read, each with the reason."""

    @property
    def seed(self) -> tuple[str, ...] | None:
        """Values of the settings that are seeds; None if the run does not record its seed."""
        if "SEED" not in self.settings:
            return None
        return tuple(typed(self.settings.get(name)) for name in seed_settings())


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Runs that differ in their seed only."""

    name: str
    runs: tuple[Run, ...]


def seed_settings() -> list[str]:
    """Return the variables that are seeds."""
    return [variable.env for variable in variables() if variable.affects is Affects.SEED]


def parse_arms(texts: Sequence[str]) -> dict[str, list[Path]]:
    """Return the folders of every arm by its name, in the order given.

    A folder with a `*` stands for all folders that match.

    Raises:
        SettingsError: An arm has no name or no folder, no folder matches, or a name or a folder
            appears twice: a run that appears twice would count as two seeds.

    Example:
        parse_arms(["per player=outputs/a-0,outputs/a-1"]) ==
            {"per player": [Path("outputs/a-0"), Path("outputs/a-1")]}
    """
    arms: dict[str, list[Path]] = {}
    arm_of_folder: dict[Path, str] = {}
    for text in texts:
        name, patterns = _parse_arm(text)
        if name in arms:
            raise SettingsError(f"two arms are called {name!r}; give each a different name.")
        arms[name] = []
        for pattern in patterns:
            arms[name] += _matching_folders(pattern, name)
        for folder in arms[name]:
            real = folder.resolve()
            # `demo` and `demo/train` are one run.
            if real.name == TRAIN:
                real = real.parent
            if real in arm_of_folder:
                raise SettingsError(
                    f"{folder}: is in {arm_of_folder[real]!r} and again in {name!r}; give each run "
                    "once, in one arm."
                )
            arm_of_folder[real] = name
    return arms


def _parse_arm(text: str) -> tuple[str, list[str]]:
    """Return the name and the folder patterns of an arm; a SettingsError where one is missing."""
    typed_name, equals, rest = text.partition("=")
    name = " ".join(typed_name.split())
    patterns = [part.strip() for part in rest.split(",")]
    if not equals or not name:
        raise SettingsError(f"{text!r}: an arm needs a name and runs; {_ARM_FORM}.")
    if "" in patterns:
        raise SettingsError(f"{text!r}: a folder name is empty; {_ARM_FORM}.")
    return name, patterns


def _matching_folders(pattern: str, arm: str) -> list[Path]:
    """Return the folder itself, or all folders that a pattern with a `*` matches."""
    if "*" not in pattern:
        return [Path(pattern)]
    folders = []
    for name in glob.glob(pattern):
        path = Path(name)
        if path.is_dir():
            folders.append(path)
    if not folders:
        raise SettingsError(f"{pattern!r} of arm {arm!r}: no folder matches.")
    return sorted(folders)


def load_arms(
    folders: Mapping[str, Sequence[Path]], *, metric: str = SCORE
) -> tuple[str, tuple[Arm, ...]]:
    """Read every run.

    A folder is a run folder, or holds one as `train/` with evaluations beside it, as
    `tools/demo.sh` leaves it.

    Args:
        folders: The folders of every arm by its name.
        metric: The metric of `metrics.jsonl` that is compared.

    Returns:
        The preset of the training games, empty if it is unknown, and the arms.

    Raises:
        SettingsError: A folder is not a run or has no step with the metric, or the presets differ.
    """
    rows: dict[Path, list[dict[str, Any]]] = {}
    for arm_folders in folders.values():
        for folder in arm_folders:
            rows[folder] = _read_rows(folder, metric)
    preset = _common_preset(rows)
    runs = [_load_run(folder, of_run, metric) for folder, of_run in rows.items()]
    completed = with_known_limits([run.evaluations for run in runs])
    run_of_folder = {}
    for run, evaluations in zip(runs, completed, strict=True):
        run_of_folder[run.folder] = replace(run, evaluations=evaluations)
    arms = []
    for name, arm_folders in folders.items():
        arms.append(Arm(name=name, runs=tuple(run_of_folder[folder] for folder in arm_folders)))
    return preset, tuple(arms)


def _read_rows(folder: Path, metric: str) -> list[dict[str, Any]]:
    """Return the rows of a run; a SettingsError where none has the metric."""
    path = run_home(folder) / "metrics.jsonl"
    if not path.is_file():
        reason = "no such folder"
        if folder.is_dir():
            reason = f"neither it nor its {TRAIN}/ has a metrics.jsonl"
        raise SettingsError(f"{folder}: {reason}; give the folder of a training run.")
    try:
        rows = read_history(path)
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); give the folder of another run."
        ) from error
    numeric_metrics = set()
    for row in rows:
        for name, value in row.items():
            if number(value) is not None:
                numeric_metrics.add(name)
    if metric in numeric_metrics:
        return rows
    reason = "the run ended before its first step"
    if metric != SCORE:
        reason = f"choose one of {', '.join(sorted(numeric_metrics))}"
    raise SettingsError(f'{path}: no step has a "{metric}"; {reason}.')


def _common_preset(rows: Mapping[Path, Sequence[Mapping[str, Any]]]) -> str:
    """Return the preset of all runs; a SettingsError where they differ."""
    presets = []
    descriptions = []
    for folder, run_rows in rows.items():
        preset = ", ".join(trained_presets(run_rows))
        presets.append(preset)
        descriptions.append(f"{folder}: {preset or 'unknown'}")
    if len(set(presets)) > 1:
        raise SettingsError(
            f"the runs have different presets ({'; '.join(descriptions)}); compare runs of one "
            "preset."
        )
    return presets[0]


def _load_run(folder: Path, rows: Sequence[Mapping[str, Any]], metric: str) -> Run:
    """Return a run.

    Args:
        folder: The folder, as given on the command line.
        rows: Rows of `metrics.jsonl`, at least one with the metric.
        metric: The metric that is compared.
    """
    steps = []
    values = []
    for row in rows:
        value = number(row.get(metric))
        if value is not None:
            steps.append(float(row["step"]))
            values.append(value)
    evaluations = find_evaluations(folder)
    games_per_step = [number(row.get("games")) or 0.0 for row in rows]
    return Run(
        folder=folder,
        x=np.asarray(steps),
        scores=np.asarray(values),
        last_step=rows[-1]["step"],
        num_games=sum(games_per_step),
        seconds=_wall_time(rows),
        settings=recorded_settings(run_home(folder)),
        evaluations=evaluations_by_kind(evaluations),
        problems=evaluations.problems,
    )


def _wall_time(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the seconds of a run, summed over its parts: each part of a resumed run counts from 0.

    None where no row has a time.
    """
    clock = []
    for row in rows:
        seconds = number(row.get("seconds"))
        if seconds is not None:
            clock.append(seconds)
    if not clock:
        return None
    # A clock that jumps back marks the end of a part.
    ends_of_parts = [before for before, after in pairwise(clock) if after < before]
    return sum(ends_of_parts) + clock[-1]
