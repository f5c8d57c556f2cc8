"""Commands that can be stopped at any time and go on later: one line instead of a traceback, exit code 130."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer
from rich.console import Console

INTERRUPTED = 130


@contextmanager
def interruptible(summary: Callable[[], str]) -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, and end the command with one line on standard error.

    Args:
        summary: What is done, and how to go on.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True, highlight=False, emoji=False).print(summary(), markup=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_flag() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a flag, so that a piece of work is finished or not begun; the second one raises."""
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
