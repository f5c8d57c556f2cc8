"""`wandb.json` of a run folder: the run's id at W&B, what was sent, and which artifact is the best.

W&B's library only takes rows and artifacts; a process of its own sends them later. The record
therefore says what has arrived: the next process sends everything else again.
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

from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_bytes
from hanabi_grpo.runs.history import number
from hanabi_grpo.runs.run_folder import write_json_atomic
from hanabi_grpo.settings.refs import LATEST, WandbPlace

logger = logging.getLogger(__name__)

RECORD = "wandb.json"

_SCORE_STEPS = 10
"""Most steps in a running score."""
_ID_LETTERS = 12
_RUN_DEPTHS = ("", "*/", "*/*/")
"""How deep below a root `find_recorded` looks for run folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningScore:
    """Mean score of the training games in the last steps up to a checkpoint.

    The games were sampled on training tasks by the policy versions that led to the checkpoint.
    `hanabi-grpo evaluate` measures the score on held-out tasks.
    """

    step: int
    """The checkpoint's step."""
    mean: float
    """Mean of the steps' mean scores."""
    standard_error: float | None
    """Standard error of the mean, from the spread of the steps' means, so that it includes the
    variation of tasks, sampling and learning progress; None for a single step."""
    num_steps: int
    """Number of steps, at most 10."""

    @property
    def text(self) -> str:
        """Return e.g. "1.99 ± 0.05 over 10 steps"."""
        error = ""
        if self.standard_error is not None:
            error = f" ± {self.standard_error:.2f}"
        steps = "step" if self.num_steps == 1 else "steps"
        return f"{self.mean:.2f}{error} over {self.num_steps} {steps}"


def running_score(rows: Iterable[Mapping[str, Any]], step: int) -> RunningScore | None:
    """Return the score of a checkpoint.

    Args:
        rows: Rows of `metrics.jsonl`, oldest first.
        step: The checkpoint's step.

    Returns:
        Its score; None if no step up to the checkpoint has one.
    """
    scores = []
    for row in rows:
        score = number(row.get("score/mean"))
        if row["step"] <= step and score is not None:
            scores.append(score)
    scores = scores[-_SCORE_STEPS:]
    if not scores:
        return None
    standard_error = None
    if len(scores) > 1:
        standard_error = stdev(scores) / math.sqrt(len(scores))
    return RunningScore(
        step=step, mean=fmean(scores), standard_error=standard_error, num_steps=len(scores)
    )


def is_best(score: RunningScore | None, earlier: Iterable[RunningScore | None]) -> bool:
    """Tell whether a checkpoint is better than all earlier ones.

    A score over fewer than 10 steps ranks below any score over 10 steps.

    Args:
        score: The checkpoint's score; None: it has no score, and is not the best.
        earlier: Scores of the others; those of the same step are ignored.
    """
    if score is None:
        return False
    for other in earlier:
        if other is None or other.step == score.step:
            continue
        if _rank(score) <= _rank(other):
            return False
    return True


def _rank(score: RunningScore) -> tuple[bool, float]:
    return score.num_steps >= _SCORE_STEPS, score.mean


class ArtifactRecord(BaseModel):
    """One artifact as it was sent to W&B or written to the run's files on this disk."""

    model_config = ConfigDict(extra="forbid")

    step: int = Field(ge=0)
    """The checkpoint's step."""
    name: str
    aliases: list[str]
    folder: str
    """Path in the run folder, e.g. "artifacts/step_50"."""
    mode: str
    """"online" or "offline" at that time."""
    score: float | None = None
    """See `RunningScore`."""
    standard_error: float | None = None
    score_steps: int = 0
    is_sent: bool = True
    """False from the upload's start until the process that began it has closed the run at W&B. True
    in records of versions that did not note it."""

    @property
    def as_score(self) -> RunningScore | None:
        """The score at that time; None if there was none."""
        if self.score is None:
            return None
        return RunningScore(
            step=self.step,
            mean=self.score,
            standard_error=self.standard_error,
            num_steps=self.score_steps,
        )


