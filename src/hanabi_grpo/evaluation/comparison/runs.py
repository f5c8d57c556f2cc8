"""What the folder of a run holds: scores by step, time, board, evaluations, settings."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.evaluation_result import EvaluationResult, read_result
from hanabi_grpo.runs.history import number, read_history
from hanabi_grpo.runs.run_folder import TRAIN, recorded_settings, run_home

_SCORE = "score/"
_MEAN = "score/mean"


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
    board_hash: str | None = None
    """Of the board, from a recorded game; None where none was recorded."""
    num_players: int | None = None
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
    folders: Mapping[str, Sequence[Path]], *, board: str | None = None, evaluations: Sequence[str] = ()
) -> tuple[str, tuple[Arm, ...]]:
    """Read every run.

    A folder is a run folder, or holds one as `train/` with evaluations beside it, as `tools/demo.sh` leaves it.

    Args:
        folders: By name of the arm.
        board: Of which the training scores are; None: the only one that the runs have.
        evaluations: File names of evaluations; empty: every one that a run has.

    Returns:
        The board's name, empty where runs do not say it, and the arms.

    Raises:
        SettingsError: A folder is no run or has no step; the boards differ; a named evaluation is nowhere or no
            evaluation.
    """
    rows = {folder: _rows(folder) for group in folders.values() for folder in group}
    board = _common_board({folder: _boards(found) for folder, found in rows.items()}, board)
    arms = tuple(
        Arm(name=name, runs=tuple(_run(folder, rows[folder], board, evaluations) for folder in group))
        for name, group in folders.items()
    )
    runs = [run for arm in arms for run in arm.runs]
    _check_hashes(runs, board)
    for name in evaluations:
        if not any(name in run.evaluations for run in runs):
            raise SettingsError(
                f"--evaluation {name}: no run has this file; hanabi-grpo evaluate --out RUN/{name} makes it."
            )
    return board, arms


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


def _boards(rows: Iterable[Mapping[str, Any]]) -> set[str]:
    return {
        key.removeprefix(_SCORE)
        for row in rows
        for key in row
        if key.startswith(_SCORE) and f"games/{key.removeprefix(_SCORE)}" in row
    }


def _common_board(boards: Mapping[Path, set[str]], asked: str | None) -> str:
    known = {folder: found for folder, found in boards.items() if found}
    if asked is not None:
        for folder, found in boards.items():
            if asked not in found:
                raise SettingsError(
                    f"--board {asked}: {folder} trained on {_list(found) or 'a board it does not say'}."
                )
        return asked
    every = set().union(*known.values()) if known else set()
    if len(every) < 2:
        return next(iter(every), "")
    shared = set.intersection(*known.values()) if len(known) == len(boards) else set()
    what = "; ".join(f"{folder}: {_list(found)}" for folder, found in boards.items())
    if shared:
        raise SettingsError(f"the runs have several boards ({what}); choose one with --board, e.g. {min(shared)}.")
    raise SettingsError(f"the runs have different boards ({what}); compare runs on one board.")


def _check_hashes(runs: Sequence[Run], board: str) -> None:
    first = next((run for run in runs if run.board_hash), None)
    for run in runs:
        if first and run.board_hash and run.board_hash != first.board_hash:
            raise SettingsError(
                f"{first.folder} and {run.folder} were trained on different boards called {board} "
                f"({first.num_players} players, {first.board_hash}; {run.num_players} players, {run.board_hash})."
            )


def _run(folder: Path, rows: Sequence[Mapping[str, Any]], board: str, evaluations: Sequence[str]) -> Run:
    home = run_home(folder)
    seen = np.cumsum([number(row.get("games")) or 0.0 for row in rows])
    # Rows of an old run have no score by board.
    key = f"{_SCORE}{board}" if board in _boards(rows) else _MEAN
    points = [
        (float(row["step"]), float(games), score)
        for row, games in zip(rows, seen, strict=True)
        if (score := number(row.get(key))) is not None
    ]
    if not points:
        raise SettingsError(f'{folder}: no step has a "{key}".')
    steps, games, scores = (np.asarray(column) for column in zip(*points, strict=True))
    board_hash, num_players = _recorded_board(home, board)
    return Run(
        folder=folder,
        steps=steps,
        games=games,
        scores=scores,
        num_games=float(seen[-1]),
        seconds=_seconds(rows),
        board_hash=board_hash,
        num_players=num_players,
        settings=recorded_settings(home),
        evaluations=_evaluations([folder, folder.parent] if folder.name == TRAIN else [folder], evaluations),
    )


def _seconds(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the wall time; the parts of a resumed run, each of which counts from 0, are added."""
    clock = [value for row in rows if (value := number(row.get("seconds"))) is not None]
    if not clock:
        return None
    return sum(now for now, later in pairwise(clock) if later < now) + clock[-1]


def _recorded_board(home: Path, board: str) -> tuple[str | None, int | None]:
    """Return hash and number of players of a recorded game on this board; None where none was recorded."""
    for path in sorted((home / "episodes").glob("step_*.jsonl"), reverse=True)[:1]:
        try:
            with path.open("rb") as lines:
                for line in lines:
                    game = json.loads(line)
                    if not board or game["preset"] == board:
                        return str(game["spec_hash"]), int(game["num_players"])
        except (OSError, ValueError, LookupError, TypeError):
            return None, None
    return None, None


def _evaluations(places: Sequence[Path], names: Sequence[str]) -> dict[str, EvaluationResult]:
    found: dict[str, EvaluationResult] = {}
    for place in places:
        for path in [place / name for name in names] if names else sorted(place.glob("*.json")):
            if path.name not in found and (path.is_file() if names else _is_evaluation(path)):
                found[path.name] = read_result(path)
    return found


def _is_evaluation(path: Path) -> bool:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and {"spec_hash", "scores", "decks", "orders"} <= data.keys()


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
