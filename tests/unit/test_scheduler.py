"""A bad game is played again, then dropped; the others go on, and the event loop stays free."""

import asyncio
import dataclasses
import logging
import math
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
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
from hanabi_grpo.rollout.messages import ScoredPrompt, ScoreRequest
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample
from hanabi_grpo.server.pacing import Places
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.types import DroppedGame, Episode


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a scheduler has counted."""

    played: int = 0
    retried: int = 0
    failed: int = 0
    in_flight: int = 0


def counts_of(scheduler: Scheduler) -> Counts:
    return Counts(
        played=scheduler.games_played,
        retried=scheduler.games_retried,
        failed=scheduler.games_failed,
        in_flight=scheduler.games_in_flight,
    )


def play(
    engine: FakeEngine,
    *,
    num_games: int = 4,
    look: Callable[[Counts], None] | None = None,
) -> list[Episode | DroppedGame]:
    """Return the games of one task; `look` sees the counts afterwards, also after an error."""

    async def scenario() -> list[Episode | DroppedGame]:
        scheduler = make_scheduler(engine)
        try:
            [games] = await scheduler.run(tasks_of(task(3), num_games=num_games), SAMPLING)
            return games
        finally:
            if look:
                look(counts_of(scheduler))

    return asyncio.run(asyncio.wait_for(scenario(), 60))


UNKNOWN_ID = dataclasses.replace(sample("Hint R"), ids=(len(TOKENIZER),), logprobs=(-0.5,))
TOO_FEW_LOGPROBS = dataclasses.replace(sample("Hint R"), logprobs=(-0.5,))
FAULTS = {
    "RuntimeError: no": RuntimeError("no"),
    "NonFiniteError: reply: logprob 0 is nan": sample("Hint R", math.nan),
    "NonFiniteError: reply: logprob 0 is -inf": sample("Hint R", -math.inf),
    f"ServerError: reply: id {len(TOKENIZER)}; allowed are 0 to {len(TOKENIZER) - 1}": UNKNOWN_ID,
    "ServerError: reply: 1 logprobs for 3 ids": TOO_FEW_LOGPROBS,
}
"""Beginning of the reason to what the engine does."""


def test_the_line_of_a_task_names_it_as_people_do_and_fits_100_columns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seed = 42 * 2**32 + 400

    async def scenario() -> None:
        await make_scheduler(FakeEngine()).run(tasks_of(task(seed), num_games=16), SAMPLING)
        await asyncio.sleep(0.1)

    caplog.set_level(logging.INFO)
    asyncio.run(asyncio.wait_for(scenario(), 60))
    [line] = [line for line in caplog.messages if "tok/s" in line]
    expected = (
        r"hanabi train 42:400: 16 games, [\d.]+ turns, \d+ bad, \d+ tok/s, returns base "
        r"-?\d\.\d\d base -?\d\.\d\d"
    )
    assert re.fullmatch(expected, line), line
    assert len(f"11:14:00 {line}") <= 100


@pytest.mark.parametrize("reason", FAULTS)
def test_a_game_that_fails_once_is_played_again(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    counts: list[Counts] = []
    caplog.set_level(logging.WARNING)
    engine = FakeEngine(fault=lambda game, call: FAULTS[reason] if (game, call) == (1, 0) else None)
    games = play(engine, look=counts.append)
    assert [type(game) for game in games] == [Episode] * 4
    assert [(game.suite, game.seed, game.game) for game in games] == [
        ("train", 3, 0),
        ("train", 3, 1),
        ("train", 3, 2),
        ("train", 3, 3),
    ]
    [line] = caplog.messages
    assert line.startswith(
        f"hanabi train 3, game 1 failed, attempt 1 of 2 (it is played again): {reason}"
    )
    assert counts == [Counts(played=4, retried=1)]


@pytest.mark.parametrize("reason", FAULTS)
def test_a_game_that_fails_twice_is_dropped_and_the_others_go_on(reason: str) -> None:
    counts: list[Counts] = []
    engine = FakeEngine(fault=lambda game, call: FAULTS[reason] if game == 1 else None)
    games = play(engine, look=counts.append)
    assert [type(game) for game in games] == [Episode, DroppedGame, Episode, Episode]
    dropped = games[1]
    assert isinstance(dropped, DroppedGame)
    assert dropped.reason.startswith(reason)
    assert (dropped.suite, dropped.seed, dropped.game) == ("train", 3, 1)
    assert counts == [Counts(played=3, retried=1, failed=1)]


def test_a_second_attempt_starts_with_an_empty_conversation() -> None:
    undisturbed = play(FakeEngine(["Hint R"]), num_games=1)

    def fail_late(game: int, call: int) -> Exception | None:
        return RuntimeError("late") if call == 2 else None

    assert play(FakeEngine(["Hint R"], fault=fail_late), num_games=1) == undisturbed


def test_a_reason_is_one_line_that_json_can_hold() -> None:
    error = ValueError("a\n b\ud800" + "x" * 900)
    games = play(FakeEngine(fault=lambda game, call: error if game == 0 else None))
    assert isinstance(games[0], DroppedGame)
    assert games[0].reason.startswith("ValueError: a b?xxx")
    assert len(games[0].reason) == 300


def test_when_every_game_fails_the_request_fails_with_the_first_reason() -> None:
    counts: list[Counts] = []
    engine = FakeEngine(fault=lambda game, call: RuntimeError(f"no {game}"))
    with pytest.raises(
        ServerError, match=r"all 4 games failed, .*hanabi train 3, game 0: RuntimeError: no 0\. "
    ) as caught:
        play(engine, look=counts.append)
    assert not isinstance(caught.value, ServerGoneError)
    assert counts == [Counts(retried=4, failed=4)]


@pytest.mark.parametrize("error", [SettingsError("a"), VersionError("b"), GameParameterError("c")])
def test_an_error_that_says_the_request_is_impossible_ends_it_at_once(error: Exception) -> None:
    counts: list[Counts] = []
    engine = FakeEngine(fault=lambda game, call: error if game == 1 else None)
    with pytest.raises(type(error), match=str(error)):
        play(engine, look=counts.append)
    [after] = counts
    assert (after.retried, after.in_flight) == (0, 0)


def test_a_dead_engine_ends_the_request_at_once_as_a_server_that_is_gone() -> None:
    counts: list[Counts] = []
    engine = FakeEngine()

    def die(game: int, call: int) -> Exception | None:
        if game == 2:
            engine.is_dead = True
        return RuntimeError("EngineCore died") if engine.is_dead else None

    engine._fault = die
    with pytest.raises(
        ServerGoneError, match=r"the engine is dead; hanabi train 3, game 2 ended with RuntimeError"
    ):
        play(engine, look=counts.append)
    [after] = counts
    assert (after.retried, after.failed, after.in_flight) == (0, 0, 0)


class HangingEngine(FakeEngine):
    """The first call is cancelled by the engine, if `cancels`; all others wait forever."""

    def __init__(self, *, cancels: bool) -> None:
        super().__init__()
        self.cancels = cancels
        self.was_called = asyncio.Event()
        self.num_cancelled = 0

    async def generate(self, *args: Any) -> Sample:
        is_first = not self.was_called.is_set()
        self.was_called.set()
        if self.cancels and is_first:
            raise asyncio.CancelledError
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        raise AssertionError("nobody waits for an hour")


def test_a_reply_that_the_engine_cancels_ends_the_request_with_a_reason() -> None:
    with pytest.raises(ServerError, match="game 0: the engine cancelled a reply"):
        play(HangingEngine(cancels=True))


def test_a_cancelled_request_cancels_its_games_and_starts_none_again() -> None:
    engine = HangingEngine(cancels=False)

    async def scenario() -> None:
        scheduler = make_scheduler(engine)
        request = asyncio.create_task(scheduler.run(tasks_of(task(3), num_games=4), SAMPLING))
        await asyncio.wait_for(engine.was_called.wait(), 60)
        await asyncio.sleep(0.05)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert engine.num_cancelled == 4
        assert (scheduler.games_retried, scheduler.games_in_flight) == (0, 0)

    asyncio.run(scenario())


@dataclass(frozen=True, slots=True)
class Request:
    """A request for some games."""

    letter: str
    """Stands for the request in the order of ends."""
    num_games: int
    own: bool = False
    """Whether it is the session's trainer's."""


def order_of_ends(*requests: Request, at_once: int) -> str:
    """Send requests one after the other; return their letters in the order in which games end."""
    ended: list[str] = []

    class NotingScheduler(Scheduler):
        async def _attempt(self, requested: Any, *args: Any, **options: Any) -> Any:
            await asyncio.sleep(0)
            ended.append(chr(requested.task.seed))
            return await super()._attempt(requested, *args, **options)

    async def scenario() -> None:
        scheduler = make_scheduler(FakeEngine(), games_at_once=at_once)
        scheduler.__class__ = NotingScheduler
        async with asyncio.TaskGroup() as group:
            for request in requests:
                tasks = tasks_of(task(ord(request.letter)), num_games=request.num_games)
                group.create_task(scheduler.run(tasks, SAMPLING, own=request.own))
                for _ in range(5):
                    await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    return "".join(ended)


def test_places_go_round_the_requests() -> None:
    # The first two games of a are in play when the others come.
    ends = order_of_ends(Request("a", 8), Request("b", 3), Request("c", 2), at_once=2)
    assert ends == "aa" + "abcabcabaaa"


def test_places_go_first_to_the_sessions_trainer() -> None:
    ends = order_of_ends(Request("a", 8), Request("b", 3), Request("t", 4, own=True), at_once=2)
    assert ends == "aa" + "tttt" + "abababaaa"
    trainer = (Request("t", 2, own=True), Request("u", 3, own=True))
    assert order_of_ends(Request("a", 3), *trainer, at_once=1) == "a" + "tutuu" + "aa"


def test_places_of_requests_that_are_cancelled_go_to_others() -> None:
    async def scenario() -> None:
        places = Places(2)
        inside: list[str] = []

        async def hold_place(request: str) -> None:
            async with places.place(request, own=False):
                inside.append(request)
                await asyncio.sleep(0.001)

        games = [asyncio.create_task(hold_place(request)) for request in "aaaabbbb"]
        await asyncio.sleep(0)
        for number in (0, 2, 5):
            games[number].cancel()
        # A grant and a cancellation in one pass of the event loop.
        places._release(own=False)
        games[3].cancel()
        await asyncio.gather(*games, return_exceptions=True)
        assert sorted(inside) == ["a", "a", "b", "b", "b"]
        assert places._free == 3
        assert not places._guests

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_guests_hold_one_place_of_eight_while_a_session_is_alive() -> None:
    async def scenario() -> list[int]:
        session = threading.Event()
        places = Places(16, session_is_alive=session.is_set)
        most_guests = []
        in_play = 0
        most = 0

        async def hold_place(request: str, *, own: bool) -> None:
            nonlocal in_play, most
            async with places.place(request, own=own):
                in_play += not own
                most = max(most, in_play)
                await asyncio.sleep(0.001)
                in_play -= not own

        for is_alive in (True, False):
            session.set() if is_alive else session.clear()
            most = 0
            guests = [asyncio.create_task(hold_place("a", own=False)) for _ in range(40)]
            own = [asyncio.create_task(hold_place("t", own=True)) for _ in range(8)]
            await asyncio.gather(*guests, *own)
            most_guests.append(most)
        assert places._free == 16
        return most_guests

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == [2, 16]


class ScoringEngine(FakeEngine):
    """Scores a reply by the number of its ids, and notes how many scores are in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = 0
        self.most_in_flight = 0
        self.num_scores = 0

    async def score(
        self,
        prompt_ids: list[int],
        reply_ids: list[int],
        adapter: AdapterHandle | None,
        copy: int | None = None,
    ) -> tuple[float, ...]:
        self.num_scores += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0.02)
        finally:
            self.in_flight -= 1
        return (-1.0,) * len(reply_ids)


