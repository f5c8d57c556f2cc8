"""One run: start the engine once, then measure each row; the others continue if a row fails."""

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.catalogue import Family
from bench.context import Bench
from bench.row import Row, not_measured
from hanabi_grpo import __version__
from hanabi_grpo.errors import HanabiGrpoError

_MAX_REASON_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run."""

    rows: list[Row]
    """In the order of the table."""
    facts: dict[str, Any]
    """Machine, model, board, load and number of pairs."""
    failed: list[str]
    """Ids of rows that ended with an error, which is different from a missed target."""


async def measure_all(
    bench: Bench, families: Sequence[Family], *, use_engine: bool, report: Callable[[Row], None]
) -> Result:
    """Measure some families of ratios.

    Args:
        bench: Without an engine, which is started here if a family needs it.
        families: See `catalogue.chosen`.
        use_engine: Whether the engine may be started.
        report: Receives each row as soon as it is measured.
    """
    from bench.engine_bench import pinned_threads

    begun = time.perf_counter()
    facts = {**_facts(bench), "threads": pinned_threads(), "load_before": _load()}
    bench.say(
        f"{facts['threads']}; load average {_load()}; {bench.pairs} pairs after one warm-up pair"
    )
    rows: list[Row] = []
    failed: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        if not use_engine:
            bench = replace(bench, no_engine="the run may not start an engine (--no-engine)")
        was_started = False
        for family in sorted(families, key=lambda family: not family.own_engines):
            if family.needs_engine and use_engine and not was_started:
                was_started = True
                bench = await _with_engine(bench, stack, failed)
            started = time.perf_counter()
            family_rows = await _measure(bench, family, failed)
            for row in family_rows:
                report(row)
            rows += family_rows
            bench.say(f"{family.id}: {time.perf_counter() - started:.0f} s")
    # Last, because initializing CUDA before the engine starts would change how vLLM starts its
    # processes.
    facts |= {
        "device": _device(bench.settings.device),
        "load_after": _load(),
        "seconds": round(time.perf_counter() - begun, 1),
    }
    rows.sort(key=_table_order)
    return Result(rows=rows, facts=facts, failed=failed)


def _table_order(row: Row) -> tuple[int, str]:
    digits = "".join(filter(str.isdigit, row.id))
    return int(digits), row.id


async def _with_engine(bench: Bench, stack: contextlib.AsyncExitStack, failed: list[str]) -> Bench:
    from bench.engine_bench import started_engine

    bench.say("engine: starting")
    try:
        engine = await stack.enter_async_context(started_engine(bench.settings, bench.config))
    except Exception as error:
        failed.append("engine")
        return replace(bench, no_engine=f"the engine did not start: {_reason(error)}")
    return replace(bench, engine=engine)


async def _measure(bench: Bench, family: Family, failed: list[str]) -> list[Row]:
    if (family.needs_engine or family.own_engines) and bench.no_engine:
        return [_missing(family, bench.no_engine)]
    try:
        return await family.measure(bench)
    except Exception as error:
        if not isinstance(error, HanabiGrpoError):
            bench.say(f"{family.id}: {_traceback(error)}")
        failed.append(family.id)
        return [_missing(family, f"failed: {_reason(error)}")]


def _missing(family: Family, why: str) -> Row:
    return not_measured(family.id, family.title, ("", ""), family.target, why)


def _facts(bench: Bench) -> dict[str, Any]:
    settings = bench.settings
    return {
        "version": __version__,
        "date": time.strftime("%Y-%m-%d"),
        "model": settings.model,
        "dtype": settings.dtype,
        "board": f"{bench.config.preset}, {bench.config.players} players",
        "games_of_a_step": settings.tasks_per_step * settings.num_generations,
        "quick": bench.quick,
        "pairs": bench.pairs,
    }


def _device(kind: str) -> str:
    if kind == "cpu":
        return f"CPU, {os.cpu_count()} cores"
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else kind


def _load() -> str:
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def _reason(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_MAX_REASON_CHARS]


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
