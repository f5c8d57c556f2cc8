"""Validation while training: the current players on deals that nothing else plays, and which version did best.

The deals are those of a suite of their own, so that the suite `test` stays untouched by every choice. A version that is
validated is a checkpoint too: the best one is kept, whatever SAVE_TOTAL_LIMIT says.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.runs.run_folder import write_text_atomic
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.metrics import score_figures
from hanabi_grpo.types import Episode

SUITE = "eval-validation"
FILE = "validation.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """How one version did."""

    step: int
    score: float
    """Mean over deals, one game each; over several presets of score / greatest score."""
    se: float
    """Its standard error over deals."""


class Validation:
    """The validations of one run, in its folder."""

    def __init__(self, settings: Settings, run_folder: Path, setups: Sequence[Setup[Any]], first_step: int) -> None:
        """Read what a resumed run did up to `first_step`; what came after it is made again."""
        self._settings, self._path = settings, run_folder / FILE
        self._setups = {one.spec.hash: one for one in setups}
        rows = json.loads(self._path.read_text(encoding="utf-8")) if self._path.is_file() else []
        self.rows = [Validated(**row) for row in rows if row["step"] <= first_step]

    def is_due(self, step: int) -> bool:
        """Tell whether the version after so many steps is to be validated."""
        every = self._settings.eval_steps
        return bool(every) and step % every == 0 and all(row.step != step for row in self.rows)

    def deals(self) -> list[dict[str, Any]]:
        """Return the deals, the same at every validation: as many of each game that is trained on."""
        setups = list(self._setups.values())
        numbers = range(-(-self._settings.eval_deals // len(setups)))
        return [{**setup.row(), "suite": SUITE, "seed": number} for setup in setups for number in numbers]

    def add(self, step: int, groups: Sequence[Sequence[Episode]]) -> Mapping[str, float]:
        """Take the games of a validation; returns its metrics."""
        figures = score_figures([game for group in groups for game in group], self._setups)
        name = "score/mean" if len(self._setups) == 1 else "score/normalized"
        if name not in figures or "score/se" not in figures:
            return {}
        self.rows.append(Validated(step=step, score=figures[name], se=figures["score/se"]))
        write_text_atomic(self._path, json.dumps([asdict(row) for row in self.rows], indent=1))
        scores = {f"validation/{key}": value for key, value in figures.items() if key.startswith("score/")}
        return scores | {"validation/stale": float(self.stale)}

    @property
    def best(self) -> Validated | None:
        """The first of those with the greatest score; None before the first validation."""
        return max(self.rows, key=lambda row: row.score, default=None)

    @property
    def stale(self) -> int:
        """Validations since the best one."""
        return len(self.rows) - 1 - self.rows.index(self.best) if self.best else 0
