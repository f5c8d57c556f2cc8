"""The result of an evaluation, as data and as a JSON file."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import MAX_EVALUATION_BYTES, read_bytes
from hanabi_grpo.runs.history import MAX_FIGURE
from hanabi_grpo.runs.old_keys import rename_old_keys
from hanabi_grpo.runs.run_folder import json_text, save_text
from hanabi_grpo.runs.task_statistics import (
    Estimate,
    check_num_starts,
    estimate,
    estimate_of_all_starts,
)
from hanabi_grpo.settings.refs import seat_adapter
from hanabi_grpo.token_filter import TokenFilter
from hanabi_grpo.types import ALL_STARTS

MIN_TASKS = 2
"""Minimum number of tasks: a mean of fewer has no standard error."""
_REWARD = "reward_"
"""Prefix of the fields of a config that are rewards of training."""
_RESULT_KEYS = frozenset({"spec_hash", "scores", "orders"})
"""Keys that identify a result; every version has written them."""
_OUTCOMES = frozenset({1, 0, -1})
"""See `EvaluationResult.outcomes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatOrder:
    """One of a lineup's seat orders, played on every task."""

    words: tuple[str, ...]
    """Policy specs as they were typed, in turn order, e.g. ("outputs/run:player_1", "iggi")."""
    seats: tuple[str, ...]
    """The policies of these specs, e.g. ("frozen_0123456789abcdef@50", "iggi"); see
    `settings.refs`."""
    mean: float
    """Mean score over the tasks."""
    standard_error: float
    """Standard error of `mean`, clustered by start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """One lineup's games on one list of tasks: each task once in every seat order."""

    label: str
    """Name of the lineup in tables."""
    lineup: str
    """The lineup as it was typed."""
    orders: tuple[SeatOrder, ...]
    """The seat orders that were played."""
    policies: dict[str, str]
    """Identity of the policies: per adapter the sha256 of its weights, and under "base" the
    fingerprint of the server's model. Empty: scripts."""
    env: str
    """Name of the environment."""
    preset: str
    """Name of the environment's preset."""
    num_players: int
    """Number of seats."""
    spec_hash: str
    """Hash of the rules."""
    env_config: dict[str, Any]
    """Configuration of the environment, as in `Setup.row`."""
    score: str
    """Name of the figure in `scores`, see `EnvSpec.score`."""
    score_range: tuple[float, float]
    """Lowest and highest score that the rules allow."""
    attainable: float | None
    """Highest mean score that is known to be reachable on these tasks."""
    suite: str
    """Name of the suite that the tasks belong to."""
    temperature: float | None
    """Sampling temperature, 0 for greedy; None: scripts."""
    is_sampled: bool = True
    """Whether another game of a start might have been different: a model drew its replies at a
    temperature above 0 or is behind a URL, a script drew at random, or random moves replaced bad
    replies. A script beside a model counts as drawing, and so do results of earlier versions, which
    do not say."""
    top_p: float = 1.0
    """Which tokens models could draw, see `token_filter`."""
    top_k: int = 0
    """See `top_p`."""
    max_tokens: int | None = None
    """Largest number of tokens of a model's reply; None: scripts, and results of earlier
    versions."""
    seeds: tuple[int, ...]
    """The tasks, ascending."""
    starts: tuple[int, ...]
    """Cluster of each task, numbered in order of appearance; see `task_statistics`."""
    scores: tuple[float, ...]
    """Per task, mean over the seat orders."""
    figures: dict[str, float]
    """Means over tasks, e.g. {"score": 1.0, "bombed": 0.5, "turns_per_game": 6.0}: those of
    `Game.result`, and shares and counts that every environment has. Shares of tool calls are over
    all calls."""
    outcomes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of games of two players against each other: per role of the first policy, the outcome of each
    task's game, 1 for a win, 0 for a draw, -1 for a loss. Empty: other games, and results of
    earlier versions."""

    @property
    def token_filter(self) -> TokenFilter:
        """Which tokens models could draw."""
        return TokenFilter(top_p=self.top_p, top_k=self.top_k)

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.seeds)

    @property
    def seats(self) -> tuple[tuple[str, ...], ...]:
        """Seat assignment of each seat order."""
        seats = [order.seats for order in self.orders]
        return tuple(seats)

    @property
    def trained_steps(self) -> int:
        """Optimizer steps behind the newest adapter that plays; 0 if none does."""
        versions = [0]
        for seats in self.seats:
            for seat in seats:
                adapter = seat_adapter(seat)
                if adapter is not None:
                    versions.append(adapter[1])
        return max(versions)

    @property
    def covers_all_starts(self) -> bool:
        """Whether every start of the game was played, each equally often."""
        return self.suite == ALL_STARTS

    @property
    def estimate(self) -> Estimate:
        """Mean score with error and interval, which is within the range of scores."""
        return self.over_tasks(self.scores).within(*self.score_range)

    def over_tasks(self, values: Sequence[float]) -> Estimate:
        """Return the mean of a figure with error and interval, as for the score.

        Args:
            values: One finite value per task.
        """
        if self.covers_all_starts:
            return estimate_of_all_starts(values, self.starts, is_sampled=self.is_sampled)
        return estimate(tuple(values), self.starts)

    @property
    def mean(self) -> float:
        """Mean score."""
        return self.estimate.mean

    @property
    def standard_error(self) -> float:
        """Standard error of `mean`."""
        return self.estimate.standard_error


def different_messages(results: Sequence[EvaluationResult]) -> dict[str, list[str]]:
    """Return the fields of the environment's config in which results of the same rules differ.

    They change what players are shown. Training rewards are left out because they do not change a
    score, and so are fields that one of the results lacks, e.g. one of an earlier version.

    Returns:
        The different values by field, in order of appearance.

    Example:
        different_messages([full, compact]) == {"style": ["full", "compact"]}
    """
    if not results:
        return {}
    fields = set.intersection(*(set(result.env_config) for result in results))
    different = {}
    for name in sorted(fields):
        values = list(dict.fromkeys(str(result.env_config[name]) for result in results))
        if len(values) > 1 and not name.startswith(_REWARD):
            different[name] = values
    return different


def mean_figures(figures: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each figure over the mappings that have it.

    Example:
        mean_figures([{"score": 1.0}, {"score": 3.0, "bombed": 1.0}]) ==
            {"score": 2.0, "bombed": 1.0}
    """
    values_by_name: dict[str, list[float]] = {}
    for mapping in figures:
        for name, value in mapping.items():
            values_by_name.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in values_by_name.items()}


def result_to_json(result: EvaluationResult) -> dict[str, Any]:
    """Return a result as a JSON object, its summary first."""
    return {"summary": result.estimate.to_json(), **asdict(result)}


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file; see `save_text`."""
    save_text(path, json_text(document, indent=2))


def is_result(data: object) -> bool:
    """Tell whether JSON data looks like one result, of this version or an earlier one."""
    return isinstance(data, dict) and data.keys() >= _RESULT_KEYS


def result_of_json(data: object) -> EvaluationResult:
    """Read a result as `result_to_json` of this version or an earlier one wrote it.

    Raises:
        ValueError: The data are not such a result; the message names the field.
    """
    if isinstance(data, dict):
        data = rename_old_keys(data)
    try:
        result = TypeAdapter(EvaluationResult).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"not an evaluation of this version ({place}: {first['msg']})") from error
    lengths = [len(result.seeds), len(result.starts), len(result.scores)]
    has_same_lengths = len(set(lengths)) == 1
    if not has_same_lengths or result.num_tasks < MIN_TASKS or not result.orders:
        raise ValueError(
            f"seeds, starts and scores have {', '.join(map(str, lengths))} entries; they need the "
            f"same number, at least {MIN_TASKS}, and orders at least one"
        )
    if not all(map(math.isfinite, result.scores)):
        raise ValueError("a score is not a finite number")
    if max(map(abs, result.scores)) > MAX_FIGURE:
        raise ValueError(f"a score is beyond {MAX_FIGURE:g}")
    for outcomes in result.outcomes.values():
        if len(outcomes) != result.num_tasks or not _OUTCOMES.issuperset(outcomes):
            raise ValueError("outcomes need one entry per task: 1 (win), 0 (draw) or -1 (loss)")
    for order in result.orders:
        if not len(order.words) == len(order.seats) == result.num_players:
            raise ValueError(
                f"an order has {len(order.words)} words and {len(order.seats)} seats; it needs "
                f"{result.num_players} of each, one per player"
            )
    try:
        _check_starts(result)
    except SettingsError as error:
        raise ValueError(str(error).removesuffix(".")) from error
    return result


def _check_starts(result: EvaluationResult) -> None:
    """Raise a SettingsError if a result's starts do not allow a standard error."""
    if result.covers_all_starts:
        estimate_of_all_starts(result.scores, result.starts)
    else:
        check_num_starts(result.num_tasks, len(set(result.starts)))


def read_result(path: Path) -> EvaluationResult:
    """Read the file of one lineup, as written by `evaluate --out`.

    Raises:
        SettingsError: The file holds no such result (the message names the field), or several.
    """
    hint = "hanabi-grpo evaluate --out makes one"
    try:
        data = json.loads(read_bytes(path, MAX_EVALUATION_BYTES))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); {hint}.") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not an evaluation ({error}); {hint}.") from error
    results = data.get("results") if isinstance(data, dict) else None
    if isinstance(results, list):
        labels = []
        for row in results:
            if isinstance(row, dict):
                labels.append(str(row.get("label")))
        raise SettingsError(
            f"{path}: holds {len(results)} lineups ({', '.join(labels)}); evaluate one of them "
            "with its own --out."
        )
    try:
        return result_of_json(data)
    except ValueError as error:
        raise SettingsError(f"{path}: {error}; {hint}.") from error
