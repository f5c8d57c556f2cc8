"""R9, and R12 without an engine: the cost of rules, prompts, tokens and the event loop."""

import contextlib
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import msgspec

from bench.context import Bench
from bench.growth import slopes
from bench.loop_lag import percentile, watched_loop
from bench.recording import ForcedSampler, GameCalls, Recorder
from bench.row import Row, at_most
from bench.stand_in import (
    SUITE,
    StandIn,
    chat_of,
    compact_config,
    first_tasks,
    scripted_games,
    stand_in_scheduler,
    stand_in_server,
    stand_in_store,
)
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.messages import read_tasks
from hanabi_grpo.rollout.sampler import SamplingConfig
from hanabi_grpo.server.scheduler import Scheduler

LAG_TARGET = at_most(0.005)
_REPLY_SECONDS = 0.4
"""Mean reply time of the stand-in.

On two cores, a short reply of the demo's model takes as long while a whole step is in play."""
_STAND_IN = f"a stand-in engine that answers after {_REPLY_SECONDS:g} s ± 50 %"
"""What answers if no engine runs."""
_BEST_OF = 2
"""Runs per size; the shortest time counts, since other work on the machine can only add time."""
_PER_TASK = 16
"""Games per task."""
_SAMPLING = SamplingConfig(max_tokens=8)


async def env_share(bench: Bench) -> list[Row]:
    """R9a: the share of rules and prompt in a turn, as its game sees it.

    With an engine also R9c: their share in the whole step.
    """
    games, source = await _recording(bench)
    turn = mean_turn_seconds(games)
    step = step_seconds(games)
    turns = sum(len(game) for game in games)
    moves = _bot_moves(bench.config)
    costs = [_env_seconds(bench.config, moves) for _ in range(bench.pairs + 1)]
    part = "rules, view, prompt and rewards of a move"
    how = "bot games stepped through the env alone"
    rows = [
        Row(
            id="R9a",
            name="env time ÷ turn",
            arms=(part, f"a turn as a game sees it ({source})"),
            ratios=tuple(cost / turn for cost in costs[1:]),
            target=at_most(0.01),
            how=f"{how}; mean turn of one step's games, from request to request, with {source}",
            details={"env_seconds": statistics.median(costs[1:]), "turn_seconds": turn},
        )
    ]
    if bench.engine is not None:
        rows.append(
            Row(
                id="R9c",
                name="env time of all turns ÷ step",
                arms=(part, "one step's games"),
                ratios=tuple(cost * turns / step for cost in costs[1:]),
                how=f"{how}; {turns} turns of {len(games)} games, all served by one event loop",
                details={"step_seconds": step, "turns": turns},
            )
        )
    return rows


async def loop_lag(bench: Bench) -> list[Row]:
    """R9b: seconds by which the server's event loop is late while one step's games are played."""
    engine = bench.engine
    settings = bench.settings
    tasks = settings.tasks_per_step
    per_task = settings.num_generations
    games: list[GameCalls] = []
    if engine:
        config = engine.config
        chat = engine.chat
        source = "the engine"
    else:
        config = compact_config("laptop")
        chat = chat_of(config)
        games = await scripted_games(config, chat, num_tasks=tasks, num_games=per_task)
        source = _STAND_IN
    sampling = SamplingConfig(
        max_tokens=settings.max_completion_length, temperature=settings.temperature
    )
    request = first_tasks(config, sampling, num_tasks=tasks, num_games=per_task)
    body = msgspec.json.encode(request)
    lags: list[float] = []
    busy: list[float] = []
    for _ in range(bench.pairs + 1):
        async with contextlib.AsyncExitStack() as stack:
            served = (
                contextlib.nullcontext(engine.url)
                if engine
                else stand_in_server(chat, games, seconds=_REPLY_SECONDS)
            )
            url = await stack.enter_async_context(served)
            # As the session's trainer, whose games no guest's limit holds up.
            headers = engine.client.headers if engine else {}
            client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=600.0)
            )
            content = client.build_request(
                "POST", "/rollout/", content=body, headers={"content-type": "application/json"}
            )
            if engine:
                await engine.engine.reset_prefix_cache()
            async with watched_loop() as seen:
                answer = await client.send(content)
            answer.raise_for_status()
        lags.append(percentile([lag.late for lag in seen], 0.99))
        busy.append(percentile([lag.busy for lag in seen], 0.99))
    return [
        Row(
            id="R9b",
            name="event-loop lag, 99th percentile (seconds)",
            arms=("lateness of a 2 ms sleep", "1 s"),
            ratios=tuple(lags[1:]),
            target=LAG_TARGET,
            how=(
                f"the real app on a socket, {tasks * per_task} games at once, {source}; the "
                "client shares the loop; in 99 % of the sleeps its own callbacks took at most "
                f"{statistics.median(busy[1:]):.2g} CPU s"
            ),
            if_missed="the engine's threads compete with this loop for the same cores",
            details={"busy_p99": statistics.median(busy[1:]), "samples_a_run": len(seen)},
        )
    ]


