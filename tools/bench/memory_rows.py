"""R16: the training cost of games with 70 turns.

Each turn is a separate sequence, or the whole history is one sequence.
"""

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.context import Bench
from bench.pairing import Measure, measure_pairs, ratios_of
from bench.row import Row, at_most
from bench.stand_in import chat_of, compact_config
from bench.training_rows import bot_rows, learn, with_adapter

if TYPE_CHECKING:
    from hanabi_grpo.envs.config import Memory
    from hanabi_grpo.training.micro_batch import TokenRow

TARGET = at_most(0.5)
_GAMES = 8


async def single_turns(bench: Bench) -> list[Row]:
    """R16, without an engine: the first player's sequences of the same games, both memories."""
    from hanabi_grpo.sft.tiny_model.network import untrained_model
    from hanabi_grpo.training.model.shared_prefixes import share_prefixes

    settings = bench.settings
    turns = await game_rows("turn", num_games=_GAMES, seed=settings.seed)
    whole = await game_rows("game", num_games=_GAMES, seed=settings.seed)
    if sampled(turns) != sampled(whole):
        raise RuntimeError("the two memories have different replies, so they cannot be compared")
    chat = chat_of(compact_config("full"))
    limit = settings.tokens_per_micro_batch or 2048
    model = with_adapter(lambda: untrained_model(chat.tokenizer, {})[0], settings.device)
    if not share_prefixes(model):
        raise RuntimeError("the tiny model does not share prefixes; the log above says why")

    async def by_turn() -> Measure:
        return learn(model, turns, limit, shared=True)

    async def by_game() -> Measure:
        return learn(model, whole, limit, shared=True)

    ratios, cpu = ratios_of(await measure_pairs(by_turn, by_game, pairs=bench.pairs), of_time=True)
    longest = [max(len(row.ids) for row in rows) for rows in (turns, whole)]
    return [
        Row(
            id="R16",
            name="games of 70 turns: memory = turn ÷ the whole history",
            arms=(
                "forward and backward, a sequence for each turn",
                "the same replies, a sequence for each game",
            ),
            ratios=ratios,
            cpu_ratios=cpu,
            target=TARGET,
            how=f"{_GAMES} games of IGGI on full, first player, {len(sampled(turns))} sampled "
            f"tokens in both; sequences of up to {longest[0]} and {longest[1]} tokens, prefixes "
            "shared; the tiny architecture",
            details={
                "sequences": [len(turns), len(whole)],
                "tokens": [sum(len(row.ids) for row in rows) for rows in (turns, whole)],
                "longest": longest,
            },
        )
    ]


async def game_rows(memory: "Memory", *, num_games: int, seed: int) -> "list[TokenRow]":
    """Return the first player's sequences of games with one memory.

    Each sampled token has the same advantage under all memories.

    Args:
        memory: The memory of the conversations.
        num_games: Games, each of a different task, because IGGI always plays a task the same way.
        seed: Seed of the first task and of the advantages.
    """
    from hanabi_grpo.envs.hanabi.environment import HANABI

    config = compact_config("full").model_copy(update={"memory": memory})
    tasks = [(seed * num_games + game, 0) for game in range(num_games)]
    first, *_ = await bot_rows(HANABI.policies["iggi"](), config, tasks)
    rng = random.Random(seed)
    rows = []
    for row in first:
        advantages = [rng.gauss(0.0, 1.0) if is_reply else 0.0 for is_reply in row.mask]
        rows.append(replace(row, advantages=advantages))
    return rows


def sampled(rows: "list[TokenRow]") -> list[tuple[int, float]]:
    """Return the tokens that carry loss, and their advantages, in order."""
    tokens = []
    for row in rows:
        for token, advantage, is_reply in zip(row.ids, row.advantages, row.mask, strict=True):
            if is_reply:
                tokens.append((token, advantage))
    return tokens
