"""Publish a run folder to an open run at W&B: rows, sample games, artifacts.

A failure of one of them does not stop the others. What did not reach W&B, because of a failure or
because all processes were killed, is sent by the next process that publishes the run.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.files import MAX_METRICS_BYTES, read_bytes, write_text_atomic
from hanabi_grpo.runs.history import read_history, read_row
from hanabi_grpo.runs.manifest import checkpoints_of
from hanabi_grpo.runs.restored_run import restored_step
from hanabi_grpo.runs.validation import best_of, choosing, read_validations
from hanabi_grpo.settings import Settings
from hanabi_grpo.tracking.artifact import artifact_name, build_artifact
from hanabi_grpo.tracking.file_monitor import METRICS
from hanabi_grpo.tracking.interval import FIELDS_OF_LAST_STEP, Interval
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

BEST = "best"
"""Alias of the best artifact."""
REPLAY = "replay.html"
LOGS = ("train.log", "server.log")
"""Files of the run folder that are uploaded to W&B when the run ends."""

_START = 0
"""Step of the initial adapters."""
_ROWS = "metrics"
"""Kind of failure of the rows, for messages."""
_ARRIVAL_SECONDS = 60.0
"""Time after which a row counts as sent: W&B's own process collects rows for some seconds."""

GamesPage = Callable[[Path, Settings], str]
"""Renders a page of a run folder's recorded games; empty if there are none."""


