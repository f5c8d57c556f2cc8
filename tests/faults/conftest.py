"""Drills: each breaks something on purpose, a number of times, and says what survived and what was lost.

`DRILLS=long` (set by tools/drills.sh) runs each drill as often as its long form says; without it the short form runs.
The table of all drills stands at the end of pytest's output, and in the file that `DRILLS_OUT` names.
"""

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conftest_e2e import server, tiny_model  # noqa: F401 (fixtures)

_DRILLS: list["Drill"] = []


@dataclass
class Drill:
    """One row of the table. Iterate over it; count `survived`; name what was `lost`."""

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
    def verdict(self) -> str:
        return "yes" if self.done and self.survived == self.times else "NO"


@pytest.fixture
def drill() -> Callable[..., Drill]:
    """Give `drill(name, short=…, long=…)`: a row of the table whose loop runs the fitting number of times."""

    def make(name: str, *, short: int, long: int, lost: str = "nothing") -> Drill:
        one = Drill(name, long if os.environ.get("DRILLS") == "long" else short, lost=lost)
        _DRILLS.append(one)
        return one

    return make


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _DRILLS:
        return
    terminalreporter.section(f"{len(_DRILLS)} drills, {sum(one.verdict == 'yes' for one in _DRILLS)} survived")
    width = max(len(one.name) for one in _DRILLS)
    terminalreporter.write_line(f"{'drill':<{width}}  {'times':>6}  survived  {'s':>5}  lost")
    for one in _DRILLS:
        terminalreporter.write_line(
            f"{one.name:<{width}}  {one.times:>6}  {one.survived:>4} {one.verdict:<3}  {one.seconds:>5.0f}  {one.lost}"
        )
    if "DRILLS_OUT" in os.environ:
        rows = [
            {
                "drill": one.name,
                "times": one.times,
                "survived": one.survived,
                "all": one.verdict == "yes",
                "seconds": round(one.seconds, 1),
                "lost": one.lost,
            }
            for one in _DRILLS
        ]
        Path(os.environ["DRILLS_OUT"]).write_text(json.dumps(rows, indent=1))
