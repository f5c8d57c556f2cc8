"""Games over a real socket: the client, the scheduler and what lies between them."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from fake_engine import BASE, LAPTOP, FakeEngine, deal, make_scheduler
from hanabi_grpo.client.rollout_client import RolloutClient, RolloutResult
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.server.routes_play import parse_rollout_request, played_games
from hanabi_grpo.types import DroppedGame

Change = Callable[[dict[str, Any]], Any]


@contextmanager
def served(engine: FakeEngine, change: Change = lambda answer: answer) -> Iterator[RolloutClient]:
    """A client of a server that plays on `engine`; `change` may spoil the answer."""
    app = FastAPI()

    @app.post("/rollout/")
    async def rollout(request: Request) -> Response:
        tasks, sampling = parse_rollout_request(await request.body())
        answer = await played_games(await make_scheduler(engine).run(tasks, sampling))
        content = b"".join([piece async for piece in answer.body_iterator])
        return JSONResponse(change(json.loads(content)))

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    client = RolloutClient(f"http://127.0.0.1:{listener.getsockname()[1]}")
    try:
        yield client
    finally:
        client.close()
        server.should_exit = True
        thread.join(timeout=20)
        listener.close()


def play(client: RolloutClient, deals: list[dict[str, Any]], num_games: int = 2, **other: Any) -> RolloutResult:
    return client.play(deals, num_games=num_games, max_tokens=4, temperature=1.0, **{"seats": BASE, **other})


def numbers(result: RolloutResult) -> list[list[tuple[int, int]]]:
    return [[(episode.seed, episode.game) for episode in group] for group in result.groups]


def test_each_deal_comes_back_as_its_group_and_one_that_is_named_twice_as_two_of_different_games() -> None:
    with served(FakeEngine()) as client:
        result = play(client, [deal(5), deal(3), deal(5)])
    assert numbers(result) == [[(5, 0), (5, 1)], [(3, 0), (3, 1)], [(5, 2), (5, 3)]]
    assert result.dropped == ()
    assert all(turn.logprobs for group in result.groups for episode in group for turn in episode.turns)


def test_boards_of_different_numbers_of_players_go_in_one_request() -> None:
    three = EnvConfig(preset="full", players=3)
    with served(FakeEngine(["Discard 0", "?"])) as client:
        result = play(client, [deal(3), deal(3, three)], 1, seats=["base"] * 3)
    assert [[episode.num_players for episode in group] for group in result.groups] == [[2], [3]]


def test_dropped_games_are_apart_from_the_groups() -> None:
    engine = FakeEngine(fault=lambda game, call: RuntimeError("no") if game in (1, 2, 3) else None)
    with served(engine) as client:
        result = play(client, [deal(5), deal(3)])
    assert numbers(result) == [[(5, 0)], []]
    assert result.dropped == tuple(
        DroppedGame(suite="train", seed=seed, game=game, reason="RuntimeError: no")
        for seed, game in ((5, 1), (3, 0), (3, 1))
    )


def spoil(*path: Any, value: Any) -> Change:
    def change(answer: dict[str, Any]) -> dict[str, Any]:
        target: Any = answer
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value
        return answer

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda answer: {**answer, "episodes": answer["episodes"][::-1]}, "asked for game 0 .* the answer is game 1"),
        (lambda answer: {**answer, "episodes": []}, "0 games and 0 dropped ones for 2"),
        (lambda answer: {"detail": "x"}, "episodes: this field is missing"),
        (spoil("dropped", value=[{"task": 0, "game": 0}]), "dropped.0.reason: this field is missing"),
        (spoil("episodes", 0, "turns", 0, "logprobs", 0, value=None), r"episodes.0.turns.0.logprobs.0=None: Expected"),
        (spoil("episodes", 0, "turns", 0, "logprobs", value=[-0.5]), "episodes.0.turns.0: 1 logprobs for"),
        (spoil("episodes", 0, "preset", value="full"), "the answer is game 0 of hanabi train/3 on full"),
    ],
)
def test_an_answer_that_is_not_the_games_asked_for_is_refused(change: Change, message: str) -> None:
    with served(FakeEngine(), change) as client, pytest.raises(ServerError, match=message) as caught:
        play(client, [deal(3)])
    assert str(caught.value).startswith(f"{client.url}: playing games: ")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"suite": "../x"}, "suite"),
        ({"seed": -1}, "seed"),
        ({"seed": "3"}, "seed"),
        ({"seats": "iggi"}, "seats"),
        ({"env_config": {**LAPTOP.model_dump(), "preset": "nowhere"}}, "nowhere"),
    ],
)
def test_a_deal_that_cannot_be_played_is_refused_before_anything_is_sent(other: dict[str, Any], message: str) -> None:
    client = RolloutClient("http://127.0.0.1:9")
    with pytest.raises(SettingsError, match=message):
        play(client, [{**deal(3), **other}])
