"""Progress of commands: bars at a terminal, a line a minute in a log."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from hanabi_grpo.commands import console as commands_console
from hanabi_grpo.commands.console import progress_bars


def written(*, is_terminal: bool) -> list[str]:
    """Return the lines of a command that plays five games."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=is_terminal, width=80, color_system=None)
    with progress_bars(console) as progress:
        bar = progress.add_task("games [of all]", total=5)
        for number in range(1, 5):
            progress.update(bar, completed=number)
        progress.advance(bar)
        progress.add_task("of unknown number", total=None, completed=3)
    return file.getvalue().splitlines()


def test_a_log_has_a_line_whenever_a_minute_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 30.0, 61.0, 90.0, 120.9, 121.0])
    clock = SimpleNamespace(monotonic=lambda: next(now))
    monkeypatch.setattr(commands_console, "time", clock)
    lines = written(is_terminal=False)
    # Behind the comma is the time that is left.
    assert [line.partition(",")[0] for line in lines if "━" not in line] == [
        "games [of all]: 2 of 5",
        "games [of all]: 5 of 5",
    ]


def test_a_log_of_less_than_a_minute_has_the_bars_alone() -> None:
    lines = written(is_terminal=False)
    assert len(lines) == 2
    assert all("━" in line for line in lines)


def test_a_terminal_has_bars_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_console, "_SECONDS_OF_A_LINE", 0.0)
    assert not any(": 4 of 5" in line for line in written(is_terminal=True))
    assert any(": 4 of 5" in line for line in written(is_terminal=False))
