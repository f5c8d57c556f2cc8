"""Games, answers and the heap leave the event loop free, and the answers are those of the plain path."""

import asyncio
import gc
import json
from collections import Counter
from typing import Any

import httpx
import pytest
from fastapi.responses import JSONResponse, StreamingResponse
from hypothesis import given
from hypothesis import strategies as st

from fake_engine import BASE, CHAT, LAPTOP, SAMPLING, deal, make_scheduler, sample
from hanabi_grpo.rollout.deal_rows import rows_of
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.runs.wire import episode_to_outputs
from hanabi_grpo.server import pacing
from hanabi_grpo.server.answers import json_list
from hanabi_grpo.server.engine import Sample, SamplingConfig
from hanabi_grpo.server.pacing import Turnstile, heap_left_alone, in_slices
from hanabi_grpo.server.seats import ServedPolicy
from hanabi_grpo.server.tables import Table
from server_app import WordEngine, running_app

NUM_GAMES = 8


class Waves:
    """Answers nobody until it is told to, then everybody in the same pass, like one step of an engine."""

    is_dead = False

    def __init__(self) -> None:
        self.num_calls = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, lora: Any | None) -> Sample:
        self.num_calls += 1
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        await mine
        return sample("Hint R")

    def answer(self) -> int:
        """Answer everybody; returns how many that are."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.set_result(None)
        return len(waiting)

    async def load_adapter(self, name: str, number: int, path: str) -> Any:
        return name

    async def unload_adapter(self, number: int) -> None:
        return None


def test_of_games_that_are_ready_together_one_goes_on_in_each_pass_of_the_event_loop() -> None:
    async def scenario() -> tuple[int, list[int], Counter[int]]:
        engine = Waves()
        rows, _ = rows_of([deal(3)], NUM_GAMES)
        request = asyncio.ensure_future(make_scheduler(engine).run(rows, SAMPLING, BASE))  # type: ignore[arg-type]
        asked, waves, before, idle = Counter[int](), [], 0, 0
        while not request.done():
            await asyncio.sleep(0)
            new, before = engine.num_calls - before, engine.num_calls
            asked[new] += 1
            idle = 0 if new else idle + 1
            if idle > 4 * NUM_GAMES:
                waves.append(engine.answer())
                idle = 0
        turns = sum(output["rollout_infos"]["num_turns"] for output in await request)
        return turns, [wave for wave in waves if wave], asked

    turns, waves, asked = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert waves[:2] == [NUM_GAMES, NUM_GAMES]
    assert set(asked) == {0, 1}
    assert asked[1] == turns == sum(waves)


def test_a_turnstile_keeps_the_order_and_is_free_after_one_who_gives_up() -> None:
    async def scenario() -> list[int]:
        turnstile, passed = Turnstile(), []

        async def come(number: int) -> None:
            await turnstile.through()
            passed.append(number)

        tasks = [asyncio.ensure_future(come(number)) for number in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[3].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await come(9)
        return passed

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == [1, 2, 4, 9]


@pytest.mark.parametrize(("seconds", "between"), [(-1.0, [0, 1, 2]), (3600.0, [])])
def test_a_list_is_worked_through_whole_and_others_go_on_after_each_slice(
    monkeypatch: pytest.MonkeyPatch, seconds: float, between: list[int]
) -> None:
    monkeypatch.setattr(pacing, "SLICE", seconds)

    async def scenario() -> tuple[list[str], list[int]]:
        done: list[str] = []
        others: list[int] = []

        async def other() -> None:
            while True:
                others.append(len(done))
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        async for item in in_slices("abc"):
            done.append(item)
        task.cancel()
        return done, others

    done, others = asyncio.run(scenario())
    assert done == ["a", "b", "c"]
    assert others == [count + 1 for count in between]


async def _body(response: StreamingResponse) -> bytes:
    return b"".join([piece async for piece in response.body_iterator])  # type: ignore[misc]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text('aä\n"\\😀'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("aä"), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(_JSON, max_size=5))
def test_a_list_in_pieces_has_the_bytes_of_a_list_at_once(items: list[Any]) -> None:
    async def scenario() -> None:
        response, plain = await json_list(items), JSONResponse(items)
        assert await _body(response) == plain.body
        assert sorted(response.raw_headers) == sorted(plain.raw_headers)

    asyncio.run(scenario())


def test_a_number_that_json_cannot_hold_is_refused_before_the_answer_begins() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        asyncio.run(json_list([1, {"a": float("nan")}]))


def _plain_answer(num_deals: int, num_games: int) -> bytes:
    """What a server answers that plays one game after the other and encodes the answers at once."""

    async def play() -> list[dict[str, Any]]:
        served = ServedPolicy(
            WordEngine(), CHAT, loras={}, sampling=SamplingConfig(max_tokens=4), config=LAPTOP, max_model_len=512
        )
        table = Table(("base", "base"), served)
        outputs = []
        for seed in range(num_deals):
            games = [
                await play_episode(
                    LAPTOP,
                    table.policies,
                    suite="train",
                    seed=seed,
                    game=game,
                    names=table.seats,
                    instance_id="test-instance",
                )
                for game in range(num_games)
            ]
            pairs = [episode_to_outputs(one, model="hanabi_grpo", system_prompts=table.systems()) for one in games]
            outputs += [pair[player] for player in range(2) for pair in pairs]
        return outputs

    return bytes(JSONResponse(asyncio.run(play())).body)


@pytest.mark.parametrize("slice_seconds", [pacing.SLICE, -1.0])
def test_a_rollout_is_answered_with_the_bytes_of_the_plain_path(
    monkeypatch: pytest.MonkeyPatch, slice_seconds: float
) -> None:
    monkeypatch.setattr(pacing, "SLICE", slice_seconds)
    rows, _ = rows_of([deal(seed) for seed in range(3)], 4)
    body = {"infer_requests": rows, "request_config": {"max_tokens": 4}, "adapters": BASE}
    with running_app() as app:
        answer = httpx.post(f"{app.url}/infer/", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.content))
    assert len(json.loads(answer.content)) == 24
    assert answer.content == _plain_answer(3, 4)


def test_the_collector_leaves_alone_what_was_there_and_takes_what_comes() -> None:
    class Knot:
        alive = 0

        def __init__(self) -> None:
            self.me = self
            Knot.alive += 1

        def __del__(self) -> None:
            Knot.alive -= 1

    before = gc.get_freeze_count()
    with heap_left_alone():
        assert gc.get_freeze_count() > before + 1000
        Knot()
        gc.collect()
        assert Knot.alive == 0
    assert gc.get_freeze_count() == 0
