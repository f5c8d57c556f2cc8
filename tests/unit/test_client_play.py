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

from fake_engine import BASE, LAPTOP, SAMPLING, FakeEngine, deal, make_scheduler
from hanabi_grpo.client.rollout_client import RolloutClient, RolloutResult
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.types import DroppedGame

Change = Callable[[list[dict[str, Any]]], Any]


@contextmanager
def served(engine: FakeEngine, change: Change = lambda outputs: outputs) -> Iterator[RolloutClient]:
    """A client of a server that plays on `engine`; `change` may spoil the answer."""
    app = FastAPI()

    @app.post("/infer/")
    async def infer(request: Request) -> Response:
        body = json.loads(await request.body())
        outputs = await make_scheduler(engine).run(body["infer_requests"], SAMPLING, body["adapters"])
        return JSONResponse(change(outputs))

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
    return client.play(deals, num_games=num_games, max_tokens=4, temperature=1.0, **{"adapters": BASE, **other})


def numbers(result: RolloutResult) -> list[list[tuple[int, int]]]:
    return [[(episode.seed, episode.game) for episode in group] for group in result.groups]


def test_each_deal_comes_back_as_its_group() -> None:
    with served(FakeEngine()) as client:
        result = play(client, [deal(5), deal(3)])
    assert numbers(result) == [[(5, 0), (5, 1)], [(3, 0), (3, 1)]]
    assert result.dropped == ()
    assert all(turn.logprobs for group in result.groups for episode in group for turn in episode.turns)


def test_a_deal_that_is_named_twice_gives_two_groups_of_different_games() -> None:
    with served(FakeEngine()) as client:
        assert numbers(play(client, [deal(3), deal(4), deal(3)])) == [
            [(3, 0), (3, 1)],
            [(4, 0), (4, 1)],
            [(3, 2), (3, 3)],
        ]


def test_boards_of_different_numbers_of_players_go_in_one_request() -> None:
    three = EnvConfig(preset="full", players=3)
    adapters = {f"player_{player}": None for player in range(3)}
    with served(FakeEngine(["Discard 0", "?"])) as client:
        result = play(client, [deal(3), deal(3, three)], 1, adapters=adapters)
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


def swap_games(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [outputs[1], outputs[0], outputs[3], outputs[2]]


def swap_players(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [outputs[2], outputs[3], outputs[0], outputs[1]]


def spoil(*path: Any, value: Any) -> Change:
    def change(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        target: Any = outputs
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value
        return outputs

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap_games, "asked for game 0 of deal train/3 .* the answer is game 1 of deal train/3"),
        (lambda outputs: [outputs[0], outputs[0], outputs[2], outputs[2]], "asked for game 1 .* the answer is game 0"),
        (lambda outputs: outputs[:3], "3 answers for 4 rows"),
        (lambda outputs: [], "0 answers for 4 rows"),
        (lambda outputs: {"detail": "x"}, "a dict instead of a list of answers"),
        (lambda outputs: "games", "a str instead of a list"),
        (spoil(0, "rollout_infos", value={"dropped": "x"}), r"rollout_infos.dropped: in outputs \[0\] of 2"),
        (spoil(0, "rollout_logprobs", 0, 0, value=None), "output 0: rollout_logprobs.0.0"),
        (spoil(0, "response_token_ids", 0, 0, value=-1), "output 0: response_token_ids.0.0=-1"),
        (spoil(0, "rollout_infos", "preset", value="full"), "preset='laptop', but 'full' in output 0"),
    ],
)
def test_answers_that_are_not_the_games_asked_for_are_refused(change: Change, message: str) -> None:
    with served(FakeEngine(), change) as client, pytest.raises(ServerError, match=message) as caught:
        play(client, [deal(3)])
    assert str(caught.value).startswith(client.url)


def test_the_order_of_a_game_s_players_does_not_matter() -> None:
    with served(FakeEngine(), swap_players) as client:
        assert numbers(play(client, [deal(3)])) == [[(3, 0), (3, 1)]]


def test_ids_beyond_the_trainers_vocabulary_are_refused() -> None:
    with served(FakeEngine()) as client, pytest.raises(ServerError, match=r"player_0, turn 0: prompt id \d+; allowed"):
        play(client, [deal(3)], vocab_size=5)


def test_a_deal_that_cannot_be_played_is_refused_before_anything_is_sent() -> None:
    client = RolloutClient("http://127.0.0.1:9")
    with pytest.raises(SettingsError, match="nowhere"):
        play(client, [{"env_config": {**LAPTOP.model_dump(), "preset": "nowhere"}, "suite": "train", "seed": 1}])
