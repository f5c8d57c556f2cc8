"""`wandb.json` of a run folder: the run's id at W&B, every artifact that was made of it, and which
is the best.
"""

import logging
import math
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from hanabi_grpo.runs.history import number
from hanabi_grpo.runs.run_folder import write_json_atomic
from hanabi_grpo.settings.refs import LATEST, WandbPlace

logger = logging.getLogger(__name__)

RECORD = "wandb.json"
_SCORE_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningScore:
    """Mean score of the training games in the last steps up to a checkpoint.

    These are sampled games on training tasks, played by the versions that led to the checkpoint; a
    score on held-out tasks is what `hanabi-grpo evaluate` measures."""

    step: int
    mean: float
    standard_error: float | None
    """Of the mean, from the spread of the steps' means, so that tasks, sampling and what was
    learned meanwhile are in it; None for a single step."""
    num_steps: int
    """Steps it is of, at most 10."""

    @property
    def text(self) -> str:
        """Return e.g. "1.99 ± 0.05 over 10 steps"."""
        error = "" if self.standard_error is None else f" ± {self.standard_error:.2f}"
        return (
            f"{self.mean:.2f}{error} over {self.num_steps} step{'s' if self.num_steps != 1 else ''}"
        )


def running_score(rows: Iterable[Mapping[str, Any]], step: int) -> RunningScore | None:
    """Return the score of the checkpoint of a step from rows of `metrics.jsonl`; None when no step
    up to it had one.
    """
    scores = [
        score
        for row in rows
        if row["step"] <= step and (score := number(row.get("score/mean"))) is not None
    ]
    scores = scores[-_SCORE_STEPS:]
    if not scores:
        return None
    error = stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None
    return RunningScore(step=step, mean=fmean(scores), standard_error=error, num_steps=len(scores))


def is_best(score: RunningScore | None, earlier: Iterable[RunningScore | None]) -> bool:
    """Tell whether a checkpoint is better than all before it; one of fewer than 10 steps loses to
    any full one.
    """

    def rank(one: RunningScore) -> tuple[bool, float]:
        return one.num_steps >= _SCORE_STEPS, one.mean

    return score is not None and all(
        rank(score) > rank(one) for one in earlier if one and one.step != score.step
    )


class ArtifactRecord(BaseModel):
    """One artifact as it was handed to W&B, or to the run's files on this disk."""

    model_config = ConfigDict(extra="forbid")

    step: int = Field(ge=0)
    name: str
    aliases: list[str]
    folder: str
    """Below the run folder, e.g. "artifacts/step_50"."""
    mode: str
    """"online" or "offline", at that time."""
    score: float | None = None
    """See `RunningScore`."""
    standard_error: float | None = None
    score_steps: int = 0


class WandbRecord(BaseModel):
    """What a resumed run must know of the run at W&B."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9]{4,64}$")
    """Made once; a run that is resumed goes on in the same run at W&B."""
    project: str = ""
    entity: str = ""
    mode: str = ""
    """Of the last process: "online" or "offline"."""
    url: str = ""
    artifacts: list[ArtifactRecord] = []

    def scores(self) -> list[RunningScore]:
        """Return the running scores of all artifacts that have one."""
        return [
            RunningScore(
                step=one.step,
                mean=one.score,
                standard_error=one.standard_error,
                num_steps=one.score_steps,
            )
            for one in self.artifacts
            if one.score is not None
        ]

    def add(self, made: ArtifactRecord) -> None:
        """Add an artifact. An alias is of one version only: an earlier artifact of that name and
        place loses it.

        Of one step there is one entry for each place; made again, it keeps its aliases.
        """
        of_name = [one for one in self.artifacts if (one.mode, one.name) == (made.mode, made.name)]
        before = [one for one in of_name if one.step == made.step]
        made.aliases = list(
            dict.fromkeys(alias for one in (*before, made) for alias in one.aliases)
        )
        for one in of_name:
            one.aliases = [alias for alias in one.aliases if alias not in made.aliases]
        self.artifacts = [*(one for one in self.artifacts if one not in before), made]


def read_record(run_folder: Path) -> WandbRecord:
    """Return a run's record; a new one, with a new id, where there is none or it cannot be read."""
    path = run_folder / RECORD
    try:
        return WandbRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        logger.warning(
            "%s cannot be read (%s): this is a new run at W&B", path, type(error).__name__
        )
    return WandbRecord(id=uuid.uuid4().hex[:12])


def find_recorded(wanted: WandbPlace, roots: Iterable[Path]) -> dict[Path, Path]:
    """Return, by run folder, the artifact of that name and alias that lies on this disk; `latest`
    is the last one.

    `roots` are run folders, or folders of them. A run that was recorded without an entity may
    belong to any."""
    found = {}
    for path in (
        path
        for root in roots
        for below in ("", "*/", "*/*/")
        for path in sorted(root.glob(below + RECORD))
    ):
        run, record = path.parent, read_record(path.parent)
        is_of = record.project == wanted.project and (
            not wanted.entity or record.entity in ("", wanted.entity)
        )
        for one in record.artifacts if is_of else ():
            is_it = one.name == wanted.name and (
                wanted.alias in ("", LATEST) or wanted.alias in one.aliases
            )
            if is_it and (run / one.folder).is_dir():
                found[run.resolve()] = (run, run / one.folder)
    return dict(found.values())


def write_record(run_folder: Path, record: WandbRecord) -> None:
    """Write a run's record; raises an OSError."""
    write_json_atomic(run_folder / RECORD, record.model_dump())
