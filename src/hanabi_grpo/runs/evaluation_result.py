"""What an evaluation leaves behind, as data and as a JSON file."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.rules import attainable
from hanabi_grpo.envs.hanabi.rules.deals import deals_halves
from hanabi_grpo.errors import GameParameterError, SettingsError
from hanabi_grpo.runs.deal_statistics import Estimate, estimate
from hanabi_grpo.runs.run_folder import write_json_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatOrder:
    """One of a line-up's seat orders, played on every deal."""

    words: tuple[str, ...]
    """As they were typed, in turn order."""
    seats: tuple[str, ...]
    """Who that was, see `refs`."""
    mean: float
    """Mean score."""
    standard_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """One line-up's games on one list of deals: each deal once in every seat order.

    Example:
        EvaluationResult(label="after", line_up="served", orders=(SeatOrder(words=("served", "served"),
                         seats=("player_0@60", "player_1@60"), mean=1.0, standard_error=1.0),), policies={…},
                         preset="laptop", num_players=2, spec_hash="9f3c…", env_config={"preset": "laptop", …},
                         reachable_max=4, suite="eval", temperature=1.0, seeds=(0, 1), decks=(0, 1), scores=(2.0, 0.0),
                         scores_kept=(2.0, 1.0), bomb_share=0.5, truncated_share=0.0, perfect_share=0.0,
                         illegal_per_game=0.0, unparsable_per_game=0.0, hints_per_turn=0.4, misplays_per_turn=0.1,
                         turns_per_game=6.0)
    """

    label: str
    """What tables call it."""
    line_up: str
    """As it was typed."""
    orders: tuple[SeatOrder, ...]
    policies: dict[str, str]
    """What the words of the seats stood for: per adapter the sha256 of its weights, and under "base" the fingerprint of
    the server's model. Empty: scripts."""
    preset: str
    num_players: int
    spec_hash: str
    env_config: dict[str, Any]
    reachable_max: int
    """Most points that this board allows."""
    suite: str
    temperature: float | None
    """Of sampling, 0 for greedy; None: scripts."""
    seeds: tuple[int, ...]
    """The deals, ascending."""
    decks: tuple[int, ...]
    """The deck of each deal, numbered in order of appearance; deals of one number have the same deck."""
    scores: tuple[float, ...]
    """Per deal, mean over the seat orders, of OpenSpiel's scoring: 0 on a bomb."""
    scores_kept: tuple[float, ...]
    """Likewise, of the points on the table, kept on a bomb."""
    bomb_share: float
    """Of games, as the next two."""
    truncated_share: float
    perfect_share: float
    """Games that reached `reachable_max`."""
    illegal_per_game: float
    unparsable_per_game: float
    hints_per_turn: float
    misplays_per_turn: float
    """Plays of a card that did not fit."""
    turns_per_game: float

    @property
    def num_deals(self) -> int:
        """Number of deals."""
        return len(self.seeds)

    @property
    def num_decks(self) -> int:
        """Number of different decks among the deals."""
        return len(set(self.decks))

    @property
    def seats(self) -> tuple[tuple[str, ...], ...]:
        """Who sat in each seat, per seat order."""
        return tuple(order.seats for order in self.orders)

    @property
    def estimate(self) -> Estimate:
        """Mean score with error and interval, clustered by deck."""
        return estimate(self.scores, self.decks)

    @property
    def mean(self) -> float:
        """Mean score."""
        return self.estimate.mean

    @property
    def standard_error(self) -> float:
        """Of `mean`, clustered by deck."""
        return self.estimate.standard_error

    @property
    def mean_kept(self) -> float:
        """Mean of the points on the table at the end."""
        return statistics.fmean(self.scores_kept)

    @property
    def attainable(self) -> float | None:
        """Mean score of the best players known for this board; None: not known, or the deals are half of its decks."""
        try:
            spec = EnvConfig.parse(self.env_config).spec()
        except (SettingsError, GameParameterError):
            # A board of another version.
            return None
        is_whole = spec.hash == self.spec_hash and not deals_halves(spec, self.suite)
        return attainable(spec) if is_whole else None


def result_to_json(result: EvaluationResult) -> dict[str, Any]:
    """Return a result as JSON has it, its summary first."""
    found = result.estimate
    summary = {
        "mean": found.mean,
        "standard_error": found.standard_error,
        "interval_95": [found.low, found.high],
        "mean_kept": result.mean_kept,
        "perfect_share": result.perfect_share,
        "num_deals": found.num_deals,
        "num_decks": found.num_decks,
    }
    return {"summary": summary, **asdict(result)}


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all; the folder is made where it is missing.

    Raises:
        SettingsError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json_atomic(path, document)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written ({error.strerror}); choose another --out.") from error


def write_result(path: Path, result: EvaluationResult) -> None:
    """Write one result as JSON; `read_result` reads it."""
    write_document(path, result_to_json(result))


def read_result(path: Path) -> EvaluationResult:
    """Read what `write_result` wrote.

    Raises:
        SettingsError: The file is missing or is no such result; names the field.
    """
    try:
        content = path.read_bytes()
        result = TypeAdapter(EvaluationResult).validate_json(content)
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); hanabi-grpo evaluate --out makes it."
        ) from error
    except ValidationError as error:
        if labels := _labels(content):
            raise SettingsError(
                f"{path}: holds {len(labels)} line-ups ({', '.join(labels)}); evaluate the one that is meant with an "
                "--out of its own."
            ) from error
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise SettingsError(
            f"{path}: not an evaluation of this version ({field}: {first['msg']}); hanabi-grpo evaluate --out makes "
            "one."
        ) from error
    lengths = [len(result.seeds), len(result.decks), len(result.scores), len(result.scores_kept)]
    if len(set(lengths)) != 1 or result.num_deals < 2 or not result.orders:
        raise SettingsError(
            f"{path}: seeds, decks, scores and scores_kept have {', '.join(map(str, lengths))} entries; they need the "
            "same number, at least 2, and orders at least one. Evaluate again."
        )
    if not all(math.isfinite(score) for score in (*result.scores, *result.scores_kept)):
        raise SettingsError(f"{path}: a score is no finite number. Evaluate again.")
    return result


def _labels(content: bytes) -> Sequence[str]:
    """Return the labels in a file of several results, none when it is something else."""
    try:
        return [str(result["label"]) for result in json.loads(content)["results"]]
    except (ValueError, LookupError, TypeError):
        return []
