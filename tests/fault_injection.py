"""Fault injection: tests that break something on purpose, and report what survived.

`FAULTS=long` (set by tools/fault_injection.sh) repeats each injection as often as its long form
says; without it the short form runs. The table of all injections stands at the end of pytest's
output, and in the file that `FAULTS_OUT` names. Rows travel on test reports, so that they arrive
from the processes that ran the tests.
"""

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_ROW = "injection"
"""Name of the property of a test report that carries a row of the table."""
_SEED = 20261121
"""Of each injection's random numbers."""

_rows: list[dict[str, Any]] = []


@dataclass
class Injection:
    """An injection that is repeated: iterate over it, and name what was `lost`.

    Example:
        >>> for number in injection("kill -9 of the server", short=2, long=20):
        ...     kill_server()
    """

    name: str
    """What is broken, as the table shows it."""
    times: int
    """How often it is repeated."""
    lost: str
    """What the fault costs, e.g. "the games in flight"."""
    survived: int = 0
    """Repetitions that ended without a failure so far."""
    all: bool = False
    """Whether every repetition survived."""
    seconds: float = 0.0
    """Duration of all repetitions."""
    rng: random.Random = field(default_factory=lambda: random.Random(_SEED))
    """For what is drawn at random; the same at every run."""

    def __iter__(self) -> Iterator[int]:
        start = time.monotonic()
        for number in range(self.times):
            yield number
            self.survived = number + 1
        self.seconds = round(time.monotonic() - start, 1)
        self.all = True

    def row(self) -> dict[str, Any]:
        """Return the row of the table."""
        return {
            "injection": self.name,
            "times": self.times,
            "survived": self.survived,
            "all": self.all,
            "seconds": self.seconds,
            "lost": self.lost,
        }


@pytest.fixture
def injection(request: pytest.FixtureRequest) -> Iterator[Callable[..., Injection]]:
    """Give `injection(name, short=…, long=…)`, which adds a row to the table.

    Iterating over the row runs the number of repetitions that `FAULTS` asks for.
    """
    made: list[Injection] = []

    def make(name: str, *, short: int, long: int, lost: str = "nothing") -> Injection:
        is_long = os.environ.get("FAULTS") == "long"
        times = long if is_long else short
        row = Injection(name, times, lost)
        made.append(row)
        return row

    yield make
    for row in made:
        request.node.user_properties.append((_ROW, row.row()))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the rows of a finished test."""
    if report.when != "teardown":
        return
    for name, row in report.user_properties:
        if name == _ROW:
            _rows.append(row)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, and write it to the file that `FAULTS_OUT` names."""
    if not _rows:
        return
    num_survived = sum(row["all"] for row in _rows)
    terminalreporter.section(f"{len(_rows)} injections, {num_survived} survived")
    width = max(len(row["injection"]) for row in _rows)
    terminalreporter.write_line(f"{'injection':<{width}}  {'times':>6}  survived  {'s':>5}  lost")
    for row in _rows:
        terminalreporter.write_line(_line(row, width))
    if "FAULTS_OUT" in os.environ:
        Path(os.environ["FAULTS_OUT"]).write_text(json.dumps(_rows, indent=1))


def _line(row: dict[str, Any], width: int) -> str:
    name = f"{row['injection']:<{width}}"
    times = f"{row['times']:>6}"
    verdict = "yes" if row["all"] else "NO"
    survived = f"{row['survived']:>4} {verdict:<3}"
    seconds = f"{row['seconds']:>5.0f}"
    return f"{name}  {times}  {survived}  {seconds}  {row['lost']}"
