"""What is known about one run: steps, evaluations and alarms; for the terminal, the page and the pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import paired_difference
from hanabi_grpo.evaluation.sheets import Sheet
from hanabi_grpo.evaluation.tables import evaluation_document, shortfall
from hanabi_grpo.report.charts.run import Point, RunPictures
from hanabi_grpo.report.run_views.evaluations import SameDeals, evaluation_tables, evaluations_by_deals, trained_steps
from hanabi_grpo.report.run_views.run_watch import read_run
from hanabi_grpo.report.run_views.state import RunState
from hanabi_grpo.runs.run_folder import run_home


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run, read once."""

    folder: Path
    """As typed."""
    state: RunState
    evaluations: Sequence[SameDeals]
    """Those of the longest training first."""
    sheets: Sequence[Sheet]
    """Tables of the evaluations."""
    notes: Sequence[str]
    """What could not be read."""

    @property
    def lead(self) -> str:
        """The result in one line, e.g. "held-out 1.10 → 2.27 of 4; hint-bot 2.63; attainable 3.78"; "": none."""
        if not self.evaluations:
            return ""
        first = self.evaluations[0]
        levels = [f"{visible(name)} {mean:.2f}" for name, mean in first.levels.items()]
        return "; ".join([f"held-out {first.lead}", *levels])

    @property
    def pictures(self) -> RunPictures:
        """The run as it is drawn."""
        first = self.evaluations[0] if self.evaluations else None
        results = first.of_last_temperature if first else []
        last = self.state.step
        return RunPictures(
            title=f"{self.state.name}: {len(self.state.rows)} steps",
            rows=self.state.rows,
            settings=self.state.settings,
            levels={visible(name): mean for name, mean in first.levels.items()} if first else {},
            points=[
                Point(step=min(trained_steps(one), last), mean=one.mean, error=one.standard_error) for one in results
            ],
        )

    def alarm_sheet(self, most: int | None = None) -> Sheet:
        """Return the alarms as a table, or those of them that are raised or nearest to it: `most`, or all raised."""
        rows = []
        state = self.state
        for one in state.readings[: None if most is None else max(most, len(state.raised))]:
            level = "–" if one.level is None else f"{'<' if one.alarm.below else '>'} {one.level:.3g}"
            since = self.state.raised.get(one.key)
            now = "quiet" if since is None else f"since {since}"
            rows.append((one.alarm.name, visible(one.subject), one.alarm.title, f"{one.mean:.3g}", level, now))
        return Sheet(
            title=f"Alarms after step {self.state.step}, raised and nearest first",
            columns=("alarm", "of", "figure", "last 10", "raised", "now"),
            groups=[rows] if rows else [],
            num_names=3,
        )

    def shortfall(self, *, min_rise: float | None, min_sigma: float | None) -> str | None:
        """Return why the rise from the first to the last evaluation is too small; None when it is not.

        Raises:
            SettingsError: There are no two evaluations of the same deals.
        """
        results = self.evaluations[0].of_last_temperature if self.evaluations else []
        if len(results) < 2:
            raise SettingsError(
                f"{self.folder}: --min-rise and --min-sigma compare two evaluations of the same deals, and there are "
                f"{len(results)}; hanabi-grpo evaluate base --out FILE makes the one before."
            )
        found = paired_difference(results[0], results[-1])
        return shortfall(found, min_rise=min_rise, min_sigma=min_sigma)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "run": self.state.name,
            "step": self.state.step,
            "evaluations": [evaluation_document(one.results, one.references) for one in self.evaluations],
            "alarms": [
                {
                    "alarm": one.alarm.name,
                    "of": one.subject,
                    "figure": one.alarm.title,
                    "last_10": one.mean,
                    "raised_below" if one.alarm.below else "raised_above": one.level,
                    "raised_since": self.state.raised.get(one.key),
                }
                for one in self.state.readings
            ],
            "changes": [
                {name: getattr(one, name) for name in ("step", "value", "level", "message")}
                | {"alarm": one.alarm.name, "of": one.subject, "is": "raised" if one.since is None else "over"}
                for one in self.state.changes
            ],
            "notes": list(self.notes),
        }


def read_report(folder: Path, evaluations: Sequence[Path] = ()) -> RunReport:
    """Read a run folder, also of a run that is going on.

    Alarms are computed anew from the figures in `metrics.jsonl`, so a run that had other thresholds can be looked at.

    Args:
        folder: Run folder, or one that holds it as `train/`.
        evaluations: Further results of `evaluate --out`.

    Raises:
        SettingsError: There is no run, or it has no step.
    """
    state = read_run(folder)
    found, problems = evaluations_by_deals(run_home(folder), evaluations)
    sheets, others = evaluation_tables(found)
    return RunReport(
        folder=folder,
        state=state,
        evaluations=found,
        sheets=sheets,
        notes=[*state.notes, *problems, *others],
    )
