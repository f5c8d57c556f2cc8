"""What an evaluation leaves behind, as data and as a JSON file."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs import v1
from hanabi_grpo.runs.run_folder import json_text, save_text
from hanabi_grpo.runs.task_statistics import Estimate, estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatOrder:
    """One of a lineup's seat orders, played on every task."""

    words: tuple[str, ...]
    """As they were typed, in turn order."""
    seats: tuple[str, ...]
    """Who that was, see `refs`."""
    mean: float
    standard_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """One lineup's games on one list of tasks: each task once in every seat order."""

    label: str
    """What tables call it."""
    lineup: str
    """As it was typed."""
    orders: tuple[SeatOrder, ...]
    policies: dict[str, str]
    """What the words of the seats stood for: per adapter the sha256 of its weights, and under
    "base" the fingerprint of the server's model. Empty: scripts."""
    env: str
    preset: str
    num_players: int
    spec_hash: str
    env_config: dict[str, Any]
    score: str
    """Name of the figure in `scores`, see `EnvSpec.score`."""
    score_range: tuple[float, float]
    """Least and most that the rules allow."""
    attainable: float | None
    """Greatest mean score that is known to be reachable on such tasks."""
    suite: str
    temperature: float | None
    """Of sampling, 0 for greedy; None: scripts."""
    seeds: tuple[int, ...]
    """The tasks, ascending."""
    starts: tuple[int, ...]
    """Cluster of each task, numbered in order of appearance; see `task_statistics`."""
    scores: tuple[float, ...]
    """Per task, mean over the seat orders."""
    figures: dict[str, float]
    """Means over tasks, e.g. {"score": 1.0, "bombed": 0.5, "turns_per_game": 6.0}: of
    `Game.result`, and of shares and counts that every environment has."""

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.seeds)

    @property
    def seats(self) -> tuple[tuple[str, ...], ...]:
        """Who sat in each seat, per seat order."""
        return tuple(order.seats for order in self.orders)

    @property
    def estimate(self) -> Estimate:
        """Mean score with error and interval."""
        return estimate(self.scores, self.starts)

    @property
    def mean(self) -> float:
        """Mean score."""
        return self.estimate.mean

    @property
    def standard_error(self) -> float:
        """Of `mean`."""
        return self.estimate.standard_error


def mean_figures(figures: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each figure over those that have it."""
    values: dict[str, list[float]] = {}
    for one in figures:
        for name, value in one.items():
            values.setdefault(name, []).append(value)
    return {name: fmean(found) for name, found in values.items()}


def result_to_json(result: EvaluationResult) -> dict[str, Any]:
    """Return a result as JSON has it, its summary first."""
    return {"summary": result.estimate.to_json(), **asdict(result)}


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file; see `save_text`."""
    save_text(path, json_text(document, indent=2))


def is_result(data: object) -> bool:
    """Tell whether JSON looks like one result, of this version or an earlier one."""
    return isinstance(data, dict) and {"spec_hash", "scores", "orders"} <= data.keys()


def result_of_json(data: object) -> EvaluationResult:
    """Read what `result_to_json` made, or version 0.1; a ValueError that names the field where it
    is no such result.
    """
    try:
        result = TypeAdapter(EvaluationResult).validate_python(
            v1.evaluation(data) if isinstance(data, dict) else data
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"not an evaluation of this version ({field}: {first['msg']})") from error
    lengths = [len(result.seeds), len(result.starts), len(result.scores)]
    if len(set(lengths)) != 1 or result.num_tasks < 2 or not result.orders:
        raise ValueError(
            f"seeds, starts and scores have {', '.join(map(str, lengths))} entries; they need the "
            "same number, at "
            "least 2, and orders at least one"
        )
    if not all(map(math.isfinite, result.scores)):
        raise ValueError("a score is no finite number")
    return result


def read_result(path: Path) -> EvaluationResult:
    """Read what `evaluate --out` wrote; a SettingsError that names the field where it is no such
    result.
    """
    hint = "hanabi-grpo evaluate --out makes one"
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); {hint}.") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not an evaluation ({error}); {hint}.") from error
    several = data.get("results") if isinstance(data, dict) else None
    if isinstance(several, list):
        labels = ", ".join(str(one.get("label")) for one in several if isinstance(one, dict))
        raise SettingsError(
            f"{path}: holds {len(several)} lineups ({labels}); evaluate one of them with an "
            "--out of its own."
        )
    try:
        return result_of_json(data)
    except ValueError as error:
        raise SettingsError(f"{path}: {error}; {hint}.") from error
