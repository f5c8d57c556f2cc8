"""From a run folder into an open run at W&B: rows, sample games, artifacts. One failure stops none
of the others.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.runs.history import read_history, read_row
from hanabi_grpo.runs.manifest import checkpoints_of
from hanabi_grpo.runs.run_folder import write_text_atomic
from hanabi_grpo.runs.validation import best_of, read_validations
from hanabi_grpo.settings import Settings
from hanabi_grpo.tracking.artifact import artifact_name, build_artifact
from hanabi_grpo.tracking.record import (
    ArtifactRecord,
    RunningScore,
    WandbRecord,
    is_best,
    running_score,
    write_record,
)
from hanabi_grpo.tracking.wandb_run import WandbRun

logger = logging.getLogger(__name__)

GamesPage = Callable[[Path, Settings], str]
"""Makes a page of recorded games of a run folder, empty where there are none."""


@dataclass
class Publisher:
    """Publishes one run folder, from a step on: what was there before is known to W&B already."""

    run: WandbRun
    record: WandbRecord
    settings: Settings
    """WANDB_LOG_MODEL, UPLOAD_CKPT_TO_WANDB and the artifact's name and aliases are taken from
    here.
    """
    run_folder: Path
    from_step: int
    games_page: GamesPage
    """`report.games.newest_games_page`, which stands above this package."""
    trouble: Callable[[str], None]
    """Receives one sentence at the first failure of each kind."""

    def __post_init__(self) -> None:
        """Note in the run folder which run this is."""
        self._read_bytes = 0
        self._said: set[str] = set()
        self._seen: set[int] = set()
        self.record.project, self.record.entity = (
            self.settings.wandb_project,
            self.settings.wandb_entity or "",
        )
        self.record.mode, self.record.url = self.run.mode, self.run.url
        with self._guard("wandb.json"):
            write_record(self.run_folder, self.record)

    def publish_new(self, *, everything: bool = False) -> None:
        """Send what came since the last call; a checkpoint whose validation is under way only with
        `everything`.
        """
        with self._guard("metrics"):
            for row in self._new_rows():
                self.run.log_row(row)
        with self._guard("checkpoints"):
            found = self._new_checkpoints()
            # W&B calls `latest` what comes last, so an alias cannot be given to an earlier one
            # afterwards.
            awaited = None if everything or not found else self._awaited(max(found))
            for step, folder in found.items():
                if step not in self._seen and step != awaited:
                    self._seen.add(step)
                    self.samples(step)
                    if self.settings.wandb_log_model == "checkpoint":
                        self.artifact(folder, step, ())

    def close(self, exit_code: int) -> bool:
        """Send the rest and finish; returns whether everything went where it should.

        Finally the last checkpoint goes up with CKPT_ARTIFACT_ALIASES, when the settings say so.
        """
        self.publish_new(everything=True)
        wanted = self.settings.upload_ckpt_to_wandb or self.settings.wandb_log_model == "end"
        with self._guard("checkpoints"):
            if wanted and (checkpoints := self._new_checkpoints()):
                step, folder = checkpoints.popitem()
                self._final(folder, step)
        with self._guard("the last validation"):
            rows = read_validations(self.run_folder)
            # It is of the version after the last step, so no row has it.
            steps = [row["step"] for row in read_history(self.run_folder / "metrics.jsonl")]
            if rows and rows[-1].step == max(steps, default=0):
                self.run.log_row(
                    {"step": rows[-1].step, f"validation/{rows[-1].metric}": rows[-1].score}
                )
        with self._guard("the end of the run"):
            self.run.finish(exit_code)
        return not self._said

    def _final(self, newest: Path, step: int) -> None:
        """Send the newest checkpoint, and before it the one that validation chose, unless that is
        there as `best`.
        """
        with self._guard("validation"):
            chosen, there = self._chosen(), checkpoints_of(self.run_folder)
            known = [
                one.step
                for one in self.record.artifacts
                if "best" in one.aliases and one.mode == self.run.mode
            ]
            if chosen in there and chosen not in (step, *known):
                self.artifact(there[chosen], chosen, ())
        self.artifact(newest, step, self.settings.ckpt_artifact_aliases)

    def artifact(self, checkpoint: Path, step: int, aliases: Sequence[str]) -> None:
        """Make a checkpoint an artifact."""
        with self._guard(f"the artifact of {checkpoint.name}"):
            rows = read_history(self.run_folder / "metrics.jsonl")
            score = running_score(rows, step)
            earlier = [
                running_score(rows, other)
                for other in checkpoints_of(self.run_folder)
                if other < step
            ]
            names = [f"checkpoint_global_step_{step}", *aliases]
            if self._is_best(step, score, [*self.record.scores(), *earlier]):
                names.append("best")
            folder, metadata = build_artifact(self.run_folder, checkpoint, self.settings, score)
            name = artifact_name(self.settings, self.run_folder)
            self.run.log_artifact(folder, name, names, metadata)
            made = ArtifactRecord(
                step=step,
                name=name,
                aliases=list(dict.fromkeys(names)),
                folder=folder.relative_to(self.run_folder).as_posix(),
                mode=self.run.mode,
                score=score.mean if score else None,
                standard_error=score.standard_error if score else None,
                score_steps=score.num_steps if score else 0,
            )
            self.record.add(made)
            write_record(self.run_folder, self.record)

    def samples(self, step: int) -> None:
        """Send games of the newest recorded step as a page."""
        with self._guard("sample games"):
            if page := self.games_page(self.run_folder, self.settings):
                write_text_atomic(self.run_folder / "replay.html", page)
                self.run.log_samples(step, page)

    def _is_best(
        self, step: int, score: RunningScore | None, earlier: Sequence[RunningScore | None]
    ) -> bool:
        if self.settings.eval_steps:
            return self._chosen() == step
        return self._has_score and is_best(score, earlier)

    @property
    def _has_score(self) -> bool:
        # Of players against each other no score of their own games says who plays well.
        return self.settings.setup().spec.has_common_score

    def _chosen(self) -> int:
        """Return the step of the version that did best in validation; 0: none, or the start."""
        best = (
            best_of(read_validations(self.run_folder))
            if self.settings.eval_steps and self._has_score
            else None
        )
        return 0 if best is None else best.step

    def _awaited(self, newest: int) -> int | None:
        if not self.settings.eval_steps or newest % self.settings.eval_steps:
            return None
        return (
            None if any(row.step == newest for row in read_validations(self.run_folder)) else newest
        )

    def _new_rows(self) -> list[dict[str, Any]]:
        """Return the rows after `from_step` that the trainer wrote since the last call; raises an
        OSError.
        """
        try:
            with (self.run_folder / "metrics.jsonl").open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return []
        # A line without an end is still being written.
        end = data.rfind(b"\n") + 1
        self._read_bytes += end
        return [
            row
            for row in map(read_row, data[:end].splitlines())
            if row and row["step"] > self.from_step
        ]

    def _new_checkpoints(self) -> dict[int, Path]:
        return {
            step: folder
            for step, folder in checkpoints_of(self.run_folder).items()
            if step > self.from_step
        }

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Whatever it is: a mirror that fails must not take the rest with it.
            logger.exception("%s", what)
            if what not in self._said:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                self.trouble(f"{what} did not reach W&B ({reason})")
            self._said.add(what)
