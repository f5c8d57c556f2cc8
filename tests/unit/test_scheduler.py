"""A bad game is played again, then dropped; the others go on, one at a time, and the event loop
stays free.
"""

import asyncio
import dataclasses
import logging
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fake_engine import SAMPLING, TOKENIZER, FakeEngine, make_scheduler, sample, task, tasks_of
from hanabi_grpo.errors import (
    GameParameterError,
    ServerError,
    ServerGoneError,
    SettingsError,
    VersionError,
)
from hanabi_grpo.rollout.sampler import Sample
from hanabi_grpo.server.pacing import Places
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.types import DroppedGame, Episode


def played(
    engine: FakeEngine,
    *,
    num_games: int = 4,
    look: Callable[[Scheduler], None] | None = None,
    **other: Any,
) -> list[Episode | DroppedGame]:
    """The games of one task; `look` sees the scheduler afterwards, also after an error."""

    async def scenario() -> list[Episode | DroppedGame]:
        scheduler = make_scheduler(engine, **other)
        try:
            (games,) = await scheduler.run(tasks_of(task(3), num_games=num_games), SAMPLING)
            return games
        finally:
            if look:
                look(scheduler)

    return asyncio.run(asyncio.wait_for(scenario(), 60))


WIDE = dataclasses.replace(sample("Hint R"), ids=(len(TOKENIZER),), logprobs=(-0.5,))
SHORT = dataclasses.replace(sample("Hint R"), logprobs=(-0.5,))
FAULTS = {
    "RuntimeError: no": RuntimeError("no"),
    "NonFiniteError: reply: logprob 0 is nan": sample("Hint R", math.nan),
    "NonFiniteError: reply: logprob 0 is -inf": sample("Hint R", -math.inf),
    f"ServerError: reply: id {len(TOKENIZER)}; allowed are 0 to {len(TOKENIZER) - 1}": WIDE,
    "ServerError: reply: 1 logprobs for 3 ids": SHORT,
}


def test_the_line_of_a_deal_names_it_as_people_say_it_and_fits_100_columns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        await make_scheduler(FakeEngine()).run(
            tasks_of(task(42 * 2**32 + 400), num_games=16), SAMPLING
        )
        await asyncio.sleep(0.1)

    caplog.set_level(logging.INFO)
    asyncio.run(asyncio.wait_for(scenario(), 60))
    [line] = [line for line in caplog.messages if "tok/s" in line]
    wanted = (
        r"hanabi train 42:400: 16 games, [\d.]+ turns, \d+ bad, \d+ tok/s, returns base "
        r"-?\d\.\d\d base -?\d\.\d\d"
    )
    assert re.fullmatch(wanted, line), line
    assert len(f"11:14:00 {line}") <= 100


@pytest.mark.parametrize("reason", FAULTS)
def test_a_game_that_fails_is_played_again_and_then_dropped_and_the_others_go_on(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    counts: list[tuple[int, ...]] = []

    def look(one: Scheduler) -> None:
        counts.append((one.games_played, one.games_retried, one.games_failed, one.games_in_flight))

    caplog.set_level(logging.WARNING)
    games = played(
        FakeEngine(fault=lambda game, call: FAULTS[reason] if (game, call) == (1, 0) else None),
        look=look,
    )
    assert [(type(game), game.suite, game.seed, game.game) for game in games] == [
        (Episode, "train", 3, number) for number in range(4)
    ]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        f"hanabi train 3, game 1 failed, attempt 1 of 2 (it is played again): {reason}"
    )
    games = played(
        FakeEngine(fault=lambda game, call: FAULTS[reason] if game == 1 else None), look=look
    )
    assert [type(game) for game in games] == [Episode, DroppedGame, Episode, Episode]
    dropped = games[1]
    assert isinstance(dropped, DroppedGame) and dropped.reason.startswith(reason)
    assert (dropped.suite, dropped.seed, dropped.game) == ("train", 3, 1)
    assert counts == [(4, 1, 0, 0), (3, 1, 1, 0)]


def test_a_second_attempt_starts_with_an_empty_conversation() -> None:
    whole = played(FakeEngine(["Hint R"]), num_games=1)
    late = FakeEngine(
        ["Hint R"], fault=lambda game, call: RuntimeError("late") if call == 2 else None
    )
    assert played(late, num_games=1) == whole


def test_a_reason_is_one_line_that_json_can_hold() -> None:
    games = played(
        FakeEngine(
            fault=lambda game, call: ValueError("a\n b\ud800" + "x" * 900) if game == 0 else None
        )
    )
    assert isinstance(games[0], DroppedGame)
    assert games[0].reason.startswith("ValueError: a b?xxx")
    assert len(games[0].reason) == 300


def test_when_every_game_fails_the_request_fails_with_the_first_reason() -> None:
    def look(scheduler: Scheduler) -> None:
        assert (scheduler.games_played, scheduler.games_failed, scheduler.games_in_flight) == (
            0,
            4,
            0,
        )

    with pytest.raises(
        ServerError, match=r"all 4 games failed, .*hanabi train 3, game 0: RuntimeError: no 0\. "
    ) as caught:
        played(FakeEngine(fault=lambda game, call: RuntimeError(f"no {game}")), look=look)
    assert not isinstance(caught.value, ServerGoneError)


@pytest.mark.parametrize("error", [SettingsError("a"), VersionError("b"), GameParameterError("c")])
def test_an_error_that_says_the_request_is_impossible_ends_it_at_once(error: Exception) -> None:
    def look(scheduler: Scheduler) -> None:
        assert (scheduler.games_retried, scheduler.games_in_flight) == (0, 0)

    with pytest.raises(type(error), match=str(error)):
        played(FakeEngine(fault=lambda game, call: error if game == 1 else None), look=look)


