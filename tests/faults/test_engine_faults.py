"""Games that nobody waits for any more, and an engine that dies behind the real app; single faults: test_scheduler."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from guarded import PATIENCE, SERVED_VERSION, guarded, request_bytes, reset, serve_a_version

from fake_engine import deal
from hanabi_grpo.client.rollout_client import ClientTimeouts, RolloutClient
from hanabi_grpo.errors import ServerGoneError
from hanabi_grpo.server.engine import Sample
from server_app import PLAYERS, RunningApp, WordEngine, rollout_body, running_app

Drills = Callable[..., Any]


def test_games_of_clients_that_hang_up_are_cancelled(drill: Drills) -> None:
    row = drill("8 clients hang up in the middle of their games", short=2, long=25, lost="their games")
    engine = WordEngine()
    with guarded(engine=engine) as one:
        body = json.dumps(rollout_body(num_deals=2, num_games=4)).encode()
        sent = request_bytes("POST", "/rollout/", body, {"content-type": "application/json"})
        for _ in row:
            engine.seconds = 60.0
            with contextlib.ExitStack() as stack:
                clients = [stack.enter_context(one.app.connect(PATIENCE)) for _ in range(8)]
                for client in clients:
                    client.sendall(sent)
                deadline = time.monotonic() + PATIENCE
                while one.app.scheduler.games_in_flight < 64:
                    assert time.monotonic() < deadline, one.app.scheduler.games_in_flight
                    time.sleep(0.01)
                for client in clients:
                    if row.rng.random() < 0.5:
                        reset(client)
            engine.seconds = 0.0
            one.check()


def _play(client: RolloutClient) -> Any:
    wanted = [f"{player}@{SERVED_VERSION}" for player in PLAYERS]
    return client.play([deal(3), deal(4)], num_games=8, max_tokens=4, temperature=1.0, seats=wanted)


class _DyingEngine(WordEngine):
    """Gives some replies; the others wait for its death."""

    def __init__(self, replies: int) -> None:
        super().__init__()
        self.asked, self._replies = 0, replies

    async def generate(self, *args: Any) -> Sample:
        self.asked += 1
        if self.asked > self._replies:
            while not self.is_dead:
                await asyncio.sleep(0.005)
        return await super().generate(*args)


def _play_once(app: RunningApp, errors: list[Exception | None]) -> None:
    with contextlib.closing(RolloutClient(app.url, timeouts=ClientTimeouts(rollout=PATIENCE))) as client:
        try:
            _play(client)
            errors.append(None)
        except Exception as error:
            errors.append(error)


def test_an_engine_that_dies_in_the_middle_of_games_is_answered_503(drill: Drills) -> None:
    row = drill("the engine dies in the middle of games", short=2, long=30, lost="the games in flight")
    for _ in row:
        # A request has 16 games, each with a reply at least: none is complete when the engine dies.
        engine = _DyingEngine(replies=row.rng.randrange(16))
        # It looks for a dead engine less often than a request takes: what is tested is the answer, not the restart.
        with running_app(engine=engine, poll=0.5) as app:
            serve_a_version(app)
            errors: list[Exception | None] = []
            players = [threading.Thread(target=_play_once, args=(app, errors)) for _ in range(4)]
            for player in players:
                player.start()
            deadline = time.monotonic() + PATIENCE
            while engine.asked < 64:
                assert time.monotonic() < deadline, "not every game began"
                time.sleep(0.005)
            engine.is_dead = True
            for player in players:
                player.join(PATIENCE)
            assert len(errors) == 4 and all(isinstance(error, ServerGoneError) for error in errors), errors
            assert any("503" in str(error) and "engine is dead" in str(error) for error in errors), errors
