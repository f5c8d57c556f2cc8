"""R9 and the part of R12 that needs no engine: what rules, prompts, tokens and the event loop
cost.
"""

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
"""Mean of the stand-in: a short reply of the demo's model on two cores when a whole step is in
play.
"""
_BEST_OF = 2
"""Runs of one size; what else the machine does can only add to the smaller of their times."""
_PER_TASK = 16
_SAMPLING = SamplingConfig(max_tokens=8)


async def env_share(bench: Bench) -> list[Row]:
    """R9a: what rules and prompt take of a turn, as its game sees it; on the engine R9c too: of the
    whole step.
    """
    games, source = await _recording(bench)
    turn = mean_turn_seconds(games)
    step, turns = step_seconds(games), sum(map(len, games))
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
            how=f"{how}; mean turn of one step's games, from question to question, with {source}",
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
                how=f"{how}; {turns} turns of {len(games)} games, all of which one event loop "
                "serves",
                details={"step_seconds": step, "turns": turns},
            )
        )
    return rows


async def loop_lag(bench: Bench) -> list[Row]:
    """R9b: seconds by which the server's event loop is late while one step's games are played."""
    engine, settings = bench.engine, bench.settings
    tasks, per_task = settings.tasks_per_step, settings.num_generations
    config = engine.config if engine else compact_config("laptop")
    chat = engine.chat if engine else chat_of(config)
    games = (
        [] if engine else await scripted_games(config, chat, num_tasks=tasks, num_games=per_task)
    )
    sampling = SamplingConfig(
        max_tokens=settings.max_completion_length, temperature=settings.temperature
    )
    body = msgspec.json.encode(first_tasks(config, sampling, num_tasks=tasks, num_games=per_task))
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
            client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, trust_env=False, timeout=600.0)
            )
            content = client.build_request(
                "POST", "/rollout/", content=body, headers={"content-type": "application/json"}
            )
            async with watched_loop() as seen:
                answer = await client.send(content)
            answer.raise_for_status()
        lags.append(percentile([lag.late for lag in seen], 0.99))
        busy.append(percentile([lag.busy for lag in seen], 0.99))
    source = (
        "the engine"
        if engine
        else f"an engine that answers after {_REPLY_SECONDS:g} s, give or take half of it"
    )
    return [
        Row(
            id="R9b",
            name="event-loop lag, 99th percentile (seconds)",
            arms=("lateness of a 2 ms sleep", "1 s"),
            ratios=tuple(lags[1:]),
            target=LAG_TARGET,
            how=(
                f"the real app on a socket, {tasks * per_task} games at once, {source}; the "
                "client shares the loop; "
                "in 99 % of the sleeps its own callbacks took at most "
                f"{statistics.median(busy[1:]):.2g} CPU s"
            ),
            if_missed="the engine's threads want the same cores as this loop",
            details={"busy_p99": statistics.median(busy[1:]), "samples_a_run": len(seen)},
        )
    ]


async def growth(bench: Bench) -> list[Row]:
    """R12 without an engine: seconds of the whole server path against games, players and turns."""
    games = (32, 64, 128) if bench.quick else (32, 64, 128, 256)
    turns = (8, 16, 32) if bench.quick else (8, 16, 32, 48)
    sweeps = [
        (
            "a",
            "games of a step",
            {count: await _path(compact_config("laptop"), count) for count in games},
        ),
        # The same number of moves at every table: what is left is the cost of a move at a larger
        # one.
        (
            "b",
            "players of a table, moves fixed",
            {
                players: await _path(compact_config("full", players, 20), 32)
                for players in (2, 3, 4, 5)
            },
        ),
        (
            "c",
            "turns of a game",
            {count: await _path(compact_config("full", 2, count), 32) for count in turns},
        ),
    ]
    rounds: dict[str, list[dict[float, float]]] = {letter: [] for letter, _, _ in sweeps}
    for number in range(bench.pairs + 1):
        for letter, _, paths in sweeps:
            # Up, then down: a machine that grows slower meanwhile does not bend the slope one way
            # only.
            order = sorted(paths, reverse=number % 2 == 0)
            costs = {float(size): await _path_seconds(paths[size]) for size in order}
            if number:
                rounds[letter].append(costs)
    how = (
        "rules, prompts, tokens, conversations and answers through the real scheduler; the "
        "engine answers at once"
    )
    return [
        Row(
            id=f"R12{letter}",
            name=f"log-log slope of the server path over {what}",
            arms=("log seconds", f"log {what}"),
            ratios=slopes(rounds[letter]),
            target=at_most(1.1),
            how=how,
            details={
                "seconds": [
                    {f"{size:g}": cost for size, cost in costs.items()} for costs in rounds[letter]
                ]
            },
        )
        for letter, what, _ in sweeps
    ]


def _env_seconds(config: EnvConfig, games: Sequence[Sequence[str]]) -> float:
    """Return the mean seconds of a turn when recorded moves are stepped through the env alone,
    prompts included.
    """
    start = time.perf_counter()
    for seed, moves in enumerate(games):
        game = HANABI.reset(config, split=SUITE, seed=seed)
        for move in moves:
            [player] = game.to_act()
            game.message(player)
            game.step({player: move})
    return (time.perf_counter() - start) / sum(map(len, games))


def _bot_moves(config: EnvConfig, num_tasks: int = 64) -> list[list[str]]:
    policies = dict.fromkeys(range(config.players), HANABI.policies["iggi"]())
    episodes = [
        play_scripts(Setup(HANABI, config).task(SUITE, seed), policies) for seed in range(num_tasks)
    ]
    return [[turn.action for turn in episode.turns] for episode in episodes]


async def _recording(bench: Bench) -> tuple[list[GameCalls], str]:
    """Return one step's games and what answered them."""
    if bench.engine is not None:
        return await bench.engine.recorded_games(), "the engine"
    settings, config = bench.settings, compact_config("laptop")
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
    return (
        recorder.games,
        f"an engine that answers after {_REPLY_SECONDS:g} s, give or take half of it",
    )


def mean_turn_seconds(games: list[GameCalls]) -> float:
    """Return the mean time from one question of a game to its next."""
    gaps = [
        later.started - earlier.started
        for game in games
        for earlier, later in itertools.pairwise(game)
    ] or [call.ended - call.started for game in games for call in game]
    return sum(gaps) / len(gaps)


def step_seconds(games: list[GameCalls]) -> float:
    """Return the time from the first question to the last answer."""
    return max(game[-1].ended for game in games) - min(game[0].started for game in games)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Path:
    """Games that are played through the server path again and again."""

    config: EnvConfig
    chat: ChatFormat
    games: list[GameCalls]


async def _path(config: EnvConfig, num_games: int) -> _Path:
    chat = chat_of(config)
    games = await scripted_games(
        config, chat, num_tasks=num_games // _PER_TASK, num_games=_PER_TASK
    )
    return _Path(config=config, chat=chat, games=games)


async def _path_seconds(path: _Path) -> float:
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
    asked = first_tasks(config, _SAMPLING, num_tasks=num_tasks, num_games=num_games)
    await scheduler.run(read_tasks(asked), _SAMPLING)
