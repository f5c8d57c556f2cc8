"""A server that is busy for guests: the trainer waits where it must, and says for whom."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fake_engine import task
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.rollout.sampler import Sample
from hanabi_grpo.server import door
from server_app import (
    PEFT_CONFIG,
    PLAYERS,
    RunningApp,
    WordEngine,
    adapter_bytes,
    push_to,
    running_app,
)


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
    while app.scheduler.games_in_flight == before:
        time.sleep(0.01)
    try:
        yield
    finally:
        engine.paused = False
        thread.join(30)


def resume_on_wait(engine: PausableEngine, log: pytest.LogCaptureFixture) -> threading.Thread:
    """Let the engine go on once a client logs that it waits."""

    def resume() -> None:
        while not any("asked again every 1 s" in line for line in log.messages):
            time.sleep(0.01)
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
        for version in (1, 2):
            seats = [f"{name}@{version}" for name in PLAYERS]
            stack.enter_context(guest_games(app, engine, seats))
            push(trainer, version + 1)
        resuming = resume_on_wait(engine, caplog)
        push(trainer, 4)
        resuming.join()
        assert app.store.versions() == dict.fromkeys(PLAYERS, 4)
    [line] = [line for line in caplog.messages if "asked again" in line]
    assert (
        "player_0@1 by 1 rollout(s), player_0@2 by 1 rollout(s), player_0@3 by 0 rollout(s)" in line
    )
