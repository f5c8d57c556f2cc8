"""The result of one check of the doctor, and how results are printed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

Status = Literal["ok", "warn", "fail", "skip"]
Role = Literal["server", "trainer", "both"]
PAGE = "docs/troubleshooting.md"
"""Page that explains every failure and warning, with one heading per check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """How a status looks in front of a line."""

    text: str
    style: str


_MARKS: dict[Status, _Mark] = {
    "ok": _Mark(text="✓ ok  ", style="green"),
    "warn": _Mark(text="! warn", style="yellow"),
    "fail": _Mark(text="✗ fail", style="bold red"),
    "skip": _Mark(text="- skip", style="dim"),
}
_NAME_WIDTH = 14
_INDENT = " " * 23
"""Indent of the lines below a finding: the widths of mark and name plus spaces."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    status: Status
    name: str
    finding: str
    remedy: str = ""
    """Lines to type; never empty for warn and fail."""

    @property
    def see(self) -> str:
        """The section of the docs, e.g. "docs/troubleshooting.md#run-folder"; "" if all is well."""
        if self.status not in ("warn", "fail"):
            return ""
        return f"{PAGE}#{self.name.replace(' ', '-')}"


ok = partial(Check, "ok")
skip = partial(Check, "skip")
"""The check could not be made, or there is nothing to check; the finding says why."""
warn = partial(Check, "warn")
"""The problem does not stop a run, but the user should know about it."""
fail = partial(Check, "fail")
"""The problem stops a run."""


def print_checks(console: Console, checks: Iterable[Check]) -> None:
    """Print results; a line to type is never wrapped, so that it can be copied."""
    for check in checks:
        is_skipped = check.status == "skip"
        console.print(_row(check))
        for line in check.remedy.splitlines():
            remedy = Text(f"{_INDENT}→ {line}", style="dim" if is_skipped else "cyan")
            console.print(remedy, soft_wrap=True)
        if check.see:
            console.print(Text(f"{_INDENT}see {check.see}", style="dim"), soft_wrap=True)


def _row(check: Check) -> Table:
    mark = _MARKS[check.status]
    finding_style = "dim" if check.status == "skip" else ""
    row = Table.grid(padding=(0, 1), expand=False)
    row.add_column(width=len(mark.text), no_wrap=True)
    row.add_column(width=_NAME_WIDTH, no_wrap=True)
    row.add_column(overflow="fold")
    row.add_row(
        Text(mark.text, style=mark.style),
        Text(check.name),
        Text(check.finding, style=finding_style),
    )
    return row


def summary_line(checks: Sequence[Check]) -> Text:
    """Return the last line, e.g. "22 ok, 1 warn, 0 fail, 2 skip"."""
    counts = _count(checks)
    if counts["fail"]:
        style = "bold red"
    elif counts["warn"]:
        style = "yellow"
    else:
        style = "green"
    parts = [f"{count} {status}" for status, count in counts.items()]
    return Text(", ".join(parts), style=style)


def report_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return what `--json` prints.

    Example:
        {"checks": [{"name": "port", …}, …], "ok": 22, "warn": 1, "fail": 0, "skip": 2}
    """
    rows = []
    for check in checks:
        rows.append({**asdict(check), "see": check.see})
    return {"checks": rows, **_count(checks)}


def _count(checks: Sequence[Check]) -> dict[str, int]:
    """Count the checks of every status, in the order in which they are printed."""
    counts = Counter(check.status for check in checks)
    return {str(status): counts[status] for status in _MARKS}
