"""One finding of the doctor, and how findings are printed."""

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
"""What a failure or warning means and what to do; one heading for each name of a check."""
_MARKS: dict[Status, tuple[str, str]] = {
    "ok": ("✓ ok  ", "green"),
    "warn": ("! warn", "yellow"),
    "fail": ("✗ fail", "bold red"),
    "skip": ("- skip", "dim"),
}
_INDENT = 23


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found."""

    status: Status
    name: str
    finding: str
    remedy: str = ""
    """Lines to type; never empty for warn and fail."""

    @property
    def see(self) -> str:
        """The place in the docs, e.g. "docs/troubleshooting.md#run-folder"; empty where nothing is
        wrong.
        """
        return f"{PAGE}#{self.name.replace(' ', '-')}" if self.status in ("warn", "fail") else ""


ok = partial(Check, "ok")
skip = partial(Check, "skip")
"""It could not be made, or has nothing to look at; the finding says why."""
warn = partial(Check, "warn")
"""It does not stop a run but should be known."""
fail = partial(Check, "fail")
"""It stops a run."""


def print_checks(console: Console, checks: Iterable[Check]) -> None:
    """Print findings; a line to type stays one line, so that it can be copied."""
    for check in checks:
        mark, style = _MARKS[check.status]
        row = Table.grid(padding=(0, 1), expand=False)
        row.add_column(width=len(mark), no_wrap=True)
        row.add_column(width=14, no_wrap=True)
        row.add_column(overflow="fold")
        dim = "dim" if check.status == "skip" else ""
        row.add_row(Text(mark, style=style), Text(check.name), Text(check.finding, style=dim))
        console.print(row)
        for line in check.remedy.splitlines():
            console.print(Text(f"{'':{_INDENT}}→ {line}", style=dim or "cyan"), soft_wrap=True)
        if check.see:
            console.print(Text(f"{'':{_INDENT}}see {check.see}", style="dim"), soft_wrap=True)


def summary_line(checks: Sequence[Check]) -> Text:
    """Return the last line, e.g. "22 ok, 1 warn, 0 fail, 2 skip"."""
    counts = Counter(check.status for check in checks)
    style = "bold red" if counts["fail"] else "yellow" if counts["warn"] else "green"
    return Text(", ".join(f"{counts[status]} {status}" for status in _MARKS), style=style)


def report_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return what `--json` prints: {"checks": [{"name": "port", …}, …], "ok": 22, "warn": 1,
    "fail": 0, "skip": 2}.
    """
    counts = Counter(check.status for check in checks)
    rows = [{**asdict(check), "see": check.see} for check in checks]
    return {"checks": rows, **{status: counts[status] for status in _MARKS}}
