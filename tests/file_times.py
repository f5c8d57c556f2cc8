"""At the end of a long run, how long each test process was busy and with which files."""

from collections import Counter

import pytest

LEAST_SECONDS = 60.0
"""A shorter run has no such summary."""
NUM_FILES = 12
"""Files that are shown for each process, the slowest first."""

_SECONDS: Counter[tuple[str, str]] = Counter()
"""Seconds by test process and file, set-up and teardown included."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a phase of a test; where several processes test, only the one above them gets here."""
    node = getattr(report, "node", None)
    process = node.gateway.id if node is not None else "main"
    file = report.nodeid.partition("::")[0]
    _SECONDS[process, file] += report.duration


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each test process."""
    totals: Counter[str] = Counter()
    for (process, _), seconds in _SECONDS.items():
        totals[process] += seconds
    if sum(totals.values()) < LEAST_SECONDS:
        return
    terminalreporter.section("seconds by test process and file")
    for process, total in sorted(totals.items()):
        slowest = [
            f"{file.removeprefix('tests/')} {seconds:.0f}"
            for (its, file), seconds in _SECONDS.most_common()
            if its == process
        ]
        terminalreporter.write_line(f"{process}: {total:.0f} s: {', '.join(slowest[:NUM_FILES])}")
