"""Arms of a comparison: runs as they are typed, what their folders hold, and in which settings they
differ.
"""

import glob
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
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
from hanabi_grpo.settings import Affects, variables
from hanabi_grpo.settings.variables import typed

_ARM_FORM = "give NAME=RUN,RUN,…, e.g. 'shared=outputs/b-0,outputs/b-1,outputs/b-2'"
SCORE = "score/mean"
"""The figure of a step that is compared where none is named."""
_ABSOLUTE = re.compile(r"(?<![^=,:; ])/[^=,:; ]+")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One training run: one seed of an arm."""

    folder: Path
    """As typed."""
    x: NDArray[np.float64]
    """(n,), ascending: steps with the figure."""
    scores: NDArray[np.float64]
    """(n,) the figure of each of them, by default the mean score of its training games."""
    last_step: int
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


def parse_arms(texts: Sequence[str]) -> dict[str, list[Path]]:
    """Return the folders of every arm by its name, in the order typed; a folder with a `*` stands
    for all that match.

    Example: parse_arms(["per player=outputs/a-0,outputs/a-1"]) == {"per player":
        [Path("outputs/a-0"), Path("outputs/a-1")]}

    Raises: SettingsError: An arm without a name or folder, nothing matches, or a name or a folder
        is there twice: a run in two places would count as two seeds.
    """
    arms: dict[str, list[Path]] = {}
    owners: dict[Path, str] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        name, words = " ".join(name.split()), [part.strip() for part in rest.split(",")]
        if not equals or not name:
            raise SettingsError(f"{text!r}: an arm needs a name and runs; {_ARM_FORM}.")
        if "" in words:
            raise SettingsError(f"{text!r}: a folder name is empty; {_ARM_FORM}.")
        if name in arms:
            raise SettingsError(f"two arms are called {name!r}; give each a name of its own.")
        arms[name] = [folder for word in words for folder in _matching(word, name)]
        for folder in arms[name]:
            real = folder.resolve()
            real = (
                real.parent if real.name == TRAIN else real
            )  # `demo` and `demo/train` are one run
            if real in owners:
                raise SettingsError(
                    f"{folder}: is in {owners[real]!r} and again in {name!r}; a run is one seed "
                    "of one arm."
                )
            owners[real] = name
    return arms


def load_arms(
    folders: Mapping[str, Sequence[Path]], *, metric: str = SCORE
) -> tuple[str, tuple[Arm, ...]]:
    """Read every run and return the preset, empty where runs do not say it, and the arms.

    A folder is a run folder, or holds one as `train/` with evaluations beside it, as
    `tools/demo.sh` leaves it. `metric` is the figure of `metrics.jsonl` that is compared.

    Raises:
        SettingsError: A folder is no run or has no step, or the presets differ.
    """
    rows = {folder: _rows(folder, metric) for group in folders.values() for folder in group}
    presets = {folder: _presets(found) for folder, found in rows.items()}
    if len(set(presets.values())) > 1:
        what = "; ".join(
            f"{folder}: {names or 'a preset it does not say'}" for folder, names in presets.items()
        )
        raise SettingsError(f"the runs have different presets ({what}); compare runs of one.")
    arms = tuple(
        Arm(name=name, runs=tuple(_run(folder, rows[folder], metric) for folder in group))
        for name, group in folders.items()
    )
    return next(iter(presets.values())), arms


def condition_notes(arms: Sequence[Arm]) -> list[str]:
    """Return sentences: settings of an arm that differ from the first arm's, or within it, and
    seeds used twice.

    Runs without `settings.json` are left out.
    """
    values = [_values(arm) for arm in arms]
    seed_names = [one.env for one in variables() if one.affects is Affects.SEED]
    notes = []
    for arm, own in zip(arms[1:], values[1:], strict=True):
        changed = [
            f"{name}={_shown(found[0])} (there {_shown(values[0][name][0])})"
            for name, found in own.items()
            if len(found) == 1 and len(values[0].get(name, ())) == 1 and found != values[0][name]
        ]
        if changed:
            notes.append(
                f"Settings of {arm.name} that differ from those of {arms[0].name}: "
                f"{', '.join(changed)}."
            )
    for arm, own in zip(arms, values, strict=True):
        notes += [
            f"The runs of {arm.name} differ in {name}: {', '.join(map(_shown, found))}."
            for name, found in own.items()
            if len(found) > 1
        ]
        seeds = [
            tuple(run.settings.get(name) for name in seed_names)
            for run in arm.runs
            if "SEED" in run.settings
        ]
        if len(set(seeds)) < len(seeds):
            notes.append(
                f"Runs of {arm.name} share {' and '.join(seed_names)}: they are no independent "
                "seeds."
            )
    return notes


def _matching(word: str, arm: str) -> list[Path]:
    found = (
        sorted(path for path in map(Path, glob.glob(word)) if path.is_dir())
        if "*" in word
        else [Path(word)]
    )
    if not found:
        raise SettingsError(f"{word!r} of arm {arm!r}: no folder matches.")
    return found


def _rows(folder: Path, metric: str) -> list[dict[str, Any]]:
    path = run_home(folder) / "metrics.jsonl"
    if not path.is_file():
        what = (
            f"neither it nor its {TRAIN}/ has a metrics.jsonl"
            if folder.is_dir()
            else "no such folder"
        )
        raise SettingsError(f"{folder}: {what}; give the folder of a training run.")
    rows = read_history(path)
    if not any(number(row.get(metric)) is not None for row in rows):
        named = {key for row in rows for key in row if number(row[key]) is not None}
        why = (
            "the run ended before its first step"
            if metric == SCORE
            else f"there are {', '.join(sorted(named))}"
        )
        raise SettingsError(f'{path}: no step has a "{metric}"; {why}.')
    return rows


def _presets(rows: Iterable[Mapping[str, Any]]) -> str:
    names = {key.removeprefix("games/") for row in rows for key in row if key.startswith("games/")}
    return ", ".join(sorted(name for name in names if any(f"score/{name}" in row for row in rows)))


def _run(folder: Path, rows: Sequence[Mapping[str, Any]], metric: str) -> Run:
    points = [
        (float(row["step"]), score)
        for row in rows
        if (score := number(row.get(metric))) is not None
    ]
    x, scores = (np.asarray(column) for column in zip(*points, strict=True))
    clock = [value for row in rows if (value := number(row.get("seconds"))) is not None]
    # Each part of a resumed run counts from 0.
    parts = [now for now, later in pairwise(clock) if later < now] + clock[-1:]
    return Run(
        folder=folder,
        x=x,
        scores=scores,
        last_step=rows[-1]["step"],
        num_games=sum(number(row.get("games")) or 0.0 for row in rows),
        seconds=sum(parts) if parts else None,
        settings=recorded_settings(run_home(folder)),
        evaluations=_evaluations([folder.parent, folder] if folder.name == TRAIN else [folder]),
    )


def _evaluations(places: Sequence[Path]) -> dict[str, EvaluationResult]:
    """Return the evaluations in some folders by file name; of two of one name the last."""
    found = {}
    for path in (path for place in places for path in sorted(place.glob("*.json"))):
        with suppress(OSError, ValueError, RecursionError):
            if is_result(json.loads(path.read_bytes())):
                found[path.name] = read_result(path)
    return found


def _values(arm: Arm) -> dict[str, list[str]]:
    """Return per setting that matters the different values in an arm, as one types them."""
    found: dict[str, dict[str, None]] = {}
    unimportant = {one.env for one in variables() if not one.affects.is_condition}
    for run in arm.runs:
        for name, value in run.settings.items():
            if name not in unimportant:
                found.setdefault(name, {})[typed(value)] = None
    return {name: list(values) for name, values in found.items()}


def _shown(value: str) -> str:
    """Return a value whose absolute paths keep their last two names: tables are published."""
    return _ABSOLUTE.sub(lambda found: "/".join(Path(found[0]).parts[-2:]), value) or "unset"
