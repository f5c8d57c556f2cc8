"""R1, R4, R7 and the engine's part of R12: a step's games against what the bare engine can do."""

import statistics
from dataclasses import asdict

from bench.context import Bench
from bench.growth import slopes
from bench.pairing import Measure, measure_pairs, ratios_of
from bench.prefix_trie import sharing
from bench.raw_engine import async_llm
from bench.recording import mean_active, tail_share
from bench.row import Row, at_least, at_most


async def against_raw(bench: Bench) -> list[Row]:
    """R1: tokens per second of games over that of the bare engine with the same requests."""
    engine = bench.needed_engine

    pairs = await measure_pairs(engine.play_again, engine.replay_raw, pairs=bench.pairs)
    ratios, cpu = ratios_of(pairs)
    return [
        Row(
            id="R1",
            name="tokens/s of games ÷ bare engine",
            arms=("scheduler, env and prompts", "AsyncLLM, same prompts and dependency order"),
            ratios=ratios,
            cpu_ratios=cpu,
            target=at_least(0.9),
            how=f"{engine.num_games} recorded games, prefix cache reset before each arm, wall "
            "time per sampled token",
            if_missed="rules, prompts and tokens of a move cost the same for every model (R12a's "
            "seconds), so their share is large with a small model; on few cores they also take "
            "time from the engine",
            details=_absolute(bench, [pair.first for pair in pairs]),
        )
    ]


async def seeds(bench: Bench) -> list[Row]:
    """R21: the cost of seeds for replies, which make a run reproducible."""
    engine = bench.needed_engine

    async def with_seeds() -> Measure:
        return await engine.play_again()

    async def without() -> Measure:
        return await engine.play_again(seeded=False)

    pairs = await measure_pairs(with_seeds, without, pairs=bench.pairs)
    ratios, cpu = ratios_of(pairs, of_time=True)
    return [
        Row(
            id="R21",
            name="time of a step's games, each reply with a seed ÷ without seeds",
            arms=("a seed for each reply, as in training", "requests without a seed"),
            ratios=ratios,
            cpu_ratios=cpu,
            how=f"{engine.num_games} recorded games, prefix cache reset before each arm, wall "
            "time per sampled token",
        )
    ]


async def cached_share(bench: Bench) -> list[Row]:
    """R4: cached prompt tokens over sharable ones."""
    engine = bench.needed_engine
    # Not forced: a forced reply would replace the one whose keys the engine has cached.
    plays = await engine.plays(bench.pairs)
    block_size = async_llm(engine.engine).vllm_config.cache_config.block_size
    counts = [sharing(games, block_size=block_size) for games in plays]
    reachable_shares = [count.sharable_in_blocks / max(1, count.sharable) for count in counts]
    reachable = statistics.median(reachable_shares)
    is_on_cpu = bench.settings.device == "cpu"
    return [
        Row(
            id="R4",
            name="cached ÷ sharable prompt tokens",
            arms=(
                "tokens that the engine took from its cache",
                "trie of all prompts and replies, per adapter",
            ),
            ratios=tuple(count.cached / max(1, count.sharable) for count in counts),
            target=at_least(0.85),
            how=f"freely played steps, the engine's counters; with blocks of {block_size} tokens, "
            f"at most {reachable:.2f} is reachable",
            if_missed=f"only whole blocks are cached, here of {block_size} tokens"
            + ("; vLLM's CPU kernel supports no smaller blocks" if is_on_cpu else ""),
            details=asdict(counts[-1]),
        )
    ]


async def tail(bench: Bench) -> list[Row]:
    """R7: how long the last few games keep the others waiting."""
    engine = bench.needed_engine
    tails = []
    active = []
    for games in await engine.plays(bench.pairs):
        tails.append(tail_share(games))
        active.append(mean_active(games))
    how = (
        f"freely played steps of {engine.num_games} games, all requested at once; times of their "
        "last replies"
    )
    return [
        Row(
            id="R7a",
            name="time of the last 10 % of games ÷ total",
            arms=("from the end of nine tenths of the games", "whole step"),
            ratios=tuple(tails),
            how=how,
        ),
        Row(
            id="R7b",
            name="mean active games ÷ started",
            arms=("games in play, over time", "games started"),
            ratios=tuple(active),
            how=how,
        ),
    ]


async def growth(bench: Bench) -> list[Row]:
    """R12d: seconds of a step's games on the engine against their number."""
    engine = bench.needed_engine
    tasks = [count for count in (1, 2, 4, 8, 16, 32) if count <= bench.settings.tasks_per_step]
    name = "log-log slope of a step's games over their number"
    arms = ("log seconds", "log games")
    if len(tasks) < 2:
        why = (
            f"HANABI_TASKS_PER_STEP={bench.settings.tasks_per_step}: a slope needs at least 2 tasks"
        )
        return [Row(id="R12d", name=name, arms=arms, target=at_most(1.1), why_not=why)]
    rounds = []
    for number in range(bench.pairs + 1):
        # Up, then down: a machine that slows down meanwhile does not bias the slope one way only.
        order = tasks if number % 2 else tasks[::-1]
        costs = {}
        for count in order:
            measure = await engine.play_again(num_tasks=count)
            costs[float(count * bench.settings.num_generations)] = measure.seconds
        if number:
            rounds.append(costs)
    return [
        Row(
            id="R12d",
            name=name,
            arms=arms,
            ratios=slopes(rounds),
            target=at_most(1.1),
            how="the first tasks of the recorded games on the engine, prefix cache reset before "
            "each",
            details={
                "seconds": [{f"{size:g}": cost for size, cost in costs.items()} for costs in rounds]
            },
        )
    ]


def _absolute(bench: Bench, measures: list[Measure]) -> dict[str, float]:
    # Absolute times on a shared CPU are of no use to others.
    if bench.settings.device == "cpu" or not measures:
        return {}
    middle = sorted(measures, key=lambda measure: measure.rate)[len(measures) // 2]
    return {
        "tokens_per_second": middle.rate,
        "games_per_second": middle.notes["games"] / middle.seconds,
    }
