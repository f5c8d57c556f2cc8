"""R22: the cost of an environment that hangs, and the cost of worker processes."""

import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import msgspec

from bench.context import Bench
from bench.hanging_hanabi import HANGING_SHARE, HangingHanabi
from bench.pairing import Measure, Pair, Stopwatch, measure_pairs, ratios_of
from bench.row import Row, at_most
from bench.stand_in import first_tasks
from hanabi_grpo.agents.served_model import Model
from hanabi_grpo.rollout.messages import RequestedTask, RolloutRequest, read_tasks
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.workers.pool import WorkerPool
from hanabi_grpo.types import DroppedGame

TITLE = "a step in which 1 of 100 games hangs ÷ a clean step"
TARGET = at_most(1.2)
SHARE = 0.01
"""Share of games that hang."""
_TIMEOUT_SHARE = 0.1
"""HANABI_CALL_TIMEOUT as a share of a clean step; a call of Hanabi takes microseconds."""
_ENV = HangingHanabi.name


async def hanging(bench: Bench) -> list[Row]:
    """R22a and R22b: seconds of a step's games."""
    engine = bench.needed_engine
    request = first_tasks(
        bench.config,
        engine.sampling,
        num_tasks=bench.settings.tasks_per_step,
        num_games=bench.settings.num_generations,
    )
    with _installed():
        in_server = read_tasks(request)
        in_workers = read_tasks(_under_other_name(request))
        clean = _scheduler(bench, call_timeout=bench.settings.call_timeout)
        try:

            async def play_clean() -> Measure:
                return await _play(bench, clean, in_workers)

            async def play_here() -> Measure:
                return await _play(bench, clean, in_server)

            worker_pairs = await measure_pairs(play_clean, play_here, pairs=bench.pairs)
            seconds = statistics.median(pair.first.seconds for pair in worker_pairs)
            with mock.patch.dict(os.environ, {HANGING_SHARE: str(SHARE)}):
                faulty = _scheduler(bench, call_timeout=_TIMEOUT_SHARE * seconds)
                try:

                    async def play_faulty() -> Measure:
                        return await _play(bench, faulty, in_workers)

                    late_pairs = await measure_pairs(play_faulty, play_clean, pairs=bench.pairs)
                finally:
                    faulty.close()
        finally:
            clean.close()
    late_ratios, late_cpu = _time_ratios(late_pairs)
    worker_ratios, worker_cpu = ratios_of(worker_pairs, of_time=True)
    num_late = sum(pair.first.notes["late"] for pair in late_pairs)
    return [
        Row(
            id="R22a",
            name=TITLE,
            arms=(
                f"{SHARE:.0%} of games never return from their second move",
                "the same games without hangs",
            ),
            ratios=late_ratios,
            cpu_ratios=late_cpu,
            target=TARGET,
            how=f"{engine.num_games} games in worker processes, HANABI_CALL_TIMEOUT "
            f"{_TIMEOUT_SHARE} of a clean step; {num_late} games were late",
        ),
        Row(
            id="R22b",
            name="games in worker processes ÷ in the server",
            arms=("every move in a worker process", "every move on the event loop"),
            ratios=worker_ratios,
            cpu_ratios=worker_cpu,
            how=f"{engine.num_games} games of the base model, freely played",
        ),
    ]


def _time_ratios(pairs: list[Pair]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the ratios of whole steps, in which late games count like the others."""
    ratios = tuple(pair.first.seconds / pair.second.seconds for pair in pairs)
    cpu_ratios = tuple(pair.first.cpu_seconds / pair.second.cpu_seconds for pair in pairs)
    return ratios, cpu_ratios


def _scheduler(bench: Bench, *, call_timeout: float) -> Scheduler:
    engine = bench.needed_engine
    model = Model(
        sampler=engine.engine, chat=engine.chat, max_model_len=bench.settings.max_model_len
    )
    return Scheduler(
        model,
        engine.store,
        games_at_once=max(bench.settings.games_at_once, engine.num_games),
        instance_id="bench",
        game_timeout=bench.settings.game_timeout,
        workers=WorkerPool(call_timeout=call_timeout, session_workers=bench.settings.game_workers),
    )


async def _play(bench: Bench, scheduler: Scheduler, tasks: list[RequestedTask]) -> Measure:
    engine = bench.needed_engine
    await engine.engine.reset_prefix_cache()
    with Stopwatch(children=True) as watch:
        games = await scheduler.run(tasks, engine.sampling, own=True)
    played = [game for group in games for game in group]
    late = sum(isinstance(game, DroppedGame) for game in played)
    return watch.measure(len(played), late=late)


def _under_other_name(request: RolloutRequest) -> RolloutRequest:
    tasks = tuple(msgspec.structs.replace(task, env=_ENV) for task in request.tasks)
    return msgspec.structs.replace(request, tasks=tasks)


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    """Register the environment like an installed package, also for child processes."""
    with tempfile.TemporaryDirectory() as name:
        info = Path(name) / "hanging-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1.0\n")
        entry = f"{_ENV} = bench.hanging_hanabi:HANGING_HANABI"
        (info / "entry_points.txt").write_text(f"[hanabi_grpo.environments]\n{entry}\n")
        with mock.patch.object(sys, "path", [name, *sys.path]):
            yield
