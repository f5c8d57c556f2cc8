"""R3: the engine's cost of adapters, and the gain of our CPU path for them over vLLM's own."""

from collections.abc import Callable

from bench.context import Bench
from bench.pairing import Measure, Stopwatch, measure_pairs, ratios_of
from bench.row import Row, at_least, not_measured

_TOKENS = 512
"""Tokens of the batch."""
_INNER = 1024
"""Width of the layer's input."""
_WIDTHS = (2048, 512, 512)
"""Widths of the slices of the layer's output: queries, keys and values."""
_OUR_REPEATS = 24
_STOCK_REPEATS = 3
"""Calls in a run of each arm; the stock method is several times slower."""


async def generation(bench: Bench) -> list[Row]:
    """R3a: tokens per second with every player's adapter over tokens per second without."""
    engine = bench.needed_engine
    prompts = []
    for game in await engine.recorded_games():
        for call in game[-bench.config.players :]:
            prompts.append((call.prompt_ids, len(call.reply_ids), call.adapter))

    async def with_lora() -> Measure:
        return await engine.batch(prompts, lora=True)

    async def without() -> Measure:
        return await engine.batch(prompts, lora=False)

    ratios, cpu = ratios_of(await measure_pairs(with_lora, without, pairs=bench.pairs))
    return [
        Row(
            id="R3a",
            name="generation with LoRA ÷ without",
            arms=(f"one adapter per player, rank {bench.settings.largest_rank}", "base model"),
            ratios=ratios,
            cpu_ratios=cpu,
            target=at_least(0.9),
            how=f"{len(prompts)} recorded prompts at once (each player's last of a game), bare "
            "engine, empty caches",
            if_missed="two more matrix products in each group of layers; in narrow layers, the "
            "number of operations matters, not their size",
        )
    ]


async def operator(bench: Bench) -> list[Row]:
    """R3b: the method that adds LoRA to a layer, ours over vLLM's own, without an engine."""
    name = "LoRA on CPU, ours ÷ stock, prefill"
    target = at_least(2.0)
    arms = ("all adapters side by side", "stock: weights gathered per token")
    if bench.settings.device != "cpu":
        why = "only the CPU build has it; GPUs use vLLM's kernels"
        return [not_measured("R3b", name, arms, target, why)]
    import torch

    from bench.lora_case import LoraCase

    case = LoraCase(
        num_tokens=_TOKENS,
        num_adapters=bench.config.players,
        inner=_INNER,
        widths=_WIDTHS,
        rank=bench.settings.largest_rank,
        dtype=getattr(torch, bench.settings.dtype),
    )

    async def ours() -> Measure:
        return _repeat(case.ours, _OUR_REPEATS)

    async def stock() -> Measure:
        return _repeat(case.stock, _STOCK_REPEATS)

    ratios, cpu = ratios_of(await measure_pairs(ours, stock, pairs=bench.pairs))
    return [
        Row(
            id="R3b",
            name=name,
            arms=arms,
            ratios=ratios,
            cpu_ratios=cpu,
            target=target,
            how=(
                f"the layer method alone: {_TOKENS} tokens of {bench.config.players} adapters, "
                f"{_INNER} → {sum(_WIDTHS)} in {len(_WIDTHS)} slices, rank "
                f"{bench.settings.largest_rank}, {bench.settings.dtype}"
            ),
        )
    ]


def _repeat(work: Callable[[], object], times: int) -> Measure:
    with Stopwatch() as watch:
        for _ in range(times):
            work()
    return watch.measure(times * _TOKENS)