def score_request(num_prompts: int, replies: tuple[str, ...] = ("Play 0", "Hint")) -> ScoreRequest:
    prompt = ScoredPrompt(system="", prompt="Play 1", replies=replies)
    return ScoreRequest(seat="base", prompts=(prompt,) * num_prompts)


def test_scores_come_back_in_the_order_of_prompts_and_replies_and_few_are_in_flight() -> None:
    async def scenario() -> None:
        engine = ScoringEngine()
        scheduler = make_scheduler(engine, games_at_once=256)
        answer = await scheduler.score(score_request(100))
        assert answer.logprobs == ((-3.0, -2.0),) * 100
        assert engine.num_scores == 200
        assert engine.most_in_flight == 64

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_scores_take_the_places_of_games() -> None:
    async def scenario() -> None:
        engine = ScoringEngine()
        scheduler = make_scheduler(engine, games_at_once=2)
        await scheduler.score(score_request(10))
        assert engine.most_in_flight == 2

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_score_request_whose_client_is_gone_asks_the_engine_for_nothing_more() -> None:
    async def scenario() -> None:
        engine = ScoringEngine()
        scheduler = make_scheduler(engine, games_at_once=4)
        request = asyncio.ensure_future(scheduler.score(score_request(1000)))
        while engine.num_scores < 10:
            await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        num_scores = engine.num_scores
        await asyncio.sleep(0.05)
        assert engine.in_flight == 0
        assert engine.num_scores == num_scores < 100

    asyncio.run(asyncio.wait_for(scenario(), 30))


