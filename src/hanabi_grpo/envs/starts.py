"""Which tasks of a suite begin with the same start."""

from collections.abc import Sequence
from typing import Any

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.types import ALL_STARTS

HALF = "split-"
"""Prefix of suites that have only some of the starts, in environments that can split them."""


def start_numbers(setup: Setup[Any], suite: str, seeds: Sequence[int]) -> tuple[int, ...]:
    """Return for each task the number of its cluster, counted from 0 in order of appearance.

    Where a suite has only some of the starts, tasks of one start are one cluster. A suite that
    draws from all starts has no other starts to generalize to: its tasks are independent draws from
    the game itself. Where all starts are played, the tasks of one start are one cluster, see
    `task_statistics.estimate_of_all_starts`.
    """
    num_starts = setup.environment.num_starts(setup.config)
    if suite == ALL_STARTS and num_starts is not None:
        # A start also fixes the chance events behind the first action, which `start_id` leaves out.
        return tuple(seed % num_starts for seed in seeds)
    has_some_starts = setup.spec.disjoint_splits or suite.startswith(HALF)
    if not has_some_starts:
        return tuple(range(len(seeds)))
    number_of_start: dict[str, int] = {}
    numbers = []
    for seed in seeds:
        start = setup.environment.start_id(setup.config, split=suite, seed=seed)
        number = number_of_start.setdefault(start, len(number_of_start))
        numbers.append(number)
    return tuple(numbers)