def test_a_dead_engine_ends_the_request_at_once_as_a_server_that_is_gone() -> None:
    engine = FakeEngine()

    def die(game: int, call: int) -> Exception | None:
        engine.is_dead = engine.is_dead or game == 2
        return RuntimeError("EngineCore died") if engine.is_dead else None

    engine._fault = die

    def look(scheduler: Scheduler) -> None:
        assert (scheduler.games_retried, scheduler.games_failed, scheduler.games_in_flight) == (
            0,
            0,
            0,
        )

    with pytest.raises(
        ServerGoneError, match=r"the engine is dead; hanabi train 3, game 2 ended with RuntimeError"
    ):
        played(engine, look=look)


class Hanging(FakeEngine):
    """Game 0 cancels itself, or nobody does; the others wait for ever."""

    def __init__(self, *, cancels: bool) -> None:
        super().__init__()
        self.cancels, self.waiting, self.cancelled = cancels, asyncio.Event(), 0

    async def generate(self, *args: Any) -> Any:
        if self.cancels and not self.waiting.is_set():
            self.waiting.set()
            raise asyncio.CancelledError
        self.waiting.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def test_a_reply_that_the_engine_cancels_ends_the_request_with_a_reason() -> None:
    engine = Hanging(cancels=True)
    with pytest.raises(ServerError, match="game 0: the engine cancelled a reply"):
        played(engine)


def test_a_cancelled_request_cancels_its_games_and_starts_none_again() -> None:
    engine = Hanging(cancels=False)

    async def scenario() -> None:
        scheduler = make_scheduler(engine)
        running = asyncio.create_task(scheduler.run(tasks_of(task(3), num_games=4), SAMPLING))
        await asyncio.wait_for(engine.waiting.wait(), 60)
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (engine.cancelled, scheduler.games_retried, scheduler.games_in_flight) == (4, 0, 0)

    asyncio.run(scenario())


def order_of_ends(*requests: tuple[str, int, bool], at_once: int) -> str:
    """Ask for so many games each under a letter, one request after the other; return the letters as
    games end.
    """
    ended: list[str] = []

    class Noting(Scheduler):
        async def _attempt(self, asked: Any, *args: Any) -> Any:
            await asyncio.sleep(0)
            ended.append(chr(asked.task.seed))
            return await super()._attempt(asked, *args)

    async def scenario() -> None:
        scheduler = make_scheduler(FakeEngine(), games_at_once=at_once)
        scheduler.__class__ = Noting
        async with asyncio.TaskGroup() as group:
            for letter, num_games, own in requests:
                tasks = tasks_of(task(ord(letter)), num_games=num_games)
                group.create_task(scheduler.run(tasks, SAMPLING, own=own))
                for _ in range(5):
                    await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    return "".join(ended)


def test_places_are_taken_request_by_request_and_the_sessions_owner_comes_first() -> None:
    # The first two games of a are in play when the others come.
    assert (
        order_of_ends(("a", 8, False), ("b", 3, False), ("c", 2, False), at_once=2)
        == "aa" + "abcabcabaaa"
    )
    assert (
        order_of_ends(("a", 8, False), ("b", 3, False), ("t", 4, True), at_once=2)
        == "aa" + "tttt" + "abababaaa"
    )
    assert (
        order_of_ends(("a", 3, False), ("t", 2, True), ("u", 3, True), at_once=1)
        == "a" + "tutuu" + "aa"
    )


def test_places_of_requests_that_are_cancelled_are_given_on() -> None:
    async def scenario() -> None:
        places, inside = Places(2), []

        async def play(request: str) -> None:
            async with places.place(request, own=False):
                inside.append(request)
                await asyncio.sleep(0.001)

        games = [asyncio.create_task(play(request)) for request in "aaaabbbb"]
        await asyncio.sleep(0)
        for game in (games[0], games[2], games[5]):
            game.cancel()
        # A grant and a cancellation in one pass of the event loop.
        places._release()
        games[3].cancel()
        await asyncio.gather(*games, return_exceptions=True)
        assert sorted(inside) == ["a", "a", "b", "b", "b"]
        assert places._free == 3 and not places._guests

    asyncio.run(asyncio.wait_for(scenario(), 10))


class Waves(FakeEngine):
    """Answers nobody until it is told to, then everybody in the same pass, like one step of an
    engine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def generate(self, *args: Any) -> Sample:
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


def test_of_games_that_are_ready_together_one_goes_on_in_each_pass_of_the_event_loop() -> None:
    async def scenario() -> tuple[int, list[int], Counter[int]]:
        engine = Waves()
        request = asyncio.ensure_future(
            make_scheduler(engine).run(tasks_of(task(3), num_games=8), SAMPLING)
        )
        asked, waves, before, idle = Counter[int](), [], 0, 0
        while not request.done():
            await asyncio.sleep(0)
            new, before = engine.num_calls - before, engine.num_calls
            asked[new] += 1
            idle = 0 if new else idle + 1
            if idle > 4 * 8:
                waves.append(engine.answer())
                idle = 0
        turns = sum(len(game.turns) for games in await request for game in games)
        return turns, [wave for wave in waves if wave], asked

    turns, waves, asked = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert waves[:2] == [8, 8]
    assert set(asked) == {0, 1}
    assert asked[1] == turns == sum(waves)
