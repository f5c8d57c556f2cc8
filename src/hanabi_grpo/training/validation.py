"""Validation while training: the current players on tasks that nothing else plays, and what follows
from how they did.

The tasks are those of a suite of their own, so that the suite `test` stays untouched by every
choice. All that follows is a function of the validations up to a version, so that a resumed run
does what the whole run would have done."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.runs.validation import Validated, best_of, read_validations, write_validations
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.steps import trained_players
from hanabi_grpo.training.metrics import score_figures
from hanabi_grpo.training.phases import Phase, phase_after
from hanabi_grpo.types import Episode

logger = logging.getLogger(__name__)

SUITE = "eval-validation"


class Validation:
    """The validations of one run, in its folder; the main process makes them."""

    def __init__(
        self, settings: Settings, run_folder: Path, setups: Sequence[Setup[Any]], first_step: int
    ) -> None:
        """Read what a resumed run did up to `first_step`; what came after it is made again."""
        self._settings, self._run_folder = settings, run_folder
        self._setups = {one.spec.hash: one for one in setups}
        self.rows = [row for row in read_validations(run_folder) if row.step <= first_step]

    def is_due(self, step: int) -> bool:
        """Tell whether the version after so many steps is to be validated."""
        every = self._settings.eval_steps
        return bool(every) and step % every == 0 and all(row.step != step for row in self.rows)

    def tasks(self) -> list[dict[str, Any]]:
        """Return the tasks, the same at every validation: as many of each game that is trained
        on.
        """
        setups = list(self._setups.values())
        numbers = range(-(-self._settings.eval_tasks // len(setups)))
        return [
            {**setup.row(), "suite": SUITE, "seed": number}
            for setup in setups
            for number in numbers
        ]

    def add(self, step: int, groups: Sequence[Sequence[Episode]]) -> Mapping[str, float]:
        """Take the games of a validation; returns its metrics."""
        figures = score_figures([game for group in groups for game in group], self._setups)
        metric, se = ("score/mean", "score/se")
        if len(self._setups) > 1:
            metric, se = ("score/normalized", "score/normalized_se")
        if metric not in figures or se not in figures:
            return {}
        before = self.phase
        self.rows.append(Validated(step=step, score=figures[metric], se=figures[se], metric=metric))
        write_validations(self._run_folder, self.rows)
        found = {
            f"validation/{key}": value for key, value in figures.items() if key.startswith("score/")
        }
        found["validation/stale"] = float(self.stale)
        if before is not None and (phase := self.phase) is not None:
            found["validation/phase"] = float(phase.number)
            if phase.number > before.number:
                logger.info(
                    "phase %d: %s is trained now; the team has %s",
                    phase.number,
                    phase.player,
                    self.rows[-1],
                )
        return found

    @property
    def best(self) -> Validated | None:
        """The version that did best; None before the first validation."""
        return best_of(self.rows)

    @property
    def stale(self) -> int:
        """Validations since the best one: of the run, or of the phase."""
        if (phase := self.phase) is not None:
            return phase.stale
        return len(self.rows) - 1 - self.rows.index(self.best) if self.best else 0

    @property
    def phase(self) -> Phase | None:
        """Who is trained now with HANABI_UPDATE=best_response; None with any other."""
        if self._settings.update != "best_response":
            return None
        return phase_after(self.rows, trained_players(self._settings), self._settings.eval_patience)

    @property
    def active(self) -> tuple[str, ...]:
        """The players whose data counts in the step behind the last validation."""
        return trained_players(self._settings) if (phase := self.phase) is None else (phase.player,)

    def ends_run(self, step: int) -> bool:
        """Tell whether the validation of a version says that the step after it is the last one."""
        if not self.rows or self.rows[-1].step != step or not self._settings.eval_patience:
            return False
        phase = self.phase
        ends = self.stale >= self._settings.eval_patience if phase is None else phase.ends_run
        if ends:
            who = (
                "no version"
                if phase is None
                else "a whole round of players brought no version that"
            )
            logger.info(
                "%s is better than %s: the run ends after step %d", who, self.best, step + 1
            )
        return ends
