"""Validation during training: the current players play held-out tasks.

The curves of `client.curves` define the tasks and the other players. One curve selects the best
version, stops a run early and ends phases; the others are only measured. All decisions are a
function of the validations up to a version, so a resumed run decides the same as an uninterrupted
one.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hanabi_grpo.client.curves import Curve
from hanabi_grpo.runs.validation import (
    TRAINING_CURVE,
    Validated,
    best_of,
    choosing,
    read_validations,
    write_validations,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.steps import trained_players
from hanabi_grpo.training.groups import flatten_groups
from hanabi_grpo.training.metrics import score_figures
from hanabi_grpo.training.phases import Phase, phase_after
from hanabi_grpo.types import Episode

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decisions for the step that a version plays, from the validations up to that version."""

    active_players: tuple[str, ...]
    """The players that learn."""
    ends_run: bool = False
    """Whether the step is the last one."""
    is_phase_best: bool = False
    """Whether the version is the best of its phase (HANABI_UPDATE=best_response)."""
    finished_player: str | None = None
    """The player that returns to its best version in this step, because its phase is over. Then
    nothing is played, and nobody learns."""


class Validation:
    """The validations of one run, stored in its folder; only the main process validates."""

    def __init__(
        self, settings: Settings, run_folder: Path, curves: Sequence[Curve], first_step: int
    ) -> None:
        """Read a resumed run's validations; those after its first step are repeated.

        Args:
            settings: The run's settings, for HANABI_EVAL_* and HANABI_UPDATE.
            run_folder: Where `validation.json` is.
            curves: The curves to validate on, see `client.curves`; empty without HANABI_EVAL_STEPS.
            first_step: Number of steps finished before this process started.
        """
        self._settings = settings
        self._run_folder = run_folder
        self.curves = tuple(curves)
        chosen = {curve.name: curve.chooses for curve in curves}
        self.rows = []
        """Rows of all curves by step; the first row of a step is that of the deciding curve."""
        for row in read_validations(run_folder):
            if row.step <= first_step:
                # HANABI_EVAL_BEST may have changed.
                chooses = chosen.get(row.curve, False) if chosen else row.chooses
                self.rows.append(replace(row, chooses=chooses))
        self._repeated_step = first_step or None
        """The version that the resumed run begins with, until it is validated again: its figures
        are in the row of the step after it, which was moved aside."""
        self._is_written = True
        """Whether `validation.json` has all rows."""

    def is_due(self, step: int) -> bool:
        """Tell whether the version after this many steps is to be validated."""
        every = self._settings.eval_steps
        if not every or step % every or self._is_return(step):
            return False
        if step == self._repeated_step:
            return True
        return all(row.step != step for row in choosing(self.rows))

    def _is_return(self, step: int) -> bool:
        """Tell whether a version is the return to a player's best one, in which nobody learned."""
        before = [row for row in self.rows if row.step < step]
        rows = choosing(before)
        if not rows or rows[-1].step != step - 1:
            return False
        phase = self._phase_after(before)
        return phase is not None and phase.finished_player is not None

    def add(
        self,
        step: int,
        groups_by_curve: Mapping[str, Sequence[Sequence[Episode]]],
        own: Sequence[str],
    ) -> Mapping[str, float]:
        """Add the games of a validation; returns its metrics.

        The rows of a step are written together. A run that dies before that validates the version
        again on every curve.

        Args:
            step: The version that played, which is the number of finished steps.
            groups_by_curve: The games of each curve, per task, by the curve's name.
            own: Per seat, the run's own adapter at this version, e.g. "player_0@7".
        """
        before = self.phase
        metrics: dict[str, float] = {}
        rows = []
        for curve in self.curves:
            episodes = flatten_groups(groups_by_curve[curve.name])
            setups = {setup.spec.hash: setup for setup in curve.setups}
            figures = score_figures(episodes, setups, own if curve.has_opponents else ())
            row = _row(curve, step, figures)
            if row is None:
                continue
            rows.append(row)
            prefix = "validation/"
            if curve.name != TRAINING_CURVE:
                prefix += f"{curve.name}/"
            for name, value in figures.items():
                if name.startswith("score/"):
                    metrics[f"{prefix}{name}"] = value
        if not any(row.chooses for row in rows):
            return metrics
        # If the deciding curve could not be measured earlier, the other curves' rows are replaced.
        self.rows = [row for row in self.rows if row.step != step]
        self.rows += rows
        if step == self._repeated_step:
            self._repeated_step = None
        self._is_written = False
        self.write()
        metrics["validation/stale"] = float(self.stale)
        phase = self.phase
        if before is not None and phase is not None:
            metrics["validation/phase"] = float(phase.number)
            if phase.number > before.number:
                logger.info(
                    "phase %d: now training %s; the team starts from %s",
                    phase.number,
                    phase.player,
                    self.best,
                )
        return metrics

    def write(self) -> None:
        """Write what `validation.json` does not have yet.

        If the disk is full, the rows stay in memory until the next validation or checkpoint writes
        them.
        """
        if self._is_written:
            return
        try:
            write_validations(self._run_folder, self.rows)
        except OSError as error:
            logger.warning(
                "validation.json could not be written (%s): its rows are kept in memory and "
                "written with the next checkpoint; free disk space for %s",
                error.strerror,
                self._run_folder,
            )
        else:
            self._is_written = True

    @property
    def best(self) -> Validated | None:
        """The best version; None before the first validation."""
        return best_of(self.rows)

    @property
    def stale(self) -> int:
        """Number of validations since the best one of the run, or of the phase."""
        phase = self.phase
        return _num_stale(self.rows) if phase is None else phase.stale

    @property
    def phase(self) -> Phase | None:
        """The current phase with HANABI_UPDATE=best_response; None otherwise."""
        return self._phase_after(self.rows)

    def _phase_after(self, rows: Sequence[Validated]) -> Phase | None:
        """Return the phase that follows from these validations; see `phase`."""
        if self._settings.update != "best_response":
            return None
        players = trained_players(self._settings)
        return phase_after(choosing(rows), players, self._settings.eval_patience)

    def verdict(self, step: int) -> Verdict:
        """Return the decisions for the step that the version of `step` plays."""
        phase = self.phase
        rows = choosing(self.rows)
        is_validated = bool(rows) and rows[-1].step == step
        if phase is None:
            return Verdict(
                active_players=trained_players(self._settings),
                ends_run=is_validated and self._ends_without_phases(step),
            )
        ends_run = is_validated and phase.ends_run
        if ends_run:
            logger.info(
                "a full round of players found no version better than %s: the run ends "
                "after step %d",
                self.best,
                step + 1,
            )
        return Verdict(
            active_players=(phase.player,),
            ends_run=ends_run,
            is_phase_best=is_validated and phase.is_best,
            finished_player=phase.finished_player if is_validated else None,
        )

    def ended_at(self, step: int) -> bool:
        """Return whether the run ended with this step because of its last validation.

        A run that is resumed then has nothing left to train.
        """
        # The version of a step is validated before the step is made, and the last one afterwards.
        before = [row for row in self.rows if row.step < step]
        rows = choosing(before)
        if not rows or rows[-1].step != step - 1:
            return False
        phase = self._phase_after(before)
        has_ended = self._is_out_of_patience(before) if phase is None else phase.ends_run
        if not has_ended:
            return False
        logger.info(
            "the run ended at step %d, because no version is better than %s; to go on, raise "
            "HANABI_EVAL_PATIENCE",
            step,
            self.best,
        )
        return True

    def _is_out_of_patience(self, rows: Sequence[Validated]) -> bool:
        patience = self._settings.eval_patience
        return bool(patience) and _num_stale(rows) >= patience

    def _ends_without_phases(self, step: int) -> bool:
        if not self._is_out_of_patience(self.rows):
            return False
        logger.info("no version is better than %s: the run ends after step %d", self.best, step + 1)
        return True


def _num_stale(rows: Sequence[Validated]) -> int:
    """Return the number of validations since the best one."""
    best = best_of(rows)
    if best is None:
        return 0
    deciding = choosing(rows)
    newest = len(deciding) - 1
    return newest - deciding.index(best)


def _row(curve: Curve, step: int, figures: Mapping[str, float]) -> Validated | None:
    """Return a curve's row of `validation.json`; None if too few games were played."""
    metric = "score/mean"
    error = "score/se"
    if len({setup.spec.hash for setup in curve.setups}) > 1:
        # Scores of different games cannot be averaged; shares of the greatest score can.
        metric = "score/normalized"
        error = "score/normalized_se"
    if metric not in figures or error not in figures:
        return None
    return Validated(
        step=step,
        score=figures[metric],
        se=figures[error],
        metric=metric,
        curve=curve.name,
        chooses=curve.chooses,
        has_opponents=curve.has_opponents,
    )
