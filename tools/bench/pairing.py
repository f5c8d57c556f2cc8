"""Two arms side by side: A B B A, with one warm-up pair discarded, and the ratio of each pair.

Whatever slows the machine for a while slows both arms of a pair, so a ratio is reliable even if
times measured minutes apart are not. Every arm reports how much it did (tokens, games), and times
are divided by that amount before they are compared.
"""

import os
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Fields of /proc/<pid>/stat after id and name: 4 and 14 to 17 of proc_pid_stat(5).
_PARENT_FIELD = 1
_CPU_TIME_FIELDS = slice(11, 15)
"""User and system time of the process, and of its children that have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One run of one arm."""

    seconds: float
    """Wall clock."""
    cpu_seconds: float
    """CPU time of this process, and of its descendants if they are counted."""
    amount: float
    """The work done in that time, e.g. tokens or games; more than 0."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Additional figures of the run."""

    @property
    def rate(self) -> float:
        """Amount per second."""
        return self.amount / max(self.seconds, 1e-9)

    @property
    def cpu_per_unit(self) -> float:
        """CPU seconds per unit of the amount."""
        return self.cpu_seconds / self.amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both arms, run one right after the other."""

    first: Measure
    """The numerator."""
    second: Measure
    """The denominator."""

    @property
    def speed(self) -> float:
        """Rate of the first arm over the rate of the second; above 1 the first is faster."""
        return self.first.rate / self.second.rate

    @property
    def time(self) -> float:
        """Time per unit of the first arm over that of the second; below 1 the first is faster."""
        return self.second.rate / self.first.rate

    @property
    def cpu(self) -> float:
        """CPU seconds per unit of the first arm over those of the second."""
        return self.first.cpu_per_unit / max(self.second.cpu_per_unit, 1e-12)


Arm = Callable[[], Awaitable[Measure]]
"""Runs one arm once."""


class Stopwatch:
    """Wall and CPU seconds of a block of code, optionally including child processes.

    Example:
        with Stopwatch() as watch:
            work()
        watch.measure(amount=128)
    """

    def __init__(self, *, children: bool = False) -> None:
        """Start nothing yet.

        Args:
            children: Also count the CPU seconds of this process's descendants (Linux), including
                those that end in the meantime.
        """
        self._children = children
        self.seconds = 0.0
        self.cpu_seconds = 0.0

    def __enter__(self) -> "Stopwatch":
        self._cpu = self._cpu_now()
        self._wall = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._wall
        self.cpu_seconds = self._cpu_now() - self._cpu

    def measure(self, amount: float, **notes: Any) -> Measure:
        """Return the measure of the block."""
        return Measure(
            seconds=self.seconds, cpu_seconds=self.cpu_seconds, amount=amount, notes=notes
        )

    def _cpu_now(self) -> float:
        seconds = time.process_time()
        if self._children:
            # The CPU time of an ended process is added to the process that waited for it.
            ended = os.times()
            seconds += ended.children_user + ended.children_system
            seconds += sum(_cpu_seconds(pid) for pid in descendants())
        return seconds


async def measure_pairs(first: Arm, second: Arm, *, pairs: int, warm_up: int = 1) -> list[Pair]:
    """Run two arms A B B A … and pair adjacent runs.

    Args:
        first: Numerator.
        second: Denominator.
        pairs: Number of pairs that are kept.
        warm_up: Number of pairs that are run first and discarded.
    """
    kept = []
    for number in range(-warm_up, pairs):
        if number % 2 == 0:
            first_measure = await first()
            second_measure = await second()
        else:
            second_measure = await second()
            first_measure = await first()
        if number >= 0:
            kept.append(Pair(first=first_measure, second=second_measure))
    return kept


def descendants(root: int | None = None, *, proc: Path = Path("/proc")) -> list[int]:
    """Return the ids of all descendants of a process.

    Args:
        root: Id of the process; None for this one.
        proc: The folder of the processes; if it does not exist, the result is empty.
    """
    children_of: dict[int, list[int]] = {}
    for stat in proc.glob("[0-9]*/stat"):
        fields = _stat_fields(stat)
        if fields:
            parent = int(fields[_PARENT_FIELD])
            children_of.setdefault(parent, []).append(int(stat.parent.name))
    pids: list[int] = []
    waiting = [os.getpid() if root is None else root]
    while waiting:
        children = children_of.get(waiting.pop(), [])
        pids += children
        waiting += children
    return pids


def _cpu_seconds(pid: int, *, proc: Path = Path("/proc")) -> float:
    """Return the CPU time of a process and its ended children so far; 0 if it has ended."""
    fields = _stat_fields(proc / str(pid) / "stat")
    if not fields:
        return 0.0
    ticks = sum(map(int, fields[_CPU_TIME_FIELDS]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat_fields(stat: Path) -> list[str]:
    """Return the fields after id and name; empty if the process has ended."""
    try:
        text = stat.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The name in parentheses may itself contain spaces and parentheses.
    _, _, fields = text.rpartition(")")
    return fields.split()


def ratios_of(
    pairs: Iterable[Pair], *, of_time: bool = False
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the ratios of speed (or time) and of CPU seconds, one per pair."""
    ratios = []
    cpu_ratios = []
    for pair in pairs:
        ratios.append(pair.time if of_time else pair.speed)
        cpu_ratios.append(pair.cpu)
    return tuple(ratios), tuple(cpu_ratios)
