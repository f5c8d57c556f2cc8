"""Fault injection: each test breaks something on purpose, a number of times, and says what survived
and what was lost.

`FAULTS=long` (set by tools/fault_injection.sh) runs each as often as its long form says; without it
the short form runs. The table of all stands at the end of pytest's output, and in the file that
`FAULTS_OUT` names. Rows travel on test reports, so that they arrive from the processes that ran the
tests."""

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_rows: list[dict[str, Any]] = []


@dataclass
class Injection:
    """A injection that goes on. Iterate over it; count `survived`; name what was `lost`."""

    name: str
    times: int
    lost: str
    survived: int = 0
    all: bool = False
    seconds: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(20261121))

    def __iter__(self) -> Iterator[int]:
        start = time.monotonic()
        for number in range(self.times):
            yield number
            self.survived = number + 1
        self.seconds = round(time.monotonic() - start, 1)
        self.all = True


@pytest.fixture
def injection(request: pytest.FixtureRequest) -> Iterator[Callable[..., Injection]]:
    """Give `injection(name, short=…, long=…)`: a row of the table whose loop runs the fitting
    number of times.
    """
    made: list[Injection] = []

    def make(name: str, *, short: int, long: int, lost: str = "nothing") -> Injection:
        made.append(Injection(name, long if os.environ.get("FAULTS") == "long" else short, lost))
        return made[-1]

    yield make
    names = ("times", "survived", "all", "seconds", "lost")
    rows = [{"injection": one.name, **{name: getattr(one, name) for name in names}} for one in made]
    request.node.user_properties += [("injection", row) for row in rows]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _rows.extend(row for name, row in report.user_properties if name == "injection")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _rows:
        return
    terminalreporter.section(
        f"{len(_rows)} injections, {sum(row['all'] for row in _rows)} survived"
    )
    width = max(len(row["injection"]) for row in _rows)
    terminalreporter.write_line(f"{'injection':<{width}}  {'times':>6}  survived  {'s':>5}  lost")
    for row in _rows:
        counts = (
            f"{row['times']:>6}  {row['survived']:>4} {'yes' if row['all'] else 'NO':<3}  "
            f"{row['seconds']:>5.0f}"
        )
        terminalreporter.write_line(f"{row['injection']:<{width}}  {counts}  {row['lost']}")
    if "FAULTS_OUT" in os.environ:
        Path(os.environ["FAULTS_OUT"]).write_text(json.dumps(_rows, indent=1))