@dataclass
class Publisher:
    """Publishes what W&B does not have yet of one run folder."""

    run: WandbRun
    """The open run at W&B."""
    record: WandbRecord
    """The run folder's record of that run."""
    settings: Settings
    """WANDB_LOG_MODEL, UPLOAD_CKPT_TO_WANDB, LOGGING_STEPS and the artifact's name and aliases are
    used."""
    run_folder: Path
    """The folder to publish."""
    from_step: int
    """Step that the trainer continues from. Up to this step, only what the record does not list as
    sent is published."""
    games_page: GamesPage
    """`report.games.newest_games_page`, which is in a layer above this package."""
    trouble: Callable[[str], None]
    """Receives one sentence for the first failure of each kind."""

    def __post_init__(self) -> None:
        """Record the run in the run folder."""
        self._metrics_file = self.run_folder / METRICS
        self._read_bytes = 0
        """Position in the metrics file after the last row that was sent."""
        self._interval = Interval(self.settings.logging_steps)
        self._failed: set[str] = set()
        """Kinds of failures so far, for `_guard`."""
        self._published: set[int] = set()
        """Steps of the checkpoints that were published."""
        self._logged: set[int] = set()
        """Steps of the artifacts that this process handed to W&B's library."""
        self._handed: deque[tuple[float, int]] = deque()
        """Time and step of the rows that this process handed to W&B's library, without those that
        have arrived."""
        for artifact in self.record.artifacts:
            if artifact.step > self.from_step:
                # The trainer makes this checkpoint again.
                artifact.is_sent = False
        self._arrived = {item.step for item in self.record.artifacts if item.is_sent}
        """Steps of the artifacts that W&B had before this process."""
        self._restored_step: int | None = None
        """Step of the artifact that the run was restored from."""
        with self._guard("restored.json"):
            self._restored_step = restored_step(self.run_folder)
        self._sent_step = self.from_step
        """W&B had the rows up to this step before this process."""
        if self.record.sent_step is not None:
            self._sent_step = min(self.from_step, self.record.sent_step)
        self.record.project = self.settings.wandb_project
        self.record.entity = self.settings.wandb_entity or ""
        self.record.mode = self.run.mode
        self.record.url = self.run.url
        self.record.sent_step = self._sent_step
        self.record.is_complete = False
        with self._guard("wandb.json"):
            write_record(self.run_folder, self.record)

    def publish_new(self, *, everything: bool = False) -> None:
        """Send what is new since the last call.

        Args:
            everything: Also send a checkpoint whose validation is not finished.
        """
        with self._guard(_ROWS):
            rows = self._new_rows()
            self._interval.resume(self._sent_step, rows)
            for row in rows:
                if row["step"] <= self._sent_step:
                    continue
                figures = self._interval.add(row["step"], row)
                if figures is not None:
                    of_last_step = {name: row.get(name) for name in FIELDS_OF_LAST_STEP}
                    self._log_row(figures | of_last_step)
            if everything:
                self._log_rest()
        with self._guard("wandb.json"):
            self._note_rows()
        with self._guard("checkpoints"):
            checkpoints = self._new_checkpoints()
            # W&B gives `latest` to the version uploaded last, so an earlier version cannot get an
            # alias later: a checkpoint waits for its validation, which may make it the best.
            awaited = None
            if checkpoints and not everything:
                awaited = self._awaited_step(max(checkpoints))
            for step, folder in checkpoints.items():
                if step not in self._published and step != awaited:
                    self._published.add(step)
                    # The page has the newest games, which are not those of an earlier checkpoint.
                    if step > self.from_step or step == max(checkpoints):
                        self.samples(step)
                    if self.settings.wandb_log_model == "checkpoint":
                        self.artifact(folder, step, ())

    def _log_rest(self) -> None:
        """Send the steps after the last whole interval of LOGGING_STEPS."""
        rest = self._interval.take_rest()
        if rest is not None:
            step, figures = rest
            figures.pop("seconds", None)
            self._log_row(figures | {"step": step})

    def _log_row(self, row: dict[str, Any]) -> None:
        self.run.log_row(row)
        self._handed.append((time.monotonic(), row["step"]))

    def _note_rows(self, *, everything: bool = False) -> None:
        """Record the rows that W&B has.

        After a failure no further rows are recorded, because some before them may be missing.

        Args:
            everything: All rows have arrived, not only those that were handed to W&B's library long
                enough ago.
        """
        latest = time.monotonic() - _ARRIVAL_SECONDS
        sent_step = self.record.sent_step
        while self._handed and _ROWS not in self._failed:
            handed_at, step = self._handed[0]
            if handed_at > latest and not everything:
                break
            self._handed.popleft()
            sent_step = step
        if sent_step != self.record.sent_step:
            self.record.sent_step = sent_step
            write_record(self.run_folder, self.record)

    def close(self, exit_code: int) -> bool:
        """Send the rest and finish.

        If the settings request it, the newest checkpoint is uploaded with CKPT_ARTIFACT_ALIASES.

        Returns:
            Whether everything was sent.
        """
        self.publish_new(everything=True)
        settings = self.settings
        with self._guard("checkpoints"):
            checkpoints = checkpoints_of(self.run_folder)
            is_wanted = settings.upload_ckpt_to_wandb or settings.wandb_log_model == "end"
            if is_wanted and checkpoints:
                step = max(checkpoints)
                if not self._had_final(step):
                    self._publish_final(checkpoints[step], step)
        with self._guard("the last validation"):
            self._send_last_validation()
        with self._guard("the logs"):
            self.run.save_files(self.run_folder, LOGS)
        with self._guard("the end of the run"):
            self.run.finish(exit_code)
            self._note_end()
        return not self._failed

    def _note_end(self) -> None:
        """Record that what was handed to W&B's library has arrived, which `finish` waits for."""
        self._note_rows(everything=True)
        for artifact in self.record.artifacts:
            if artifact.step in self._logged:
                artifact.is_sent = True
        self.record.is_complete = not self._failed
        write_record(self.run_folder, self.record)

    def _had_final(self, step: int) -> bool:
        """Tell whether W&B had a checkpoint with CKPT_ARTIFACT_ALIASES before this process."""
        if step == self._restored_step:
            return True
        if step not in self._arrived:
            return False
        aliases: set[str] = set()
        for artifact in self.record.artifacts:
            if artifact.step == step:
                aliases.update(artifact.aliases)
        return aliases.issuperset(self.settings.ckpt_artifact_aliases)

    def _publish_final(self, newest: Path, step: int) -> None:
        """Send the newest checkpoint.

        The checkpoint that validation chose is sent first, unless W&B already has it as `best`.
        """
        with self._guard("validation"):
            chosen = self._chosen_step()
            checkpoints = checkpoints_of(self.run_folder)
            known = []
            for artifact in self.record.artifacts:
                is_there = artifact.is_sent or artifact.step in self._logged
                if is_there and BEST in artifact.aliases and artifact.mode == self.run.mode:
                    known.append(artifact.step)
            if chosen in checkpoints and chosen not in (step, *known):
                self.artifact(checkpoints[chosen], chosen, ())
        self.artifact(newest, step, self.settings.ckpt_artifact_aliases)

    def _send_last_validation(self) -> None:
        """Send the validation of the version after the last step, which is in no row."""
        steps = [row["step"] for row in read_history(self._metrics_file)]
        last_step = max(steps, default=0)
        scores = {}
        for validation in read_validations(self.run_folder):
            if validation.step == last_step:
                scores[validation.metric_name] = validation.score
        if scores:
            self.run.log_row({"step": last_step, **scores})

    def artifact(self, checkpoint: Path, step: int, aliases: Sequence[str]) -> None:
        """Upload a checkpoint as an artifact.

        Args:
            checkpoint: Its folder.
            step: Its step.
            aliases: Aliases besides checkpoint_global_step_N and `best`.
        """
        with self._guard(f"the artifact of {checkpoint.name}"):
            rows = read_history(self._metrics_file)
            score = running_score(rows, step)
            earlier: list[RunningScore | None] = [*self.record.scores()]
            for other in checkpoints_of(self.run_folder):
                if other < step:
                    earlier.append(running_score(rows, other))
            all_aliases = [f"checkpoint_global_step_{step}", *aliases]
            if self._is_best(step, score, earlier):
                all_aliases.append(BEST)
            folder, metadata = build_artifact(self.run_folder, checkpoint, self.settings, score)
            name = artifact_name(self.settings, self.run_folder)
            self.run.log_artifact(folder, name, all_aliases, metadata)
            self._logged.add(step)
            self.record.add(
                ArtifactRecord(
                    step=step,
                    name=name,
                    aliases=list(dict.fromkeys(all_aliases)),
                    folder=folder.relative_to(self.run_folder).as_posix(),
                    mode=self.run.mode,
                    score=score.mean if score else None,
                    standard_error=score.standard_error if score else None,
                    score_steps=score.num_steps if score else 0,
                    is_sent=False,
                )
            )
            write_record(self.run_folder, self.record)

    def samples(self, step: int) -> None:
        """Send the games of the newest recorded step as a page."""
        with self._guard("sample games"):
            page = self.games_page(self.run_folder, self.settings)
            if page:
                write_text_atomic(self.run_folder / REPLAY, page)
                self.run.log_samples(step, page)

    def _is_best(
        self, step: int, score: RunningScore | None, earlier: Sequence[RunningScore | None]
    ) -> bool:
        """Tell whether a checkpoint is the best so far, by validation if there is any."""
        if self.settings.eval_steps:
            return self._chosen_step() == step
        return self._has_common_score and is_best(score, earlier)

    @property
    def _has_common_score(self) -> bool:
        # When players compete with each other, the score of their own games does not show how well
        # they play.
        return self.settings.setup().spec.has_common_score

    def _chosen_step(self) -> int:
        """Return the step of the best version in validation; 0: none, or the initial adapters."""
        if not self.settings.eval_steps:
            return _START
        best = best_of(read_validations(self.run_folder))
        if best is None or not (self._has_common_score or best.has_opponents):
            return _START
        return best.step

    def _awaited_step(self, newest: int) -> int | None:
        """Return the newest checkpoint's step while its validation is unfinished, else None."""
        if not self.settings.eval_steps or newest % self.settings.eval_steps:
            return None
        validations = read_validations(self.run_folder)
        is_validated = any(row.step == newest for row in choosing(validations))
        return None if is_validated else newest

    def _new_rows(self) -> list[dict[str, Any]]:
        """Return the rows that were written since the last call; at first, also earlier ones.

        Raises an OSError.
        """
        try:
            data = read_bytes(self._metrics_file, MAX_METRICS_BYTES, start=self._read_bytes)
        except FileNotFoundError:
            return []
        # A line without an end is still being written.
        end = data.rfind(b"\n") + 1
        self._read_bytes += end
        rows = []
        for line in data[:end].splitlines():
            row = read_row(line)
            if row:
                rows.append(row)
        return rows

    def _new_checkpoints(self) -> dict[int, Path]:
        """Return the checkpoints that W&B did not have before this process."""
        known = {*self._arrived, self._restored_step}
        checkpoints = {}
        for step, folder in checkpoints_of(self.run_folder).items():
            if step not in known:
                checkpoints[step] = folder
        return checkpoints

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """Keep a failure in the block from stopping the rest; report the first of its kind."""
        try:
            yield
        except Exception as error:
            logger.exception("%s", what)
            if what not in self._failed:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                self.trouble(f"{what} did not reach W&B ({reason})")
            self._failed.add(what)
