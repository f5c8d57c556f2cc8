"""A server that is busy for guests: the trainer waits where it must, and says for whom."""

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from fake_engine import BASE, task
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample
from hanabi_grpo.server import door
from hanabi_grpo.server.adapter_loader import MAX_VERSIONS
from server_app import (
    JSON,
    PEFT_CONFIG,
    PLAYERS,
    RunningApp,
    WordEngine,
    adapter_bytes,
    push_to,
    running_app,
)
from waiting import wait_until


class PausableEngine(WordEngine):
    """Replies at once, but to nobody while `paused` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    async def generate(self, *args: Any) -> Sample:
        while self.paused:
            self.seconds = 0.01
            await super().generate(*args)
        return await super().generate(*args)


@pytest.fixture
def engine() -> PausableEngine:
    return PausableEngine()


@pytest.fixture
def app(engine: PausableEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningApp]:
    monkeypatch.setattr(door, "RETRY_SECONDS", 1)
    with running_app(engine=engine) as running:
        yield running


@contextlib.contextmanager
def guest_games(app: RunningApp, engine: PausableEngine, seats: Sequence[str]) -> Iterator[None]:
    """Games of a guest, which stand still during the block."""

    def play() -> None:
        with RolloutClient(app.url) as client:
            client.play([task(1)], num_games=1, max_tokens=4, temperature=1.0, seats=seats)

    before = app.scheduler.games_in_flight
    engine.paused = True
    thread = threading.Thread(target=play)
    thread.start()
    assert wait_until(lambda: app.scheduler.games_in_flight != before)
    try:
        yield
    finally:
        engine.paused = False
        thread.join(30)


class SlowScores(WordEngine):
    """Scores one reply after the other, a few milliseconds each, as a real engine on a CPU does."""

    def __init__(self) -> None:
        super().__init__()
        self.num_scores = 0

    async def score(
        self,
        prompt_ids: list[int],
        reply_ids: list[int],
        adapter: AdapterHandle | None,
        copy: int | None = None,
    ) -> tuple[float, ...]:
        self.num_scores += 1
        await asyncio.sleep(0.005)
        return (-1.0,) * len(reply_ids)


def score_body(*, num_prompts: int, num_replies: int) -> bytes:
    """A request for scores on the base model."""
    prompt = {"system": "", "prompt": "Play 1", "replies": ["Play 0"] * num_replies}
    return json.dumps({"seat": "base", "prompts": [prompt] * num_prompts}).encode()


def test_the_largest_score_request_of_a_guest_holds_up_nobody_and_ends_with_its_client() -> None:
    engine = SlowScores()
    with running_app(engine=engine) as app, RolloutClient(app.url) as client:
        body = score_body(num_prompts=1024, num_replies=64)
        head = f"POST /score/ HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        connection = app.connect()
        connection.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        assert wait_until(lambda: engine.num_scores)
        waits = []
        for _ in range(20):
            start = time.perf_counter()
            client.health()
            waits.append(time.perf_counter() - start)
        # It took minutes; the bound is wide since other tests run beside.
        assert max(waits) < 2.0
        [games] = client.play(
            [task(1)], num_games=2, max_tokens=4, temperature=1.0, seats=BASE
        ).groups
        assert len(games) == 2
        connection.close()

        def is_idle() -> bool:
            num_scores = engine.num_scores
            time.sleep(0.1)
            return engine.num_scores == num_scores

        assert wait_until(is_idle)
        assert engine.num_scores < 1024 * 64


def test_a_request_for_too_many_scores_is_refused() -> None:
    with running_app(engine=SlowScores()) as app:
        body = score_body(num_prompts=1025, num_replies=64)
        answer = httpx.post(f"{app.url}/score/", content=body, headers=JSON)
        assert answer.status_code == 422
        assert "1025 prompts with 65600 replies; a request may have at most 65536." in answer.text


def resume_on_wait(engine: PausableEngine, log: pytest.LogCaptureFixture) -> threading.Thread:
    """Let the engine go on once a client logs that it waits."""

    def resume() -> None:
        # Where nobody waits, the test goes on all the same, and fails.
        wait_until(lambda: any("retrying every 1 s" in line for line in log.messages))
        engine.paused = False

    thread = threading.Thread(target=resume)
    thread.start()
    return thread


def push(trainer: RolloutClient, version: int) -> None:
    bodies = {}
    for number, name in enumerate(PLAYERS):
        bodies[name] = (adapter_bytes(number + version), PEFT_CONFIG)
    trainer.push(version, bodies)


def test_a_push_waits_for_games_that_hold_older_versions_and_names_them(
    app: RunningApp, engine: PausableEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with RolloutClient(app.url) as trainer, contextlib.ExitStack() as stack:
        push_to(trainer, app, version=1)
        newest = MAX_VERSIONS
        for version in range(1, newest):
            seats = [f"{name}@{version}" for name in PLAYERS]
            stack.enter_context(guest_games(app, engine, seats))
            push(trainer, version + 1)
        resuming = resume_on_wait(engine, caplog)
        push(trainer, newest + 1)
        resuming.join()
        assert app.store.versions() == dict.fromkeys(PLAYERS, newest + 1)
    [line] = [line for line in caplog.messages if "retrying every" in line]
    assert f"holds {newest} versions of player_0 (player_0@1 by 1 rollout(s), " in line
    assert f"player_0@{newest - 1} by 1 rollout(s), player_0@{newest} by 0 rollout(s))" in line
