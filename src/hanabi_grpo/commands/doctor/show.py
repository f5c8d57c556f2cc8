"""The doctor's findings as lines for a terminal and as JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hanabi_grpo.commands.doctor.check import STATUSES, Check, Status

_MARKS: dict[Status, tuple[str, str]] = {
    "ok": ("✓ ok  ", "green"),
    "warn": ("! warn", "yellow"),
    "fail": ("✗ fail", "bold red"),
    "skip": ("- skip", "dim"),
}
_NAME_WIDTH = 13
_INDENT = 23
_NOTICED = 0.5
"""Seconds from which a check's time is told."""


def report_lines(check: Check) -> Iterator[tuple[RenderableType, bool]]:
    """Yield what is printed of a check: (line, whether it must stay one line so that it can be copied)."""
    mark, style = _MARKS[check.status]
    row = Table.grid(padding=(0, 1), expand=False)
    row.add_column(width=len(mark), no_wrap=True)
    row.add_column(width=_NAME_WIDTH + 1, no_wrap=True)
    row.add_column(overflow="fold")
    finding = Text(check.finding, style="dim" if check.status == "skip" else "")
    if check.seconds >= _NOTICED:
        finding.append(f"  ({check.seconds:.1f} s)", style="dim")
    row.add_row(Text(mark, style=style), Text(check.name), finding)
    yield row, False
    for line in check.remedy.splitlines():
        yield Text(f"{'':{_INDENT}}→ {line}", style="cyan" if check.status != "skip" else "dim"), True
    if check.see:
        yield Text(f"{'':{_INDENT}}see {check.see}", style="dim"), True


def summary_line(checks: Sequence[Check]) -> Text:
    """Return the last line."""
    counts = Counter(check.status for check in checks)
    parts = [f"{counts[status]} {status}" for status in STATUSES]
    seconds = sum(check.seconds for check in checks)
    style = "bold red" if counts["fail"] else "yellow" if counts["warn"] else "green"
    return Text(f"{', '.join(parts)} ({seconds:.1f} s)", style=style)


def report_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return what `--json` prints.

    Example:
        {"checks": [{"name": "port", "status": "ok", "finding": "127.0.0.1:8000 is free", "remedy": "",
                     "seconds": 0.0, "see": ""}, …], "ok": 22, "warn": 1, "fail": 0, "skip": 2}
    """
    counts = Counter(check.status for check in checks)
    rows = [{**asdict(check), "see": check.see} for check in checks]
    return {"checks": rows, **{status: counts[status] for status in STATUSES}}
