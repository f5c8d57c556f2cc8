"""Games that nobody waits for any more, and an engine that fails behind the real app."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from guarded import PATIENCE, SERVED_VERSION, Guarded, guarded, request_bytes, reset, serve_a_version

from fake_engine import deal
from hanabi_grpo.client.rollout_client import ClientTimeouts, RolloutClient
from hanabi_grpo.errors import ServerError, ServerGoneError
from hanabi_grpo.server.engine import Sample
from hanabi_grpo.types import Episode
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


class _FaultyEngine(WordEngine):
    """Fails in chosen games: at one reply of `faulty`, as often as `failures` says."""

    def __init__(self) -> None:
        super().__init__()
        self.plan(set(), 0, lambda: None)

    def plan(self, faulty: set[int], failures: int, fail: Callable[[], Sample | None]) -> None:
        self._games: list[asyncio.Task[Any] | None] = []
        self._failed: dict[int, int] = {}
        self._faulty, self._failures, self._fail = faulty, failures, fail

    async def generate(self, *args: Any) -> Sample:
        task = asyncio.current_task()
        if task not in self._games:
            self._games.append(task)
        game = self._games.index(task)
        if game in self._faulty and self._failed.get(game, 0) < self._failures:
            self._failed[game] = self._failed.get(game, 0) + 1
            if (planted := self._fail()) is not None:
                return planted
        return await super().generate(*args)


def _raise() -> Sample | None:
    raise RuntimeError("the engine failed for one request")


def _sample(ids: tuple[int, ...], logprobs: tuple[float, ...]) -> Callable[[], Sample]:
    return lambda: Sample(ids=ids, logprobs=logprobs, finish_reason="stop", num_cached_tokens=0)


_FAULTS: list[Callable[[], Sample | None]] = [
    _raise,
    _sample((1, 2), (-0.5, float("nan"))),
    _sample((1, 2), (float("-inf"), -0.5)),
    _sample((1, 2), (-0.5,)),
]


@pytest.fixture
def faulty() -> Iterator[tuple[_FaultyEngine, RolloutClient, Guarded]]:
    engine = _FaultyEngine()
    with guarded(engine=engine) as one, contextlib.closing(RolloutClient(one.app.url)) as client:
        yield engine, client, one


def _play(client: RolloutClient) -> Any:
    wanted = [f"{player}@{SERVED_VERSION}" for player in PLAYERS]
    return client.play([deal(3), deal(4)], num_games=8, max_tokens=4, temperature=1.0, seats=wanted)


def _numbers(groups: list[list[Episode]]) -> set[tuple[int, int]]:
    return {(episode.seed, episode.game) for group in groups for episode in group}


def test_a_game_that_fails_once_is_played_again_and_nobody_sees_a_difference(
    faulty: tuple[_FaultyEngine, RolloutClient, Guarded], drill: Drills
) -> None:
    engine, client, _ = faulty
    undisturbed = _play(client)
    row = drill("the engine fails once in some games of a request", short=20, long=500)
    for number in row:
        engine.plan(set(row.rng.sample(range(16), row.rng.randrange(1, 16))), 1, _FAULTS[number % len(_FAULTS)])
        assert _play(client) == undisturbed
    engine.plan(set(), 0, _raise)


def test_games_that_fail_always_are_dropped_and_named_and_the_others_go_on(
    faulty: tuple[_FaultyEngine, RolloutClient, Guarded], drill: Drills
) -> None:
    engine, client, one = faulty
    everything = _numbers(_play(client).groups)
    row = drill("the engine fails always in some games of a request", short=20, long=500, lost="those games")
    for number in row:
        before = one.app.scheduler.games_failed
        count = row.rng.randrange(1, 16)
        engine.plan(set(row.rng.sample(range(16), count)), 1000, _FAULTS[number % len(_FAULTS)])
        result = _play(client)
        dropped = {(game.seed, game.game) for game in result.dropped}
        assert len(dropped) == len(result.dropped) == count
        assert dropped | _numbers(result.groups) == everything and not dropped & _numbers(result.groups)
        assert all(game.reason for game in result.dropped)
        assert one.app.scheduler.games_failed == before + count
    engine.plan(set(range(16)), 1000, _raise)
    with pytest.raises(ServerError, match="none of the 16 games could be played"):
        _play(client)
    engine.plan(set(), 0, _raise)


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
