"""R2: games per second against ms-swift's own scheduler."""

from collections.abc import Sequence

from bench.context import Bench
from bench.pairing import Measure, Stopwatch, measure_pairs, ratios_of
from bench.recording import GameCalls
from bench.row import Row, at_least
from bench.stand_in import SUITE
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.settings.refs import BASE

Script = list[tuple[str, tuple[int, ...]]]
"""Text and ids of each reply of a seat."""


async def against_stock(bench: Bench) -> list[Row]:
    """R2: our scheduler over `GYMScheduler`, both on the base model of the same engine."""
    import torch

    from bench.raw_engine import async_llm
    from bench.stock_gym import ReplayingEngine, SharedGame, play_stock, scheduler_of, seat_requests
    from hanabi_grpo.runs.fingerprint import resolve_model

    engine = bench.needed_engine
    settings = bench.settings
    config = bench.config
    games = await engine.recorded_games()
    stock_engine = ReplayingEngine(
        resolve_model(settings.model),
        async_llm(engine.engine),
        max_model_len=settings.max_model_len,
        max_lora_rank=settings.largest_rank,
    )
    scheduler = scheduler_of(stock_engine)
    scripts = [seat_scripts(game, config.players, engine.chat) for game in games]

    async def ours() -> Measure:
        measure = await engine.play_again(seats=(BASE,) * len(engine.players))
        return Measure(seconds=measure.seconds, cpu_seconds=measure.cpu_seconds, amount=len(games))

    async def stock() -> Measure:
        await engine.engine.reset_prefix_cache()
        before = stock_engine.num_requests
        with Stopwatch(children=True) as watch:
            shared_games = []
            requests = []
            for number, script in enumerate(scripts):
                seed, game = divmod(number, settings.num_generations)
                shared_game = SharedGame(config, script, suite=SUITE, seed=seed, game=game)
                shared_games.append(shared_game)
                requests += seat_requests(shared_game)
            # ms-swift awaits inside its own `inference_mode` in many tasks at once, and the last
            # task to exit would leave the mode on for the whole process. The outer context restores
            # the original mode.
            with torch.inference_mode():
                await play_stock(scheduler, requests, settings.temperature)
        for shared_game in shared_games:
            shared_game.check_followed()
        return watch.measure(len(games), requests=stock_engine.num_requests - before)

    pairs = await measure_pairs(ours, stock, pairs=bench.pairs)
    ratios, cpu = ratios_of(pairs)
    return [
        Row(
            id="R2",
            name="games/s ÷ ms-swift's GYMScheduler",
            arms=("our scheduler", "ms-swift 4.6.0, patched to start on CPU"),
            ratios=ratios,
            cpu_ratios=cpu,
            target=at_least(2.0),
            how=f"{len(games)} recorded games with forced moves, base model, same engine, caches "
            "reset before each arm",
            if_missed="both arms wait for the same engine most of the time; CPU seconds show each "
            "arm's own work",
            details={
                "our_requests": sum(len(game) for game in games),
                "stock_requests": pairs[-1].second.notes["requests"] if pairs else 0,
            },
        )
    ]


def seat_scripts(game: GameCalls, num_players: int, chat: ChatFormat) -> Sequence[Script]:
    """Return the replies of each seat; seats take turns from seat 0 on.

    Args:
        game: The recorded calls of a game.
        num_players: Seats.
        chat: Decodes the replies.
    """
    scripts: list[Script] = [[] for _ in range(num_players)]
    for number, call in enumerate(game):
        text = chat.decode(list(call.reply_ids))
        scripts[number % num_players].append((text, call.reply_ids))
    return scripts