async def growth(bench: Bench) -> list[Row]:
    """R12 without an engine: seconds of the whole server path against games, players and turns."""
    sweeps = await _sweeps(bench.quick)
    rounds: dict[str, list[dict[float, float]]] = {sweep.letter: [] for sweep in sweeps}
    for number in range(bench.pairs + 1):
        for sweep in sweeps:
            # Up, then down: a machine that slows down during the run does not bias the slope in one
            # direction.
            sizes = sorted(sweep.paths, reverse=number % 2 == 0)
            costs = {float(size): await _path_seconds(sweep.paths[size]) for size in sizes}
            if number:
                rounds[sweep.letter].append(costs)
    rows = []
    for sweep in sweeps:
        seconds = []
        for costs in rounds[sweep.letter]:
            seconds.append({f"{size:g}": cost for size, cost in costs.items()})
        rows.append(
            Row(
                id=f"R12{sweep.letter}",
                name=f"log-log slope of the server path over {sweep.title}",
                arms=("log seconds", f"log {sweep.title}"),
                ratios=slopes(rounds[sweep.letter]),
                target=at_most(1.1),
                how="rules, prompts, tokens, conversations and answers through the real "
                "scheduler; the engine answers at once",
                details={"seconds": seconds},
            )
        )
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sweep:
    """Games of several sizes."""

    letter: str
    """The row's letter."""
    title: str
    """The meaning of the size."""
    paths: "dict[int, _Path]"
    """By size."""


async def _sweeps(quick: bool) -> list[_Sweep]:
    """Return what R12 measures."""
    games = (32, 64, 128) if quick else (32, 64, 128, 256)
    turns = (8, 16, 32) if quick else (8, 16, 32, 48)
    # The same number of moves at every table, so that only the cost per move differs.
    tables = {n: await _path(compact_config("full", n, 20), 32) for n in (2, 3, 4, 5)}
    return [
        _Sweep(
            letter="a",
            title="games of a step",
            paths={count: await _path(compact_config("laptop"), count) for count in games},
        ),
        _Sweep(letter="b", title="players of a table, moves fixed", paths=tables),
        _Sweep(
            letter="c",
            title="turns of a game",
            paths={count: await _path(compact_config("full", 2, count), 32) for count in turns},
        ),
    ]


def _env_seconds(config: EnvConfig, games: Sequence[Sequence[str]]) -> float:
    """Return the mean seconds per turn when recorded moves go through the env alone.

    Prompts are included.
    """
    start = time.perf_counter()
    for seed, moves in enumerate(games):
        game = HANABI.reset(config, split=SUITE, seed=seed)
        for move in moves:
            [player] = game.to_act()
            game.message(player)
            game.step({player: move})
    seconds = time.perf_counter() - start
    return seconds / sum(len(moves) for moves in games)


def _bot_moves(config: EnvConfig, num_tasks: int = 64) -> list[list[str]]:
    """Return the moves of a bot's games, one game per task."""
    policies = dict.fromkeys(range(config.players), HANABI.policies["iggi"]())
    games = []
    for seed in range(num_tasks):
        episode = play_scripts(Setup(HANABI, config).task(SUITE, seed), policies)
        games.append([turn.action for turn in episode.turns])
    return games


async def _recording(bench: Bench) -> tuple[list[GameCalls], str]:
    """Return one step's games and what answered them."""
    if bench.engine is not None:
        return await bench.engine.recorded_games(), "the engine"
    settings = bench.settings
    config = compact_config("laptop")
    chat = chat_of(config)
    games = await scripted_games(
        config, chat, num_tasks=settings.tasks_per_step, num_games=settings.num_generations
    )
    engine = StandIn(_REPLY_SECONDS)
    store = stand_in_store(engine)
    try:
        recorder = Recorder(ForcedSampler(engine, games))
        scheduler = stand_in_scheduler(store, chat, recorder, len(games))
        await _run(scheduler, config, settings.tasks_per_step, settings.num_generations)
    finally:
        store.close()
    return recorder.games, _STAND_IN


def mean_turn_seconds(games: list[GameCalls]) -> float:
    """Return the mean time from one request of a game to its next."""
    gaps = []
    for game in games:
        for earlier, later in itertools.pairwise(game):
            gaps.append(later.started - earlier.started)
    if not gaps:
        # Games of one turn.
        for game in games:
            gaps += [call.ended - call.started for call in game]
    return statistics.fmean(gaps)


def step_seconds(games: list[GameCalls]) -> float:
    """Return the time from the first request to the last answer."""
    start = min(game[0].started for game in games)
    end = max(game[-1].ended for game in games)
    return end - start


@dataclass(frozen=True, slots=True, kw_only=True)
class _Path:
    """Games that are played through the server path repeatedly."""

    config: EnvConfig
    """The board."""
    chat: ChatFormat
    """The tiny model's conversation format."""
    games: list[GameCalls]
    """The games that are played."""


async def _path(config: EnvConfig, num_games: int) -> _Path:
    """Return a bot's games on a board."""
    chat = chat_of(config)
    games = await scripted_games(
        config, chat, num_tasks=num_games // _PER_TASK, num_games=_PER_TASK
    )
    return _Path(config=config, chat=chat, games=games)


async def _path_seconds(path: _Path) -> float:
    """Return the time of the games, the shortest of `_BEST_OF` runs."""
    engine = StandIn()
    store = stand_in_store(engine)
    try:
        seconds = []
        for _ in range(_BEST_OF):
            sampler = ForcedSampler(engine, path.games)
            scheduler = stand_in_scheduler(store, path.chat, sampler, len(path.games))
            start = time.perf_counter()
            await _run(scheduler, path.config, len(path.games) // _PER_TASK, _PER_TASK)
            seconds.append(time.perf_counter() - start)
            sampler.check_complete()
        return min(seconds)
    finally:
        store.close()


async def _run(scheduler: Scheduler, config: EnvConfig, num_tasks: int, num_games: int) -> None:
    request = first_tasks(config, _SAMPLING, num_tasks=num_tasks, num_games=num_games)
    await scheduler.run(read_tasks(request), _SAMPLING)
