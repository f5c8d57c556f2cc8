"""Every row that needs the engine, on the real `Engine` class and the real app; only `AsyncLLM` itself is played."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from bench import env_rows, lora_rows, parity_rows, push_rows, rollout_rows, stock_rows
from bench.context import Bench, board_of
from bench.engine_bench import started_engine
from bench.row import Row
from bench_engine import BLOCK, FakeLLM
from fake_engine import CHAT
from hanabi_grpo.errors import ServerError
from hanabi_grpo.settings import load_settings
from hanabi_grpo.training.model.adapters import add_adapters
from small_models import SHIPPED

ROOT = Path(__file__).parents[2]
WORDS = [
    [*CHAT.tokenizer.encode(text, add_special_tokens=False), CHAT.eos_id]
    for text in ("Hint R", "Discard 0", "Hint Y", "Discard 1", "Play 0")
]


@pytest.fixture(scope="module")
def model() -> Path:
    return SHIPPED


@pytest.fixture
def measured(model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Row]]:
    """Give a function that runs rows on one started engine."""
    from vllm.v1.engine.async_llm import AsyncLLM

    def measure(*rows: Callable[[Bench], Awaitable[list[Row]]], llm: FakeLLM, num_deals: int = 4) -> list[Row]:
        monkeypatch.setattr(AsyncLLM, "from_engine_args", classmethod(lambda cls, args: llm))
        shell = {
            "MODEL": str(model),
            "DATASET": str(ROOT / "data/hanabi.laptop.jsonl"),
            "HANABI_DEALS_PER_STEP": str(num_deals),
            "NUM_GENERATIONS": "4",
            "LORA_RANK": "8",
        }
        settings = load_settings(shell, ROOT / "no.env").settings
        config = board_of(settings)

        async def run() -> list[Row]:
            async with started_engine(settings, config) as engine:
                bench = Bench(settings=settings, config=config, quick=True, say=lambda text: None, engine=engine)
                return [row for one in rows for row in await one(bench)]

        found = asyncio.run(run())
        assert llm.is_down
        return found

    return measure


def test_games_the_bare_engine_caches_and_growth(measured: Callable[..., list[Row]]) -> None:
    llm = FakeLLM(WORDS)
    found = measured(
        rollout_rows.against_raw, rollout_rows.cached_share, rollout_rows.tail, rollout_rows.growth, llm=llm
    )
    rows = {row.id: row for row in found}
    assert sorted(rows) == ["R1", "R12d", "R4", "R7a", "R7b"]
    assert all(len(row.ratios) == 3 for row in rows.values())
    assert all(ratio > 0 for ratio in rows["R1"].ratios)
    assert all(0 <= ratio <= 1 for row in ("R4", "R7a", "R7b") for ratio in rows[row].ratios)
    counts = rows["R4"].details
    # The played engine caches whole blocks and nothing else, and what it says is what the trie expects.
    assert counts["cached"] == counts["sharable_in_blocks"] > 0
    assert counts["sharable"] > counts["sharable_in_blocks"]
    assert counts["cached"] % BLOCK == 0
    assert sorted(llm.adapters_used) == ["player_0@1", "player_1@1"]


def test_generation_with_and_without_adapters_pushes_and_env_time(measured: Callable[..., list[Row]]) -> None:
    llm = FakeLLM(WORDS)
    rows = {row.id: row for row in measured(lora_rows.generation, push_rows.push, env_rows.env_share, llm=llm)}
    assert sorted(rows) == ["R3a", "R5a", "R5b", "R9a", "R9c"]
    assert "" in llm.adapters_used
    # Every push replaces the adapters: the games after it ask for the newest, and the engine keeps no others.
    assert len(llm.loaded) == 2
    assert {name.split("@")[0] for name in llm.adapters_used} == {"", "player_0", "player_1"}
    assert rows["R5b"].details["bytes"] > 1000
    assert all(ratio > 0 for row in rows.values() for ratio in row.ratios)


def test_ms_swifts_own_scheduler_plays_the_recorded_games(measured: Callable[..., list[Row]]) -> None:
    llm = FakeLLM(WORDS)
    [row] = measured(stock_rows.against_stock, llm=llm)
    assert len(row.ratios) == 3
    # One request a turn, and one for each seat whose game ended before its turn.
    assert row.details["stock_requests"] >= row.details["our_requests"] > 16
    assert row.details["stock_requests"] - row.details["our_requests"] <= 16


def test_parity_holds_after_a_push_and_a_stale_adapter_is_seen(measured: Callable[..., list[Row]], model: Path) -> None:
    served = add_adapters(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), ["served"], rank=8, alpha=32, seed=0
    )
    fresh, stale = measured(parity_rows.parity, llm=FakeLLM(WORDS, served), num_deals=1)
    assert (fresh.id, stale.id) == ("R10a", "R10b")
    assert fresh.median is not None and fresh.median < 1e-4
    assert fresh.met is True
    assert stale.met is True
    assert min(stale.ratios) > 0.01


def test_an_engine_that_plays_other_games_ends_the_row(measured: Callable[..., list[Row]]) -> None:
    llm = FakeLLM(WORDS)

    async def cut(bench: Bench) -> list[Row]:
        engine = bench.needed_engine
        games = await engine.recorded_games()
        games[0] = games[0][:-1]
        await engine.play_again()
        return []

    with pytest.raises(ServerError, match="did not follow the recording"):
        measured(cut, llm=llm)
