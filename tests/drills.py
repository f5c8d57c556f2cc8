"""Drills: each breaks something on purpose, a number of times, and says what survived and what was lost.

`DRILLS=long` (set by tools/drills.sh) runs each drill as often as its long form says; without it the short form runs.
The table of all drills stands at the end of pytest's output, and in the file that `DRILLS_OUT` names. Rows travel on
test reports, so that they arrive from the processes that ran the drills.
"""

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

_ROW = "drill"
_rows: list["Row"] = []


@dataclass(frozen=True)
class Row:
    """What the table says of one drill."""

    drill: str
    times: int
    survived: int
    all: bool
    seconds: float
    lost: str


@dataclass
class Drill:
    """A drill that goes on. Iterate over it; count `survived`; name what was `lost`."""

    name: str
    times: int
    survived: int = 0
    lost: str = "nothing"
    seconds: float = 0.0
    done: bool = False
    rng: random.Random = field(default_factory=lambda: random.Random(20261121))

    def __iter__(self) -> Iterator[int]:
        start = time.monotonic()
        for number in range(self.times):
            yield number
            self.survived = number + 1
        self.seconds = time.monotonic() - start
        self.done = True

    @property
    def row(self) -> Row:
        return Row(
            drill=self.name,
            times=self.times,
            survived=self.survived,
            all=self.done and self.survived == self.times,
            seconds=round(self.seconds, 1),
            lost=self.lost,
        )


@pytest.fixture
def drill(request: pytest.FixtureRequest) -> Iterator[Callable[..., Drill]]:
    """Give `drill(name, short=…, long=…)`: a row of the table whose loop runs the fitting number of times."""
    made = []

    def make(name: str, *, short: int, long: int, lost: str = "nothing") -> Drill:
        one = Drill(name, long if os.environ.get("DRILLS") == "long" else short, lost=lost)
        made.append(one)
        return one

    yield make
    request.node.user_properties += [(_ROW, asdict(one.row)) for one in made]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _rows.extend(Row(**row) for name, row in report.user_properties if name == _ROW)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _rows:
        return
    terminalreporter.section(f"{len(_rows)} drills, {sum(row.all for row in _rows)} survived")
    width = max(len(row.drill) for row in _rows)
    terminalreporter.write_line(f"{'drill':<{width}}  {'times':>6}  survived  {'s':>5}  lost")
    for row in _rows:
        verdict = "yes" if row.all else "NO"
        terminalreporter.write_line(
            f"{row.drill:<{width}}  {row.times:>6}  {row.survived:>4} {verdict:<3}  {row.seconds:>5.0f}  {row.lost}"
        )
    if "DRILLS_OUT" in os.environ:
        Path(os.environ["DRILLS_OUT"]).write_text(json.dumps([asdict(row) for row in _rows], indent=1))
