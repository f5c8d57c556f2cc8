"""Games that may block are played in processes of their own, and one that hangs costs only itself.

The worker processes are real; the engine is the tests' own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from starlette.responses import StreamingResponse

import blocking_environments
import fake_engine
from fake_engine import CHAT, SAMPLING, FakeEngine, make_scheduler, sample
from hanabi_grpo.agents.served_model import PromptTokens
from hanabi_grpo.envs.registry import may_block, setup
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.messages import (
    DroppedRow,
    RequestedTask,
    RolloutAnswer,
    RolloutRequest,
    read_tasks,
)
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample, SamplingConfig
from hanabi_grpo.server.routes_play import played_games
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.workers.pool import WorkerPool
from hanabi_grpo.types import CallError, DroppedGame, Episode

PERIOD = blocking_environments.PERIOD
TRAP = blocking_environments.TRAP
GAME_TIMEOUT = 5.0
SLOW_SECONDS = blocking_environments.SLOW_SECONDS


class CountingEngine(FakeEngine):
    """Replies with the number of its words, a little later, and counts its calls."""

    def __init__(self, seconds: float = 0.0, reply: str = "Hint R") -> None:
        super().__init__()
        self.reply = reply
        self.num_calls = 0
        self.seconds = seconds

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        self.num_calls += 1
        await asyncio.sleep(self.seconds)
        return sample(self.reply)


class RoundEngine(CountingEngine):
    """Replies to the second messages of all games at the same time."""

    def __init__(self, num_games: int) -> None:
        super().__init__()
        self.num_games = num_games
        self.has_second_round = asyncio.Event()

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        self.num_calls += 1
        if self.num_calls == 2 * self.num_games:
            self.has_second_round.set()
        if self.num_calls > self.num_games:
            await self.has_second_round.wait()
        return sample(self.reply)


@pytest.fixture(autouse=True)
def _traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocking_environments.install(tmp_path, monkeypatch)


def tasks_of(
    env: str,
    seeds: range,
    *,
    num_games: int = 1,
    seats: tuple[str, ...] = ("base",),
    **fields: Any,
) -> list[RequestedTask]:
    config = setup(env, {"preset": "toy", **fields}).config.model_dump(mode="json")
    rows = []
    for seed in seeds:
        rows.append({"env": env, "env_config": config, "suite": "train", "seed": seed})
    request = {
        "tasks": rows,
        "num_games": num_games,
        "max_tokens": 4,
        "temperature": 1.0,
        "seats": seats,
    }
    return read_tasks(msgspec.convert(request, RolloutRequest))


def run(
    scenario: Callable[[Scheduler], Awaitable[Any]],
    engine: FakeEngine,
    *,
    session_workers: int = 2,
    game_timeout: float = 60.0,
    call_timeout: float = 60.0,
) -> Any:
    """Run a scenario on a scheduler with real workers, and check that none is left behind."""

    async def with_scheduler() -> Any:
        scheduler = make_scheduler(
            engine,
            games_at_once=256,
            game_timeout=game_timeout,
            workers=WorkerPool(
                call_timeout=call_timeout,
                session_workers=session_workers,
                guest_workers=session_workers,
            ),
        )
        try:
            return await scenario(scheduler)
        finally:
            scheduler.close()
            await asyncio.sleep(0.05)

    result = asyncio.run(asyncio.wait_for(with_scheduler(), 60))
    children = psutil.Process().children()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert [child for child in alive if "workers.fork_server" in " ".join(child.cmdline())] == []
    return result


def test_games_of_other_packages_and_slow_scripts_may_block_and_ours_do_not() -> None:
    assert may_block(setup("sleeps", {"preset": "toy"}))
    assert not may_block(setup("hanabi", {"preset": "laptop"}))
    assert not may_block(setup("kuhn_poker", {"preset": "kuhn_poker"}))
    assert may_block(setup("vote", {"preset": "vote", "problems": "reasoning-gym:leg_counting"}))
    assert not may_block(setup("vote", {"preset": "vote"}))


def test_an_episode_of_a_worker_is_the_one_that_the_server_would_have_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(scheduler: Scheduler) -> list[list[Any]]:
        return await scheduler.run(tasks_of("sleeps", range(3), num_games=2), SAMPLING)

    engine = CountingEngine()
    in_worker = run(play, engine)
    assert engine.num_calls == 3 * 2 * 4
    monkeypatch.setattr("hanabi_grpo.server.scheduler.may_block", lambda setup: False)
    assert in_worker == run(play, CountingEngine())
    [[first, *_], *_] = in_worker
    assert first.turns[1].reply_ids == sample("Hint R").ids
    assert first.turns[1].reply == CHAT.decode(list(sample("Hint R").ids))


@pytest.mark.rest
def test_a_slow_tool_is_called_in_a_worker_and_its_player_is_told_of_the_time_out() -> None:
    assert may_block(setup("slow_tool", {"preset": "toy"}))

    def play(scheduler: Scheduler) -> Awaitable[list[list[Any]]]:
        tasks = tasks_of("slow_tool", range(2), tool_calls=1, tool_timeout=0.2)
        return scheduler.run(tasks, SAMPLING)

    for reply, error in (("Hint R", CallError.TIMEOUT), ("Hint Y", None)):
        engine = CountingEngine(reply=reply)
        for [episode] in run(play, engine):
            calls = [turn for turn in episode.turns if turn.is_call]
            assert [turn.call.error for turn in calls] == [error] * 4
            result = "result error" if error else "result Y"
            moves = episode.moves
            assert [turn.prompt for turn in moves] == [result] * 4
            assert [turn.follows_call for turn in moves] == [True] * 4
            assert [turn.call.error for turn in moves] == [CallError.OVER_LIMIT] * 4
            # The conversation of the whole game goes on with the result.
            added = CHAT.follow(CHAT.eos_id, result, is_result=True)
            assert all(turn.prompt_ids == tuple(added) for turn in moves)
        assert engine.num_calls == 2 * 4 * 2


@pytest.mark.parametrize("env", ["sleeps", "computes"])
def test_a_call_that_never_returns_costs_its_own_game_and_nothing_is_sampled_twice(
    env: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(scheduler: Scheduler) -> tuple[list[list[Any]], float]:
        # Workers start, which is not what is measured.
        await scheduler.run(tasks_of(env, range(2), num_games=2), SAMPLING)
        start = time.perf_counter()
        games = await scheduler.run(tasks_of(env, range(10), num_games=2), SAMPLING)
        return games, time.perf_counter() - start

    engine = CountingEngine(seconds=0.01)
    games, seconds = run(play, engine, game_timeout=GAME_TIMEOUT)
    for seed, group in enumerate(games):
        if seed != TRAP:
            assert [type(game) for game in group] == [Episode] * 2
            continue
        for number, game in enumerate(group):
            assert game == DroppedGame(
                suite="train",
                seed=TRAP,
                game=number,
                reason="not over after HANABI_GAME_TIMEOUT=5 s, 1 turns taken",
                is_late=True,
                num_turns=1,
                rewards=(-0.25,),
            )
    # Four calls of each whole game and two of each trap, though games have moved between workers.
    assert engine.num_calls == 2 * 2 * 4 + 9 * 2 * 4 + 2 * 2
    assert seconds < 2 * GAME_TIMEOUT
    assert "killed because a call of" in caplog.text


def test_a_call_has_a_limit_of_its_own_that_says_so() -> None:
    async def play(scheduler: Scheduler) -> Any:
        return await scheduler.run(tasks_of("sleeps", range(TRAP - 1, TRAP + 1)), SAMPLING)

    [[other], [trap]] = run(play, CountingEngine(), game_timeout=60.0, call_timeout=1.0)
    assert isinstance(other, Episode)
    assert trap == DroppedGame(
        suite="train",
        seed=TRAP,
        game=0,
        reason="a call of sleeps has not returned for HANABI_CALL_TIMEOUT=1 s, 1 turns taken",
        is_late=True,
        num_turns=1,
        rewards=(-0.25,),
    )


@pytest.mark.rest
def test_others_go_on_at_once_while_one_call_blocks_a_worker() -> None:
    async def play(scheduler: Scheduler) -> tuple[float, float]:
        await scheduler.run(tasks_of("slow", range(2), num_games=2), SAMPLING)

        async def seconds_of(*tasks: RequestedTask) -> float:
            start = time.perf_counter()
            await scheduler.run(tasks, SAMPLING)
            return time.perf_counter() - start

        slow = tasks_of("slow", range(TRAP, TRAP + 1))
        others = tasks_of("slow", range(6), num_games=4)
        return tuple(await asyncio.gather(seconds_of(*slow), seconds_of(*others)))

    slow, others = run(play, CountingEngine(seconds=0.01))
    assert slow >= SLOW_SECONDS
    assert others < slow


def test_a_worker_that_dies_costs_the_game_that_killed_it_and_no_other() -> None:
    async def play(scheduler: Scheduler) -> list[list[Any]]:
        return await scheduler.run(tasks_of("dies", range(TRAP - 3, TRAP + 3)), SAMPLING)

    games = run(play, CountingEngine(seconds=0.01))
    kinds = [type(game) for [game] in games]
    assert kinds == [Episode, Episode, Episode, DroppedGame, Episode, Episode]
    assert games[3][0].reason == (
        "EpisodeFailedError: the process that played it died (signal SIGSEGV)"
    )


@pytest.mark.parametrize(
    ("env", "reason", "num_attempts"),
    [
        ("wordy", "a call of wordy has not returned for HANABI_CALL_TIMEOUT=2 s, 1 turns taken", 1),
        ("wordy_dies", "EpisodeFailedError: the process that played it died (signal SIGSEGV)", 2),
    ],
)
def test_a_game_is_charged_with_its_own_call_also_while_messages_wait_for_the_socket(
    env: str, reason: str, num_attempts: int
) -> None:
    async def play(scheduler: Scheduler) -> list[list[Any]]:
        first = PERIOD + TRAP - 10
        return await scheduler.run(tasks_of(env, range(first, first + 20)), SAMPLING)

    engine = RoundEngine(20)
    games = run(play, engine, session_workers=1, call_timeout=2.0)
    dropped = []
    for [game] in games:
        if isinstance(game, DroppedGame):
            dropped.append((game.seed, game.reason))
    assert dropped == [(PERIOD + TRAP, reason)]
    # Four calls of each whole game and two of the trap, though games have moved between workers.
    assert engine.num_calls == 19 * 4 + num_attempts * 2


REASONS = {
    "leaves": "ExitError: its code raised SystemExit(3)",
    "cancels": "CancelledError:",
    "halves": "ValueError: half of a pair: ?",
    "silent": "_SilentError: its text cannot be read",
    "lists": (
        "the environment lists returned a value of the wrong type: Expected `float`, got `array` "
        "- at `$.episode.result[...]`"
    ),
}
"""Environment to what becomes of its trap."""


def test_an_episode_that_no_message_can_tell_of_fails_at_once_and_alone() -> None:
    async def play(scheduler: Scheduler) -> list[list[Any]]:
        tasks = []
        for env in REASONS:
            tasks += tasks_of(env, range(TRAP - 1, TRAP + 1))
        return await scheduler.run(tasks, SAMPLING)

    games = run(play, CountingEngine(seconds=0.01), session_workers=1)
    dropped = []
    for [other], [trap] in zip(games[::2], games[1::2], strict=True):
        assert isinstance(other, Episode)
        assert isinstance(trap, DroppedGame)
        assert not trap.is_late
        dropped.append(trap.reason)
    assert dropped == [f"EpisodeFailedError: {reason}" for reason in REASONS.values()]


def test_a_game_whose_reward_is_no_number_is_dropped_and_the_answer_can_be_read() -> None:
    async def play(scheduler: Scheduler) -> RolloutAnswer:
        tasks = tasks_of("boundless", range(TRAP - 1, TRAP + 1))
        games = await scheduler.run(tasks, SAMPLING)
        response = await played_games(games, PromptTokens())
        assert isinstance(response, StreamingResponse)
        body = bytearray()
        async for piece in response.body_iterator:
            assert isinstance(piece, bytes)
            body += piece
        return msgspec.json.decode(body, type=RolloutAnswer)

    answer = run(play, CountingEngine())
    assert [episode.seed for episode in answer.episodes] == [TRAP - 1]
    assert answer.dropped == (
        DroppedRow(
            task=1,
            game=0,
            reason="ValueError: turns.0: a logprob or a reward is not finite",
        ),
    )


@pytest.mark.rest
def test_a_config_that_cannot_be_sent_to_a_worker_leaves_nothing_in_it() -> None:
    async def play(scheduler: Scheduler) -> tuple[list[int], type]:
        with pytest.raises(ServerError, match=r"all 1 games failed.*OverflowError"):
            await scheduler.run(tasks_of("sleeps", range(1), highest=2**64), SAMPLING)
        num_plays = [len(worker.plays) for worker in scheduler._workers._workers]
        [[game]] = await scheduler.run(tasks_of("sleeps", range(1)), SAMPLING)
        return num_plays, type(game)

    num_plays, kind = run(play, CountingEngine(), session_workers=1)
    assert set(num_plays) == {0}
    assert kind is Episode


@pytest.mark.rest
def test_a_script_that_ends_the_process_beside_others_costs_its_own_game_alone() -> None:
    async def play(scheduler: Scheduler) -> list[list[Any]]:
        quitters = tasks_of("quitters", range(1), seats=("quitter",) * 3)
        others = tasks_of("leaves", range(3))
        return await scheduler.run([*quitters, *others], SAMPLING)

    [[dropped], *others] = run(play, CountingEngine(seconds=0.01), session_workers=1)
    assert dropped.reason == ("EpisodeFailedError: ExitError: its code raised SystemExit('enough')")
    assert [type(game) for [game] in others] == [Episode] * 3


def test_an_error_of_the_environment_keeps_its_class_and_a_request_of_errors_alone_fails() -> None:
    async def play(scheduler: Scheduler) -> None:
        await scheduler.run(tasks_of("dies", range(TRAP, TRAP + 1)), SAMPLING)

    with pytest.raises(ServerError, match=r"all 1 games failed.*signal SIGSEGV"):
        run(play, CountingEngine())


@pytest.mark.rest
def test_a_cancelled_request_ends_its_games_in_workers() -> None:
    async def play(scheduler: Scheduler) -> int:
        request = asyncio.ensure_future(
            scheduler.run(tasks_of("sleeps", range(TRAP, TRAP + 1)), SAMPLING)
        )
        await asyncio.sleep(1.5)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        # The next request is not held up by what the cancelled one has left.
        [[game]] = await scheduler.run(tasks_of("sleeps", range(1)), SAMPLING)
        assert isinstance(game, Episode)
        return scheduler.games_in_flight

    assert run(play, CountingEngine(), session_workers=1, game_timeout=30) == 0


@pytest.mark.rest
def test_where_a_call_has_blocked_a_worker_a_further_one_plays_along() -> None:
    def num_workers() -> int:
        below = psutil.Process().children(recursive=True)
        commands = [" ".join(process.cmdline()) for process in below]
        # The fork server has the same command line as what it forks.
        return sum("workers.fork_server" in command for command in commands) - 1

    async def play(scheduler: Scheduler) -> int:
        await scheduler.run(tasks_of("slow", range(TRAP, TRAP + 1)), SAMPLING)
        await scheduler.run(tasks_of("slow", range(2)), SAMPLING)
        # The games do not wait for it.
        deadline = time.perf_counter() + 10
        while num_workers() != 2 and time.perf_counter() < deadline:
            await asyncio.sleep(0.05)
        return num_workers()

    assert run(play, CountingEngine(), session_workers=1) == 2


@pytest.mark.rest
def test_games_go_on_in_new_workers_when_the_process_that_forks_them_dies() -> None:
    async def play(scheduler: Scheduler) -> list[type]:
        await scheduler.run(tasks_of("sleeps", range(2)), SAMPLING)
        for child in psutil.Process().children():
            if "workers.fork_server" in " ".join(child.cmdline()):
                child.kill()
        games = await scheduler.run(tasks_of("sleeps", range(2)), SAMPLING)
        return [type(game) for [game] in games]

    assert run(play, CountingEngine()) == [Episode, Episode]


@pytest.mark.rest
def test_a_slow_game_of_the_servers_own_is_dropped_in_time_too() -> None:
    async def play(scheduler: Scheduler) -> Any:
        return await scheduler.run(fake_engine.tasks_of(fake_engine.task(3)), SAMPLING)

    [[game]] = run(play, CountingEngine(seconds=0.4), game_timeout=1.0)
    assert isinstance(game, DroppedGame)
    assert game.is_late
    assert game.num_turns in (1, 2)
    assert game.reason.startswith("not over after HANABI_GAME_TIMEOUT=1 s, ")


@pytest.mark.rest
@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (
            "wrong_message",
            "EpisodeFailedError: the environment wrong_message returned a value of the wrong type: "
            "Expected `str`, got `int` - at `$.message`",
        ),
        (
            "wrong_result",
            "EpisodeFailedError: the environment wrong_result returned a value of the wrong type: "
            "Expected `float`, got `str` - at `$.episode.result[...]`",
        ),
    ],
)
def test_an_environment_that_gives_a_wrong_type_costs_its_own_game_alone(
    env: str, reason: str
) -> None:
    async def play(scheduler: Scheduler) -> list[list[Any]]:
        return await scheduler.run(tasks_of(env, range(TRAP - 3, TRAP + 3)), SAMPLING)

    games = run(play, CountingEngine(seconds=0.01), session_workers=1)
    kinds = [type(game) for [game] in games]
    assert kinds == [Episode, Episode, Episode, DroppedGame, Episode, Episode]
    assert games[3][0].reason == reason
