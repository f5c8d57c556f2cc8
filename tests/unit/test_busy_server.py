"""A server that is busy for others: the trainer keeps its place, waits where it must, and says for
whom.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fake_engine import task
from hanabi_grpo.client.rollout_client import RolloutClient
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


class HeldEngine(WordEngine):
    """Replies at once, but to nobody while `held` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.held = False

    async def generate(self, *args: Any) -> Any:
        while self.held:
            self.seconds = 0.01
            await super().generate(*args)
        return await super().generate(*args)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningApp]:
    monkeypatch.setattr(door, "RETRY_SECONDS", 1)
    with running_app(engine=HeldEngine()) as app:
        yield app


@contextlib.contextmanager
def guest(app: RunningApp, seats: Sequence[str]) -> Iterator[None]:
    """A guest whose games stand still until the block lets the engine go on."""
    engine = app.engine
    assert isinstance(engine, HeldEngine)

    def visit() -> None:
        with RolloutClient(app.url) as client:
            client.play([task(1)], num_games=1, max_tokens=4, temperature=1.0, seats=seats)

    engine.held, before = True, app.scheduler.games_in_flight
    thread = threading.Thread(target=visit)
    thread.start()
    while app.scheduler.games_in_flight == before:
        time.sleep(0.01)
    try:
        yield
    finally:
        engine.held = False
        thread.join(30)


def waits(log: pytest.LogCaptureFixture, engine: WordEngine) -> threading.Thread:
    """Let the engine go on once somebody says that he waits."""

    def release() -> None:
        while not any("asked again every 1 s" in line for line in log.messages):
            time.sleep(0.01)
        engine.held = False  # type: ignore[attr-defined]

    thread = threading.Thread(target=release)
    thread.start()
    return thread


def test_a_push_waits_for_games_that_hold_older_versions_and_names_them(
    busy: RunningApp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    def push(version: int) -> None:
        bodies = {
            name: (adapter_bytes(number + version), PEFT_CONFIG)
            for number, name in enumerate(PLAYERS)
        }
        trainer.push(version, bodies)

    with RolloutClient(busy.url) as trainer, contextlib.ExitStack() as stack:
        push_to(trainer, busy, version=1)
        for version in (1, 2):
            stack.enter_context(guest(busy, [f"{name}@{version}" for name in PLAYERS]))
            push(version + 1)
        waiting = waits(caplog, busy.engine)
        push(4)
        waiting.join()
        assert busy.store.versions() == dict.fromkeys(PLAYERS, 4)
    (line,) = [line for line in caplog.messages if "asked again" in line]
    assert (
        "player_0@1 by 1 rollout(s), player_0@2 by 1 rollout(s), player_0@3 by 0 rollout(s)" in line
    )