class WaveEngine(FakeEngine):
    """Answers all waiting calls in the same pass, when it is told to, like a step of an engine."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def generate(self, *args: Any) -> Sample:
        self.num_calls += 1
        answered = asyncio.get_running_loop().create_future()
        self._waiting.append(answered)
        await answered
        return sample("Hint R")

    def answer(self) -> int:
        """Answer all calls that wait; returns how many they are."""
        waiting = self._waiting
        self._waiting = []
        for answered in waiting:
            answered.set_result(None)
        return len(waiting)


def test_of_games_that_are_ready_together_one_goes_on_in_each_pass_of_the_event_loop() -> None:
    num_games = 8
    calls_per_pass: Counter[int] = Counter()
    waves: list[int] = []

    async def scenario() -> int:
        engine = WaveEngine()
        scheduler = make_scheduler(engine)
        request = asyncio.ensure_future(
            scheduler.run(tasks_of(task(3), num_games=num_games), SAMPLING)
        )
        calls_before = 0
        idle_passes = 0
        while not request.done():
            await asyncio.sleep(0)
            new_calls = engine.num_calls - calls_before
            calls_before = engine.num_calls
            calls_per_pass[new_calls] += 1
            idle_passes = 0 if new_calls else idle_passes + 1
            if idle_passes > 4 * num_games:
                waves.append(engine.answer())
                idle_passes = 0
        [games] = await request
        return sum(len(game.turns) for game in games)

    num_turns = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert waves[:2] == [8, 8]
    assert set(calls_per_pass) == {0, 1}
    assert calls_per_pass[1] == num_turns == sum(waves)
