"""Exact best-response bounds of scripts on small boards, computed once and kept in a file.

A bound is the highest mean score, over all starts, that any player can reach with the script. It
is at least the script's score with itself. Boards that are too large have no bounds.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup, stable_hash
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_bytes
from hanabi_grpo.processes import usable_cores, worker_pool
from hanabi_grpo.runs.evaluation_result import write_document
from hanabi_grpo.runs.run_folder import OUTPUTS, plain_name

FOLDER = OUTPUTS / "bounds"
"""Where bounds are kept, a file per game."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactBound:
    """The best score that any player can reach with a script."""

    seats: tuple[float, ...]
    """By the seat of the best responder; the script has all other seats."""

    @property
    def mean(self) -> float:
        """Mean over the seats."""
        return fmean(self.seats)


def bounds_file(setup: Setup[Any], folder: Path = FOLDER) -> Path | None:
    """Return the file of a game's bounds; None if the game has no exact bounds.

    Its name has a hash of all that bounds depend on: the rules of the board and the code of rules
    and scripts. What messages look like does not matter.
    """
    key = setup.environment.bounds_key(setup.config)
    if key is None:
        return None
    spec = setup.spec
    name = f"{spec.env}-{spec.preset}-{spec.num_players}-{stable_hash(key)}"
    return folder / f"{plain_name(name)}.json"


def read_bounds(path: Path) -> dict[str, ExactBound]:
    """Return a file's bounds by script; {} if the file is missing or damaged."""
    bounds = {}
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        scripts = json.loads(read_bytes(path, MAX_DOCUMENT_BYTES))["scripts"]
        for name, row in scripts.items():
            seats = tuple(float(value) for value in row["seats"])
            bounds[str(name)] = ExactBound(seats=seats)
    return bounds


def compute_bounds(
    setup: Setup[Any],
    scripts: Sequence[str],
    *,
    folder: Path = FOLDER,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, ExactBound]:
    """Return the exact bounds of scripts; those missing in the game's file are computed and added.

    Scripts whose bound cannot be computed, because they search, are left out.

    Args:
        setup: Environment and configuration.
        scripts: Names of scripts.
        folder: Where files of bounds are.
        progress: Receives the number of values computed so far, and of all missing ones.

    Raises:
        SettingsError: The file cannot be written.
    """
    path = bounds_file(setup, folder)
    if path is None:
        return {}
    known = read_bounds(path)
    missing = [name for name in scripts if name not in known]
    values: dict[str, dict[int, float | None]] = {name: {} for name in missing}
    seats = range(setup.spec.num_players)
    total = len(missing) * len(seats)
    # Closing ends the processes, also when an interrupt comes in this loop.
    with closing(_computed(setup, missing, seats)) as computed:
        for number, (name, seat, value) in enumerate(computed, start=1):
            progress(number, total)
            by_seat = values[name]
            by_seat[seat] = value
            found = [by_seat[seat] for seat in seats if seat in by_seat]
            exact = tuple(value for value in found if value is not None)
            if len(exact) == len(seats):
                known[name] = ExactBound(seats=exact)
                # Written at once: an interrupt loses only what is being computed.
                write_document(path, _document(setup, known))
    return {name: known[name] for name in scripts if name in known}


def _computed(
    setup: Setup[Any], scripts: Sequence[str], seats: Sequence[int]
) -> Generator[tuple[str, int, float | None], None, None]:
    """Yield the value of each script and seat as it is found, on all cores of this process."""
    if not scripts:
        return
    num_workers = min(usable_cores(), len(scripts) * len(seats))
    config = setup.config.model_dump(mode="json")
    with worker_pool(num_workers) as pool:
        jobs = {}
        for name in scripts:
            for seat in seats:
                jobs[pool.submit(_score, setup.env, config, name, seat)] = (name, seat)
        for job in as_completed(jobs):
            name, seat = jobs[job]
            yield name, seat, job.result()


def _score(env: str, config: Mapping[str, Any], script: str, seat: int) -> float | None:
    """Compute one value, in a process of its own."""
    setup = registry.setup(env, config)
    try:
        return setup.environment.best_response_score(setup.config, script, seat)
    except SettingsError:
        # The script does not play this board.
        return None


def _document(setup: Setup[Any], bounds: Mapping[str, ExactBound]) -> dict[str, Any]:
    scripts = {}
    for name, bound in bounds.items():
        scripts[name] = {"seats": bound.seats, "mean": bound.mean}
    return {
        **setup.row(),
        "spec_hash": setup.spec.hash,
        "bounds_key": setup.environment.bounds_key(setup.config),
        "scripts": scripts,
    }