class WandbRecord(BaseModel):
    """What a resumed run needs to know about the run at W&B."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9]{4,64}$")
    """Created once; a resumed run continues the same run at W&B."""
    project: str = ""
    entity: str = ""
    mode: str = ""
    """Mode of the last process: "online" or "offline"."""
    url: str = ""
    """The run's page."""
    artifacts: list[ArtifactRecord] = []
    sent_step: int | None = Field(default=None, ge=0)
    """W&B has the rows up to this step; None: unknown, in records of versions that did not note
    it."""
    is_complete: bool = True
    """False while a process has the run open, and after it was killed or could not send everything.
    True in records of versions that did not note it."""

    def scores(self) -> list[RunningScore]:
        """Return the running scores of all artifacts that have one."""
        scores = [artifact.as_score for artifact in self.artifacts]
        return [score for score in scores if score is not None]

    def add(self, made: ArtifactRecord) -> None:
        """Add an artifact.

        An alias belongs to one version only: an earlier artifact of that name and mode loses it.
        There is one entry for each step and mode; an artifact that is rebuilt keeps its aliases.
        """
        versions = []
        for artifact in self.artifacts:
            if artifact.mode == made.mode and artifact.name == made.name:
                versions.append(artifact)
        same_step = [artifact for artifact in versions if artifact.step == made.step]
        aliases = [alias for artifact in same_step for alias in artifact.aliases]
        made.aliases = list(dict.fromkeys([*aliases, *made.aliases]))
        for artifact in versions:
            artifact.aliases = [alias for alias in artifact.aliases if alias not in made.aliases]
        kept = [artifact for artifact in self.artifacts if artifact not in same_step]
        self.artifacts = [*kept, made]


def read_record(run_folder: Path) -> WandbRecord:
    """Return a run's record, or a new one with a new id if it is missing or unreadable.

    Nothing of a new one was sent.
    """
    path = run_folder / RECORD
    try:
        return WandbRecord.model_validate_json(read_bytes(path, MAX_DOCUMENT_BYTES))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        logger.warning(
            "%s cannot be read (%s): starting a new run at W&B", path, type(error).__name__
        )
    return WandbRecord(id=uuid.uuid4().hex[:_ID_LETTERS], sent_step=0)


def is_unfinished(run_folder: Path) -> bool:
    """Tell whether W&B may lack a part of a run: its last mirror was killed or had trouble."""
    return (run_folder / RECORD).is_file() and not read_record(run_folder).is_complete


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedArtifact:
    """An artifact on this disk that a run recorded."""

    run_folder: Path
    folder: Path
    """The artifact's own folder."""


def find_recorded(wanted: WandbPlace, roots: Iterable[Path]) -> list[RecordedArtifact]:
    """Return the artifacts on this disk with a given name and alias, one for each run.

    If a run has several, the last one counts, so `latest` is the last one.

    Args:
        wanted: Entity, project, name and alias. A run that was recorded without an entity matches
            any entity.
        roots: Run folders, or folders that contain run folders.
    """
    artifacts = {}
    for run_folder in _recorded_runs(roots):
        record = read_record(run_folder)
        is_same_entity = not wanted.entity or record.entity in ("", wanted.entity)
        if record.project != wanted.project or not is_same_entity:
            continue
        for artifact in record.artifacts:
            folder = run_folder / artifact.folder
            is_any = wanted.alias in ("", LATEST)
            is_version = is_any or wanted.alias in artifact.aliases
            if artifact.name == wanted.name and is_version and folder.is_dir():
                artifacts[run_folder.resolve()] = RecordedArtifact(
                    run_folder=run_folder, folder=folder
                )
    return list(artifacts.values())


def _recorded_runs(roots: Iterable[Path]) -> list[Path]:
    """Return the run folders with a record at and below these folders."""
    runs = []
    for root in roots:
        for depth in _RUN_DEPTHS:
            paths = sorted(root.glob(depth + RECORD))
            runs += [path.parent for path in paths]
    return runs


def write_record(run_folder: Path, record: WandbRecord) -> None:
    """Write a run's record; raises an OSError."""
    write_json_atomic(run_folder / RECORD, record.model_dump())
