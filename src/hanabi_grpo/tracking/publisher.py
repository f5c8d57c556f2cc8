"""From a run folder into an open run at W&B: rows, sample games, artifacts. One failure stops none of the others."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.runs.run_folder import write_text_atomic
from hanabi_grpo.runs.selection import spread
from hanabi_grpo.settings import Settings
from hanabi_grpo.tracking.artifact import artifact_name, build_artifact, find_evaluations
from hanabi_grpo.tracking.record import ArtifactRecord, WandbRecord, write_record
from hanabi_grpo.tracking.run_reader import RunReader
from hanabi_grpo.tracking.score import RunningScore, is_best, running_score
from hanabi_grpo.tracking.wandb_run import WandbRun

logger = logging.getLogger(__name__)


class Showcase(Protocol):
    """What is shown beside the curves: `report.samples`, which stands above this room and is handed in."""

    @property
    def COLUMNS(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def NUM_GAMES(self) -> int: ...  # noqa: D102
    def sample_recordings(self, run_folder: Path) -> list[Recording]: ...  # noqa: D102
    def table_rows(self, recordings: Sequence[Recording]) -> list[list[Any]]: ...  # noqa: D102
    def replay_page(self, recordings: Sequence[Recording], settings: Settings, title: str) -> str: ...  # noqa: D102
    def draw_charts(  # noqa: D102
        self, run_folder: Path, rows: Sequence[dict[str, Any]], settings: Settings
    ) -> dict[str, Path]: ...


class Publisher:
    """Publishes one run folder."""

    def __init__(
        self,
        run: WandbRun,
        record: WandbRecord,
        settings: Settings,
        run_folder: Path,
        *,
        from_step: int,
        showcase: Showcase,
        trouble: Callable[[str], None],
    ) -> None:
        """Start after a step.

        Args:
            run: Open.
            record: With the run's id.
            settings: WANDB_LOG_MODEL, UPLOAD_CKPT_TO_WANDB and the artifact's name and aliases from here.
            run_folder: Of the run.
            from_step: What was there before is known to W&B already.
            showcase: Makes the tables, pages and pictures.
            trouble: Receives one sentence at the first failure of each kind.
        """
        self.run, self.settings, self.run_folder = run, settings, run_folder
        self.reader = RunReader(run_folder, from_step)
        self._trouble = trouble
        self._showcase = showcase
        self._said: set[str] = set()
        self._seen: set[int] = set()
        record.project, record.entity = settings.wandb_project, settings.wandb_entity or ""
        record.mode, record.url = run.mode, run.url
        self.record = record
        with self._guard("wandb.json"):
            write_record(run_folder, record)

    @property
    def every_checkpoint(self) -> bool:
        """Whether each checkpoint becomes an artifact, or only the last."""
        return self.settings.wandb_log_model == "checkpoint"

    def publish_new(self) -> None:
        """Send what came since the last call."""
        self.rows()
        with self._guard("checkpoints"):
            for step, folder in self.reader.checkpoints():
                if step not in self._seen:
                    self._seen.add(step)
                    self.samples(step)
                    if self.every_checkpoint:
                        self.artifact(folder, step, ())

    def rows(self) -> None:
        """Send the rows that came since the last call."""
        with self._guard("metrics"):
            while self.reader.look():
                self.run.log_rows(self.reader.take())

    def close(self, exit_code: int, *, final: bool) -> bool:
        """Send the rest and finish; returns whether everything went where it should.

        Args:
            exit_code: Of the training.
            final: The last checkpoint goes up with CKPT_ARTIFACT_ALIASES, when the settings say so. False for a trainer
                that was killed: `hanabi-grpo upload` does it when somebody asks.
        """
        self.publish_new()
        wanted = self.settings.upload_ckpt_to_wandb or self.settings.wandb_log_model == "end"
        with self._guard("checkpoints"):
            checkpoints = self.reader.checkpoints()
            if final and wanted and checkpoints:
                step, folder = checkpoints[-1]
                self.artifact(folder, step, self.settings.ckpt_artifact_aliases)
        self.pictures()
        return self.finish(exit_code)

    def finish(self, exit_code: int) -> bool:
        """Close the run; returns whether everything went where it should, from the start."""
        with self._guard("the end of the run"):
            self.run.finish(exit_code)
        return not self._said

    def artifact(
        self, checkpoint: Path, step: int, aliases: Sequence[str], evaluations: Sequence[Path] = ()
    ) -> Path | None:
        """Make a checkpoint an artifact; returns its folder, None after a failure."""
        with self._guard(f"the artifact of {checkpoint.name}"):
            score = running_score(self.reader.history(), step)
            names = [f"checkpoint_global_step_{step}", *aliases]
            # Of players against each other no score of their own games says who plays well.
            if self.settings.setup().spec.payoff == "team" and is_best(score, self._earlier(step)):
                names.append("best")
            found = [*find_evaluations(self.run_folder), *evaluations]
            folder, metadata = build_artifact(
                self.run_folder, checkpoint, self.settings, score, evaluations=list(dict.fromkeys(found))
            )
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
            return folder
        return None

    def samples(self, step: int) -> None:
        """Send games of the newest recorded step, as a table and as a page."""
        with self._guard("sample games"):
            recordings = self._showcase.sample_recordings(self.run_folder)
            if recordings:
                title = f"{self.run_folder.resolve().name}, {recordings[0].source}"
                page = self._showcase.replay_page(recordings, self.settings, title)
                write_text_atomic(self.run_folder / "replay.html", page)
                self.run.log_samples(
                    step,
                    self._showcase.COLUMNS,
                    self._showcase.table_rows(spread(recordings, self._showcase.NUM_GAMES)),
                    page,
                )

    def pictures(self) -> None:
        """Send the pictures of the run: score, phases, and what the alarms watch."""
        with self._guard("charts"):
            rows = self.reader.history()
            if drawn := self._showcase.draw_charts(self.run_folder, rows, self.settings):
                self.run.log_pictures(rows[-1]["step"], drawn)

    def _earlier(self, step: int) -> list[RunningScore]:
        rows = self.reader.history()
        there = [running_score(rows, other) for other, _ in self.reader.checkpoints(all_of_them=True) if other < step]
        return [*self.record.scores(), *(score for score in there if score is not None)]

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # Whatever it is: a mirror that fails must not take the rest with it.
            logger.exception("%s", what)
            if what not in self._said:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                self._trouble(f"{what} did not reach W&B ({reason})")
            self._said.add(what)
