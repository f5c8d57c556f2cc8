"""R8b: what training saves by computing the shared prefixes of a group's games only once."""

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.context import Bench
from bench.pairing import Measure, measure_pairs, ratios_of
from bench.row import Row
from bench.stand_in import compact_config
from bench.training_rows import (
    bot_rows,
    check_cosine,
    gradient_of,
    learn,
    micro_batches_of,
    small_model,
)

if TYPE_CHECKING:
    from hanabi_grpo.training.micro_batch import TokenRow

_NOISE = 0.2
"""Share of the bot's moves that are random.

A team in the middle of its training plays about as much alike."""


async def shared_beginnings(bench: Bench) -> list[Row]:
    """R8b, without an engine: the first player's sequences in one step's groups."""
    from hanabi_grpo.training.model.shared_prefixes import share_prefixes

    settings = bench.settings
    rows = await group_rows(
        tasks=settings.tasks_per_step, games=settings.num_generations, seed=settings.seed
    )
    limit = settings.tokens_per_micro_batch or 2048
    plain = small_model(settings.device)
    sharing = small_model(settings.device)
    if not share_prefixes(sharing):
        raise RuntimeError("the bench's own model does not share prefixes; the log above says why")

    async def once() -> Measure:
        return learn(sharing, rows, limit, shared=True)

    async def each() -> Measure:
        return learn(plain, rows, limit)

    pairs = await measure_pairs(once, each, pairs=bench.pairs)
    ratios, cpu = ratios_of(pairs, of_time=True)
    gradient = gradient_of(sharing)
    expected = gradient_of(plain)
    cosine = float((gradient @ expected) / (gradient.norm() * expected.norm()))
    check_cosine(cosine)
    micro_batches = [len(micro_batches_of(rows, limit, "cpu", shared)) for shared in (True, False)]
    return [
        Row(
            id="R8b",
            name="shared prefixes computed once ÷ each sequence separately",
            arms=(
                "forward and backward, prefixes shared",
                "the same sequences and loss, each separately",
            ),
            ratios=ratios,
            cpu_ratios=cpu,
            target=None,
            how=f"{settings.tasks_per_step} × {settings.num_generations} games of a hint bot with "
            f"{_NOISE:.0%} random moves on laptop, first player; gradient cosine {cosine:.6f}",
            details={"cosine": cosine, "micro_batches": micro_batches},
        )
    ]


async def group_rows(*, tasks: int, games: int, seed: int) -> "list[TokenRow]":
    """Return the first player's sequences of groups, with random advantages on its replies.

    Args:
        tasks: Number of groups, each of a different task.
        games: Games per group.
        seed: Seed of the first task and of the advantages.
    """
    from hanabi_grpo.envs.hanabi.policies.rule_bots import rule_bot

    numbers = [(seed * tasks + task, game) for task in range(tasks) for game in range(games)]
    first, *_ = await bot_rows(rule_bot("hint-bot", _NOISE), compact_config("laptop"), numbers)
    rng = random.Random(seed)
    rows = []
    for row in first:
        advantages = [rng.gauss(0.0, 1.0) * is_reply for is_reply in row.mask]
        rows.append(replace(row, advantages=advantages))
    return rows
