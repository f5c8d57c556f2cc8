"""Validation while training: the current players on tasks that nothing else plays.

The tasks are those of a suite of their own, so that the suite `test` stays untouched by every
choice. All that follows from a validation is a function of the validations up to a version, so that
a resumed run does what the whole run would have done.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.runs.validation import Validated, best_of, read_validations, write_validations
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.steps import trained_players
from hanabi_grpo.training.groups import flatten_groups
from hanabi_grpo.training.metrics import score_figures
from hanabi_grpo.training.phases import Phase, phase_after
from hanabi_grpo.types import Episode

logger = logging.getLogger(__name__)

SUITE = "eval-validation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the validations up to a version say of the step that this version plays."""

    active_players: tuple[str, ...]
    """Whose data counts."""
    ends_run: bool = False
    """Whether the step is the last one."""
    is_phase_best: bool = False
    """Whether the version is the best of its phase (HANABI_UPDATE=best_response)."""
    finished_player: str | None = None
    """Who returns to its best version behind this step, because its phase is over."""


class Validation:
    """The validations of one run, in its folder; the main process makes them."""

    def __init__(
        self, settings: Settings, run_folder: Path, setups: Sequence[Setup[Any]], first_step: int
    ) -> None:
        """Read what a resumed run did; what came after its first step is made again.

        Args:
            settings: The run's, for HANABI_EVAL_* and HANABI_UPDATE.
            run_folder: Where `validation.json` is.
            setups: The games that are trained on.
            first_step: Steps that were made before this process.
        """
        self._settings = settings
        self._run_folder = run_folder
        self._setups = {setup.spec.hash: setup for setup in setups}
        self.rows = [row for row in read_validations(run_folder) if row.step <= first_step]

    def is_due(self, step: int) -> bool:
        """Tell whether the version behind so many steps is to be validated."""
        every = self._settings.eval_steps
        if not every or step % every:
            return False
        return all(row.step != step for row in self.rows)

    def tasks(self) -> list[TaskRow]:
        """Return the tasks, the same at every validation: as many of each game as of the others."""
        setups = list(self._setups.values())
        per_setup = math.ceil(self._settings.eval_tasks / len(setups))
        tasks: list[TaskRow] = []
        for setup in setups:
            row = setup.row()
            for seed in range(per_setup):
                tasks.append(
                    TaskRow(
                        messages=(),
                        env=row["env"],
                        env_config=row["env_config"],
                        suite=SUITE,
                        seed=seed,
                        number=len(tasks),
                    )
                )
        return tasks

    def add(self, step: int, groups: Sequence[Sequence[Episode]]) -> Mapping[str, float]:
        """Take the games of a validation; returns its metrics.

        Args:
            step: The version that played: finished steps.
            groups: Per task its game.
        """
        figures = score_figures(flatten_groups(groups), self._setups)
        metric = "score/mean"
        error = "score/se"
        if len(self._setups) > 1:
            # Scores of different games have no common mean; shares of the greatest score do.
            metric = "score/normalized"
            error = "score/normalized_se"
        if metric not in figures or error not in figures:
            return {}
        before = self.phase
        row = Validated(step=step, score=figures[metric], se=figures[error], metric=metric)
        self.rows.append(row)
        write_validations(self._run_folder, self.rows)
        metrics = {}
        for name, value in figures.items():
            if name.startswith("score/"):
                metrics[f"validation/{name}"] = value
        metrics["validation/stale"] = float(self.stale)
        phase = self.phase
        if before is not None and phase is not None:
            metrics["validation/phase"] = float(phase.number)
            if phase.number > before.number:
                logger.info(
                    "phase %d: %s is trained now; the team has %s",
                    phase.number,
                    phase.player,
                    self.best,
                )
        return metrics

    @property
    def best(self) -> Validated | None:
        """The version that did best; None before the first validation."""
        return best_of(self.rows)

    @property
    def stale(self) -> int:
        """Validations since the best one: of the run, or of the phase."""
        phase = self.phase
        if phase is not None:
            return phase.stale
        best = self.best
        if best is None:
            return 0
        newest = len(self.rows) - 1
        return newest - self.rows.index(best)

    @property
    def phase(self) -> Phase | None:
        """Who is trained now with HANABI_UPDATE=best_response; None with any other."""
        if self._settings.update != "best_response":
            return None
        return phase_after(self.rows, trained_players(self._settings), self._settings.eval_patience)

    def verdict(self, step: int) -> Verdict:
        """Return what the validations say of the step that the version of `step` plays."""
        phase = self.phase
        is_validated = bool(self.rows) and self.rows[-1].step == step
        if phase is None:
            return Verdict(
                active_players=trained_players(self._settings),
                ends_run=is_validated and self._ends_without_phases(step),
            )
        ends_run = is_validated and phase.ends_run
        if ends_run:
            logger.info(
                "a whole round of players brought no version that is better than %s: the run ends "
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

    def _ends_without_phases(self, step: int) -> bool:
        patience = self._settings.eval_patience
        if not patience or self.stale < patience:
            return False
        logger.info("no version is better than %s: the run ends after step %d", self.best, step + 1)
        return True
