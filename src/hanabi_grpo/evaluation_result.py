"""What an evaluation leaves behind, as data and as a JSON file."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs import write_json_atomic


class PairedDifference(NamedTuple):
    """How much more one team scores than another on the same deals."""

    mean: float
    standard_error: float
    num_deals: int

    @property
    def sigmas(self) -> float:
        """The mean in standard errors; infinite when every deal differs by the same amount, 0 when by none."""
        if self.standard_error == 0:
            return 0.0 if self.mean == 0 else float("inf") if self.mean > 0 else float("-inf")
        return self.mean / self.standard_error


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """One team's games on one list of deals, one game per deal.

    Example:
        EvaluationResult(label="after", preset="laptop", num_players=2, spec_hash="9f3c…", reachable_max=4,
                         suite="eval", temperature=1.0, seeds=(0, 1), scores=(2, 0), scores_kept=(2, 1), bomb_share=0.5,
                         truncated_share=0.0, illegal_per_game=0.0, unparsable_per_game=0.0, hints_per_game=2.5,
                         turns_per_game=6.0)
    """

    label: str
    preset: str
    num_players: int
    spec_hash: str
    reachable_max: int
    """Most points that this board allows."""
    suite: str
    temperature: float | None
    """Of sampling, 0 for greedy; None: a script."""
    seeds: tuple[int, ...]
    """The deals, ascending."""
    scores: tuple[int, ...]
    """Per deal, OpenSpiel's scoring: 0 on a bomb."""
    scores_kept: tuple[int, ...]
    """Per deal, points on the table, kept on a bomb."""
    bomb_share: float
    truncated_share: float
    illegal_per_game: float
    unparsable_per_game: float
    hints_per_game: float
    turns_per_game: float

    @property
    def num_deals(self) -> int:
        """Number of deals."""
        return len(self.seeds)

    @property
    def mean(self) -> float:
        """Mean score."""
        return statistics.fmean(self.scores)

    @property
    def standard_error(self) -> float:
        """Of `mean`, over deals."""
        return mean_and_error(self.scores)[1]

    @property
    def mean_kept(self) -> float:
        """Mean of the points on the table at the end."""
        return statistics.fmean(self.scores_kept)

    @property
    def perfect_share(self) -> float:
        """Share of games that reached `reachable_max`."""
        return sum(score >= self.reachable_max for score in self.scores) / len(self.scores)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard error of at least two values."""
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5


def write_result(path: Path, result: EvaluationResult) -> None:
    """Write a result as JSON, its summary first; the folder is made where it is missing."""
    summary = {
        "mean": result.mean,
        "standard_error": result.standard_error,
        "mean_kept": result.mean_kept,
        "perfect_share": result.perfect_share,
        "num_deals": result.num_deals,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(path, {"summary": summary, **asdict(result)})


def read_result(path: Path) -> EvaluationResult:
    """Read what `write_result` wrote.

    Raises:
        SettingsError: The file is missing or is no such result; names the field.
    """
    try:
        result = TypeAdapter(EvaluationResult).validate_json(path.read_bytes())
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); hanabi-grpo evaluate --out makes it."
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise SettingsError(
            f"{path}: not an evaluation ({field}: {first['msg']}); hanabi-grpo evaluate --out makes one."
        ) from error
    lengths = {len(result.seeds), len(result.scores), len(result.scores_kept)}
    if len(lengths) != 1 or result.num_deals < 2:
        raise SettingsError(
            f"{path}: seeds, scores and scores_kept have {len(result.seeds)}, {len(result.scores)} and "
            f"{len(result.scores_kept)} entries; they need the same number, at least 2. Evaluate again."
        )
    return result
