"""`wandb.json` of a run folder: the run's id at W&B, and every artifact that was made of it."""

import json
import logging
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hanabi_grpo.runs.run_folder import write_json_atomic
from hanabi_grpo.settings.refs import LATEST, WandbPlace
from hanabi_grpo.tracking.score import RunningScore

logger = logging.getLogger(__name__)

RECORD = "wandb.json"
_DEPTH = 3
"""Folders below outputs/ in which run folders are looked for, e.g. outputs/demo-1/train."""
_ID = re.compile(r"[a-z0-9]{4,64}")


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
    """Running score, see `score`."""
    standard_error: float | None = None
    score_steps: int = 0


class WandbRecord(BaseModel):
    """What a resumed run, or an upload after it, must know of the run at W&B."""

    model_config = ConfigDict(extra="forbid")

    id: str
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
            RunningScore(step=one.step, mean=one.score, standard_error=one.standard_error, num_steps=one.score_steps)
            for one in self.artifacts
            if one.score is not None
        ]

    def add(self, made: ArtifactRecord) -> None:
        """Add an artifact. An alias is of one version only: an earlier artifact of that name and place loses it.

        Of one step there is one entry for each place; made again, it keeps its aliases.
        """
        kept = []
        for one in self.artifacts:
            if (one.step, one.mode, one.name) == (made.step, made.mode, made.name):
                made.aliases = list(dict.fromkeys([*one.aliases, *made.aliases]))
                continue
            kept.append(one)
        for one in kept:
            if (one.mode, one.name) == (made.mode, made.name):
                one.aliases = [alias for alias in one.aliases if alias not in made.aliases]
        self.artifacts = [*kept, made]


def read_record(run_folder: Path) -> WandbRecord:
    """Return a run's record; a new one, with a new id, where there is none or it cannot be read."""
    path = run_folder / RECORD
    try:
        found = WandbRecord.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return WandbRecord(id=_new_id())
    except (OSError, ValueError, ValidationError, RecursionError) as error:
        logger.warning("%s cannot be read (%s): this is a new run at W&B", path, type(error).__name__)
        return WandbRecord(id=_new_id())
    return found if _ID.fullmatch(found.id) else found.model_copy(update={"id": _new_id()})


def write_record(run_folder: Path, record: WandbRecord) -> None:
    """Write a run's record.

    Raises:
        OSError: The file cannot be written.
    """
    data: dict[str, Any] = record.model_dump()
    write_json_atomic(run_folder / RECORD, data)


def find_recorded(wanted: WandbPlace, roots: Sequence[Path]) -> dict[Path, Path]:
    """Return, by run folder, the artifact of that name and alias whose folder is on this disk.

    A run that was recorded without an entity may belong to any. `latest` is the last one of that name, as at W&B.

    Args:
        wanted: What was typed.
        roots: Run folders, or folders of them.
    """
    found: dict[Path, tuple[Path, Path]] = {}
    patterns = ["/".join(["*"] * depth + [RECORD]) for depth in range(_DEPTH + 1)]
    for path in (path for root in roots for pattern in patterns for path in sorted(root.glob(pattern))):
        run, record = path.parent, read_record(path.parent)
        if record.project != wanted.project or (wanted.entity and record.entity not in ("", wanted.entity)):
            continue
        named = [one for one in record.artifacts if one.name == wanted.name and (run / one.folder).is_dir()]
        is_latest = wanted.alias in ("", LATEST)
        matching = named if is_latest else [one for one in named if wanted.alias in one.aliases]
        if matching:
            found.setdefault(run.resolve(), (run, run / matching[-1].folder))
    return dict(found.values())


def _new_id() -> str:
    return uuid.uuid4().hex[:12]
