"""The real trainer with a server that has planted faults: what the mismatch check says of each.

    python tests/faults/planted_trainer.py

runs in place of `hanabi-grpo train` and reads the same variables. `PLANT_PLAN` is a file with the
names of the faults, one on each line. The server reads the current fault from `PLANT_FILE`, and the
results are appended to `PLANT_RESULTS` as lines of JSON.

A fault is planted before a version is pushed and stays until the run would have stopped, for ten
steps at most. Then the evidence of these steps is withdrawn, and a few sound steps follow, so that
the next fault meets the same run as if it were alone. Everything else is the training loop of the
package.
"""

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import ParityError
from hanabi_grpo.training.main import import_parts

STEPS = 10
"""Most steps of a fault."""
SOUND_STEPS = 2
"""Sound steps after a fault."""
FIRST_SOUND_STEPS = 6
"""Sound steps before the first fault."""


class Plan:
    """Which fault is planted, and what the checks said about it."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._faults = Path(os.environ["PLANT_PLAN"]).read_text().split()
        self._file = Path(os.environ["PLANT_FILE"])
        self._results = Path(os.environ["PLANT_RESULTS"])
        self._fault = "none"
        self._num_steps_left = int(os.environ.get("PLANT_FIRST", FIRST_SOUND_STEPS))
        self._before: Any = None
        self._said: dict[str, Any] = {}

    @property
    def is_done(self) -> bool:
        return self._fault == "none" and not self._num_steps_left and not self._faults

    def begin_step(self) -> None:
        """Plant what is due before the version of a step is pushed."""
        if self._num_steps_left:
            return
        if self._fault == "none" and self._faults:
            self._fault = self._faults.pop(0)
            self._num_steps_left = STEPS
            self._before = copy.deepcopy(dict(self._run.state.mismatch))
            self._said = {
                "fault": self._fault,
                "first_step": self._run.state.step,
                "incident_at": None,
                "incidents": [],
                "stop_at": None,
                "stop": "",
                "metrics": [],
            }
        elif self._fault != "none":
            self._end_fault()
        self._file.write_text(self._fault)

    def incident(self, kind: str, message: str) -> None:
        if self._fault == "none":
            if kind.startswith("mismatch"):
                self._write({"fault": "none", "incidents": [[kind, message]]})
            return
        if self._said["incident_at"] is None:
            self._said["incident_at"] = self._step_of_fault
        self._said["incidents"].append([self._step_of_fault, kind, message])

    def stop(self, message: str) -> None:
        """Note that the run would have ended here."""
        if self._fault == "none":
            self._write({"fault": "none", "stop": message})
            return
        if self._said["stop_at"] is None:
            self._said["stop_at"] = self._step_of_fault
            self._said["stop"] = message
        self._num_steps_left = 1

    def end_step(self, metrics: dict[str, float]) -> None:
        kept = {}
        for name, value in metrics.items():
            if "parity" in name or "repeated" in name or name in ("time/mismatch", "step_time"):
                kept[name] = value
        if self._fault == "none":
            scores = {}
            for key, steps in self._run.state.mismatch.items():
                if len(steps[-1]) == 4 and steps[-1][1] > 0:
                    toward, squares, away, away_squares = steps[-1]
                    scores[key] = [toward / squares**0.5, away / away_squares**0.5]
            self._write({"fault": "none", "sound": kept, "scores": scores})
        else:
            self._said["metrics"].append(kept)
        self._num_steps_left -= 1

    @property
    def _step_of_fault(self) -> int:
        return self._run.state.step - self._said["first_step"] + 1

    def _end_fault(self) -> None:
        self._write(self._said)
        # What the fault left behind would speak against the next one's steps.
        self._run.state = self._run.state.__class__(
            **{
                **{name: getattr(self._run.state, name) for name in self._run.state.__slots__},
                "mismatch": self._before,
            }
        )
        self._run._next_state = self._run.state
        self._fault = "none"
        self._num_steps_left = SOUND_STEPS

    def _write(self, line: dict[str, Any]) -> None:
        with self._results.open("a") as results:
            results.write(json.dumps(line) + "\n")


def train(run: Any) -> None:
    """Train with the package's loop; where a check would stop the run, note it and continue."""
    from hanabi_grpo.training import loop
    from hanabi_grpo.training.mismatch import TokenGaps

    plan = Plan(run)
    remaining_steps = run.remaining_steps
    check_logprobs = run.check_logprobs
    check_gap = run._mismatch.check_gap
    report = run._mismatch._report
    log = run._events.log

    def planned_steps() -> Iterator[int]:
        for step in remaining_steps():
            plan.begin_step()
            if plan.is_done:
                return
            yield step

    def noted_check(batches: Any, games: Any) -> None:
        try:
            check_logprobs(batches, games)
        except ParityError as error:
            plan.stop(str(error))

    def noted_gap(batch: Any, logprobs: Any, version: int) -> Any:
        # This check is in the middle of an update, which must be finished.
        try:
            return check_gap(batch, logprobs, version)
        except ParityError as error:
            plan.stop(str(error))
            gaps = (logprobs - batch.sampler_logprobs)[batch.reply_mask].abs()
            return TokenGaps(float(gaps.sum()), float(len(gaps)))

    def noted_report(kind: str, message: str, **details: Any) -> None:
        plan.incident(kind, message)
        report(kind, message, **details)

    def noted_log(figures: dict[str, float]) -> None:
        log(figures)
        plan.end_step(figures)

    run.remaining_steps = planned_steps
    run.check_logprobs = noted_check
    run._mismatch.check_gap = noted_gap
    run._mismatch._report = noted_report
    run._events.log = noted_log
    loop.train(run)


if __name__ == "__main__":
    for _ in import_parts():
        pass
    from hanabi_grpo.cli import app
    from hanabi_grpo.training import trainer

    trainer.train = train
    app(["train"])
