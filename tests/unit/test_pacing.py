"""Games, answers and the heap leave the event loop free, and the answers are those of the plain path."""

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import msgspec
import pytest

from fake_engine import BASE, CHAT, SAMPLING, deal, make_scheduler, sample, tasks_of
from hanabi_grpo.rollout.loop import play_episode
from hanabi_grpo.server import pacing
from hanabi_grpo.server.engine import Sample, SamplingConfig
from hanabi_grpo.server.pacing import Turnstile, in_slices
from hanabi_grpo.server.seats import Model, ServedPlayer
from hanabi_grpo.types import Episode
from server_app import WordEngine, rollout_body, running_app

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
        request = asyncio.ensure_future(make_scheduler(engine).run(tasks_of(deal(3), num_games=NUM_GAMES), SAMPLING))  # type: ignore[arg-type]
        asked, waves, before, idle = Counter[int](), [], 0, 0
        while not request.done():
            await asyncio.sleep(0)
            new, before = engine.num_calls - before, engine.num_calls
            asked[new] += 1
            idle = 0 if new else idle + 1
            if idle > 4 * NUM_GAMES:
                waves.append(engine.answer())
                idle = 0
        turns = sum(len(game.turns) for games in await request for game in games)
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


def _plain_answer(num_deals: int, num_games: int) -> dict[str, Any]:
    """What a server answers that plays one game after the other and encodes the answer at once."""

    async def play() -> list[Episode]:
        players = [ServedPlayer(model=Model(sampler=WordEngine(), chat=CHAT, max_model_len=512), sampling=SAMPLING)] * 2
        return [
            await play_episode(task.task, players, game=game, names=BASE, instance_id="test-instance")
            for task in tasks_of(*map(deal, range(num_deals)), num_games=num_games)
            for game in task.games
        ]

    return json.loads(msgspec.json.encode({"episodes": asyncio.run(play()), "dropped": []}))


@pytest.mark.parametrize("slice_seconds", [pacing.SLICE, -1.0])
def test_a_rollout_is_answered_with_the_games_of_the_plain_path(
    monkeypatch: pytest.MonkeyPatch, slice_seconds: float
) -> None:
    monkeypatch.setattr(pacing, "SLICE", slice_seconds)
    body = rollout_body(num_deals=3, num_games=4, seats=BASE)
    with running_app() as app:
        answer = httpx.post(f"{app.url}/rollout/", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(answer.content))
    assert len(answer.json()["episodes"]) == 12
    assert answer.json() == _plain_answer(3, 4)
