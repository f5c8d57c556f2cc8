"""The page's requests: whole games, what a stranger may not do, and that nothing hidden is sent."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from msgspec import structs

from fake_engine import LAPTOP, make_scheduler
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.client.page_game import PageGame
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.access import NOTHING_OUTSIDE
from hanabi_grpo.envs.base import Observation, Seat, Setup, Task, random_policy
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.policies import POLICIES
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.errors import BusyError, HanabiGrpoError, ServerError, ServerGoneError
from hanabi_grpo.rollout.person_messages import NewGameRequest, PersonStatus
from hanabi_grpo.rollout.wire import episode_from_json
from hanabi_grpo.server import person_games
from hanabi_grpo.server.person_game import PersonGame
from hanabi_grpo.server.person_games import NOBODY_SET, PersonGames, PersonSettings
from server_app import PEFT_CONFIG, PLAYERS, RunningApp, adapter_bytes, push_to, running_app

KEY = "correct-horse-battery"
SETUP = Setup(HANABI, LAPTOP)


def name_of(setup: Setup[Any]) -> str:
    return f"{setup.env}-{setup.spec.preset}"


@pytest.fixture(scope="module")
def app() -> Iterator[RunningApp]:
    with running_app(people=PersonSettings(setups=(SETUP,), max_tokens=4)) as running:
        yield running


TOKENS: list[tuple[RunningApp, str]] = []
"""Of the games that a test has begun."""


@pytest.fixture(autouse=True)
def _leave_games() -> Iterator[None]:
    TOKENS.clear()
    yield
    for app, token in TOKENS:
        # The server of some tests has ended with them.
        with contextlib.suppress(httpx.TransportError):
            post(app, "leave", {"token": token})


def post(app: RunningApp, path: str, body: Any, **headers: str) -> httpx.Response:
    return httpx.post(
        f"{app.url}/play/{path}", json=body, headers=headers, timeout=30, trust_env=False
    )


def new_game(app: RunningApp, *seats: str, **other: Any) -> tuple[str, dict[str, Any]]:
    """Begin a game; returns its token and its first state."""
    body = {**SETUP.row(), "seats": list(seats) or ["human", "base"], "seed": 3, **other}
    answer = post(app, "games", body)
    assert answer.status_code == 200, answer.text
    TOKENS.append((app, answer.json()["token"]))
    return answer.json()["token"], answer.json()["state"]


def play_out(app: RunningApp, token: str, state: dict[str, Any]) -> dict[str, Any]:
    """Play the first choice of the menu until the game is over; returns its last state."""
    while state["status"] != "over":
        if state["status"] == "waiting":
            answer = post(app, "state", {"token": token, "after": state["number"]})
        else:
            assert state["status"] == "your_turn", state
            choices = state["scene"]["choices"]
            move = choices[-1]["reply"] if choices else "7"
            answer = post(app, "move", {"token": token, "number": state["number"], "move": move})
        assert answer.status_code == 200, answer.text
        state = answer.json()
    return state


@pytest.mark.parametrize("seats", [("human", "base"), ("iggi", "human")])
def test_a_whole_game_is_played_and_its_record_is_one_of_a_file(
    app: RunningApp, seats: tuple[str, str]
) -> None:
    token, state = new_game(app, *seats)
    early = post(app, "record", {"token": token})
    assert early.status_code == 409
    assert "hidden card" in early.json()["detail"]
    assert state["task"] == "", "the browser could deal the cards of a task that it knows"
    last = play_out(app, token, state)
    assert last["task"] == "human/3"
    assert last["scene"]["choices"] == []
    record = post(app, "record", {"token": token}).json()
    episode = episode_from_json(record)
    assert episode.suite == "human"
    assert episode.seed == 3
    assert episode.seats == seats
    assert last["outcome"] == f"Your team scored {episode.result['score']:g} of 4."
    person = seats.index("human")
    assert {turn.kind.value for turn in episode.trajectory(person)} == {"legal"}
    late = post(app, "move", {"token": token, "number": last["number"], "move": "Play 0"})
    assert late.status_code == 409
    assert "it is not your turn" in late.json()["detail"]


@pytest.mark.parametrize("setup", person_games.playable_games(NOBODY_SET)[9:], ids=name_of)
def test_every_game_of_the_menu_is_played_to_its_end_beside_scripts(
    app: RunningApp, setup: Setup[Any]
) -> None:
    seats = ["human"] + ["random"] * (setup.spec.num_players - 1)
    token, state = new_game(app, *seats, **setup.row())
    last = play_out(app, token, state)
    assert last["outcome"].split()[0] in ("You", "Your", "A")


class _SlowToSitDown:
    """As a best response, which computes its moves when it takes its seat."""

    name = "best-response"

    def seat(self, player: int, *, task: Task[Any], game: int) -> Seat:
        time.sleep(2.5)
        return random_policy().seat(player, task=task, game=game)


def test_a_script_that_computes_before_its_first_move_does_not_hold_up_the_server(
    app: RunningApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = {**SETUP.environment.policies, "best-response": _SlowToSitDown}
    monkeypatch.setattr(type(SETUP.environment), "policies", policies)
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(new_game, app, "best-response", "human", **SETUP.row())
        while not started.done():
            began = time.monotonic()
            assert httpx.get(f"{app.url}/health/", trust_env=False).status_code == 200
            assert time.monotonic() - began < 1
            time.sleep(0.05)
    token, state = started.result()
    assert play_out(app, token, state)["outcome"]


@pytest.mark.parametrize(
    ("env", "script"), [("tic_tac_toe", "minimax"), ("hanabi", "search-piers")]
)
def test_a_script_that_computes_for_long_does_not_hold_up_the_server(
    app: RunningApp, env: str, script: str
) -> None:
    setup = SETUP if env == "hanabi" else registry.setup(env, {"preset": env})
    assert script in setup.environment.slow_policies
    token, state = new_game(app, "human", script, **setup.row())
    body = {"token": token, "number": state["number"], "move": "1"}
    with ThreadPoolExecutor(1) as pool:
        moving = pool.submit(post, app, "move", body)
        while not moving.done():
            began = time.monotonic()
            assert httpx.get(f"{app.url}/health/", trust_env=False).status_code == 200
            assert time.monotonic() - began < 1
            time.sleep(0.01)
    assert play_out(app, token, moving.result().json())["outcome"]


def test_a_person_is_told_what_is_wrong_with_a_move_and_may_go_on(app: RunningApp) -> None:
    token, state = new_game(app)
    for move, reason in (
        ("Dance", "move='Dance': That is not an action. Type an action, e.g. Play 0, or"),
        ("Discard 0", "Discard 0 is not legal now."),
        ("99", "That is not an action."),
        ("", "That is not an action."),
    ):
        answer = post(app, "move", {"token": token, "number": state["number"], "move": move})
        assert answer.status_code == 422
        assert reason in answer.json()["detail"]
    old = post(app, "move", {"token": token, "number": state["number"] - 1, "move": "1"})
    assert old.status_code == 409
    assert f"the game is at {state['number']}" in old.json()["detail"]
    answer = post(app, "move", {"token": token, "number": state["number"], "move": "hint red"})
    assert answer.status_code == 200
    assert answer.json()["number"] > state["number"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seats": ["human"]}, "needs 2 seats, one of them human"),
        ({"seats": ["base", "base"]}, "needs 2 seats, one of them human"),
        ({"seats": ["human", "igi"]}, "seats.1='igi': allowed besides human: random, blind"),
        ({"seats": ["human", "/etc"]}, "seats.1='/etc': allowed besides human:"),
        ({"seats": ["human", "url:big"]}, "seats.1='url:big': allowed besides human:"),
        ({"env": "chess"}, "env='chess'"),
        (
            {"env": "openenv:localhost:1"},
            "only those external games that the server was started",
        ),
        ({"env_config": {"preset": "lapto"}}, "lapto"),
        ({"seed": -1}, "seed"),
        ({"temperature": 9}, "temperature"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused(
    app: RunningApp, change: dict[str, Any], reason: str
) -> None:
    body = {**SETUP.row(), "seats": ["human", "base"], **change}
    answer = post(app, "games", body)
    assert answer.status_code == 422, answer.text
    assert reason in answer.json()["detail"]


def test_an_adapter_that_is_not_served_is_refused(app: RunningApp) -> None:
    body = {**SETUP.row(), "seats": ["human", "served"]}
    answer = post(app, "games", body)
    assert answer.status_code == 409
    assert "this server serves no such adapter (held: none)" in answer.json()["detail"]


def test_a_stranger_who_knows_no_token_can_neither_see_nor_act(app: RunningApp) -> None:
    token, state = new_game(app)
    other_token, _ = new_game(app)
    assert len(token) >= 43
    assert token != other_token
    for wrong in (token[:-1], token + "x", "x" * len(token), "\u0000"):
        for path, body in (
            ("state", {"token": wrong}),
            ("move", {"token": wrong, "number": state["number"], "move": "1"}),
            ("record", {"token": wrong}),
        ):
            answer = post(app, path, body)
            assert answer.status_code == 404, (path, answer.text)
            assert token not in answer.text
    assert post(app, "leave", {"token": "x"}).status_code == 200
    unchanged = post(app, "state", {"token": token}).json()
    assert unchanged["number"] == state["number"]


def test_a_game_that_is_left_is_gone(app: RunningApp) -> None:
    token, _ = new_game(app)
    assert post(app, "leave", {"token": token}).status_code == 200
    assert post(app, "state", {"token": token}).status_code == 404


def test_with_a_key_only_the_page_itself_is_open() -> None:
    with running_app(api_key=KEY) as locked:
        page = httpx.get(f"{locked.url}/play/", trust_env=False)
        assert page.status_code == 200
        assert httpx.head(f"{locked.url}/play/", trust_env=False).status_code == 401
        for path in ("options", "games", "state", "move", "leave", "record"):
            assert post(locked, path, {}).status_code == 401
            wrong = post(locked, path, {}, authorization=f"Bearer {KEY}x")
            assert wrong.status_code == 401
        assert post(locked, "options", {}, authorization=f"Bearer {KEY}").status_code == 200


def test_pages_of_other_sites_are_refused(app: RunningApp) -> None:
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert post(app, "options", {}, **headers).status_code == 403
        assert httpx.get(f"{app.url}/play/", headers=headers, trust_env=False).status_code == 403
    plain = httpx.post(
        f"{app.url}/play/leave", content=b'{"token":"x"}', headers={"content-type": "text/plain"}
    )
    assert plain.status_code == 415


def test_the_page_is_the_same_for_everybody_and_may_run_and_ask_nothing_else(
    app: RunningApp,
) -> None:
    first = httpx.get(f"{app.url}/play/", trust_env=False)
    new_game(app)
    assert httpx.get(f"{app.url}/play/", trust_env=False).content == first.content
    policy = first.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    for mark in ("http://", "https://", "//cdn", "innerHTML", "style="):
        assert mark not in first.text


def test_the_options_name_the_games_of_the_server_first_and_who_may_sit_there(
    app: RunningApp,
) -> None:
    options = post(app, "options", {}).json()
    first = options["games"][0]
    assert first["env_config"] == LAPTOP.model_dump(mode="json")
    assert first["is_of_server"]
    assert [game for game in options["games"][1:] if game["is_of_server"]] == []
    assert options["models"] == ["base"]


def test_the_page_does_not_name_a_guest_adapter_by_its_digest(app: RunningApp) -> None:
    with RolloutClient(app.url) as client:
        guest = client.upload_guest(1, adapter_bytes(), PEFT_CONFIG)
    _, state = new_game(app, "human", guest)
    assert guest.startswith("frozen_")
    assert [player["who"] for player in state["players"]] == ["you", "an adapter of another run"]


def play_again(app: RunningApp, token: str) -> tuple[str, dict[str, Any]]:
    """Begin another game like an earlier one; returns its token and its first state."""
    answer = post(app, "again", {"token": token})
    assert answer.status_code == 200, answer.text
    TOKENS.append((app, answer.json()["token"]))
    return answer.json()["token"], answer.json()["state"]


def test_another_game_has_the_same_guest_and_the_finished_one_stays_until_it_is_left(
    app: RunningApp,
) -> None:
    with RolloutClient(app.url) as client:
        guest = client.upload_guest(1, adapter_bytes(), PEFT_CONFIG)
    token, state = new_game(app, "human", guest)
    play_out(app, token, state)
    next_token, state = play_again(app, token)
    assert next_token != token
    play_out(app, next_token, state)
    records = [post(app, "record", {"token": one}).json() for one in (token, next_token)]
    episodes = [episode_from_json(record) for record in records]
    assert [episode.seats for episode in episodes] == [("human", guest)] * 2
    assert [episode.spec_hash for episode in episodes] == [SETUP.spec.hash] * 2
    assert episodes[0].seed == 3
    assert episodes[1].seed != 3
    gone = post(app, "again", {"token": "x"})
    assert gone.status_code == 404
    assert "no game with this token is open" in gone.json()["detail"]


def test_another_game_is_played_with_the_newest_version_of_an_adapter() -> None:
    with running_app() as running, RolloutClient(running.url) as trainer:
        push_to(trainer, running, version=1)
        token, state = new_game(running, "human", "player_1@1")
        play_out(running, token, state)
        trainer.push(2, {name: (adapter_bytes(0.7), PEFT_CONFIG) for name in PLAYERS})
        _, state = play_again(running, token)
        assert [player["who"] for player in state["players"]] == ["you", "player_1@2"]


def test_instructions_of_other_seats_stay_on_the_server_and_apply_in_every_game() -> None:
    text = "Be brief.\nplayer_0=You are Ann.\nplayer_1=SECRET: bluff."
    config = LAPTOP.model_copy(update={"instruction": text})
    setup = Setup(HANABI, config)
    with running_app(people=PersonSettings(setups=(setup,))) as running:
        options = post(running, "options", {})
        assert "SECRET" not in options.text
        listed = options.json()["games"][0]
        game = {name: listed[name] for name in ("env", "env_config", "rules")}
        token, state = new_game(running, "human", "random", **game)
        next_token, next_state = play_again(running, token)
        for own, first in ((token, state), (next_token, next_state)):
            assert "Be brief.\n\nYou are Ann." in first["rules"]
            last = play_out(running, own, first)
            assert "SECRET" not in json.dumps([first, last])
            record = post(running, "record", {"token": own}).json()
            assert episode_from_json(record).spec_hash == setup.spec.hash
        # Without the hash, it is the game that the fields describe.
        token, state = new_game(running, "human", "random", **{**game, "rules": None})
        play_out(running, token, state)
        record = post(running, "record", {"token": token}).json()
        assert episode_from_json(record).spec_hash == SETUP.spec.hash
        for change in ({"rules": SETUP.spec.hash}, {"env_config": {"preset": "full"}}):
            body = {**game, "seats": ["human", "random"], **change}
            answer = post(running, "games", body)
            assert answer.status_code == 422
            assert "this server was not started with this game" in answer.json()["detail"]


def test_a_trainer_pushes_while_a_person_thinks_and_the_partner_goes_on_with_the_newest() -> None:
    with running_app() as running, RolloutClient(running.url) as trainer:
        push_to(trainer, running, version=1)
        token, state = new_game(running, "human", "player_1@1")
        body = {"token": token, "number": state["number"], "move": "hint red"}
        state = post(running, "move", body).json()
        trainer.push(2, {name: (adapter_bytes(0.7), PEFT_CONFIG) for name in PLAYERS})
        last = play_out(running, token, state)
        assert last["players"][1]["who"] == "player_1@2"
        episode = episode_from_json(post(running, "record", {"token": token}).json())
        versions = [turn.version for turn in episode.trajectory(1)]
        assert versions[0] == 1
        assert set(versions) == {1, 2}
        old = {**SETUP.row(), "seats": ["human", "player_1@1"]}
        answer = post(running, "games", old)
        assert answer.status_code == 409
        assert "the server serves player_1@2" in answer.json()["detail"]


def test_the_command_gets_the_game_that_was_played_on_the_page(app: RunningApp) -> None:
    with RolloutClient(app.url) as client:
        row = SETUP.row()
        page = PageGame(client, NewGameRequest(**row, seats=("human", "random"), seed=3))
        token = page.address.partition("#")[2]
        assert page.address == f"{app.url}/play/#{token}"
        last = play_out(app, token, post(app, "state", {"token": token}).json())
        episode, text = page.wait()
        assert episode.seats == ("human", "random")
        assert text == last["outcome"]
        page.leave()
        with pytest.raises(ServerError, match="no game with this token is open"):
            page.wait()


def test_a_connection_that_is_lost_does_not_lose_the_command_its_game(
    app: RunningApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RolloutClient(app.url) as client:
        wanted = NewGameRequest(**SETUP.row(), seats=("human", "random"), seed=3)
        page = PageGame(client, wanted)
        token = page.address.partition("#")[2]
        play_out(app, token, post(app, "state", {"token": token}).json())
        send = client._http.request
        asked: list[str] = []

        def lose_every_other(method: str, path: str, **options: Any) -> httpx.Response:
            asked.append(path)
            if len(asked) % 2:
                raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
            return send(method, path, **options)

        monkeypatch.setattr(client._http, "request", lose_every_other)
        episode, _ = page.wait()
        assert episode.seats == ("human", "random")
        assert asked == ["/play/state", "/play/state", "/play/record", "/play/record"]
        asked.clear()
        # A repeat of this would begin another game.
        with pytest.raises(ServerGoneError):
            PageGame(client, wanted)
        assert asked == ["/play/games"]


# What is sent, byte for byte.


def sent_for(task_game: Any, setup: Setup[Any], seat: int, seed: int) -> bytes:
    """Return what the browser of a seat is sent in a position of the task with a seed."""

    async def sent() -> bytes:
        game = PersonGame(
            task=setup.task("human", seed),
            seat=seat,
            idle_seconds=1,
            names=["human"] * setup.spec.num_players,
        )
        game._seen = Observation(task_game, seat)
        game.status = PersonStatus.YOUR_TURN
        return json.dumps(game.state()).encode()

    return asyncio.run(sent())


@pytest.mark.parametrize(
    ("env", "config"),
    [
        ("hanabi", {"preset": "laptop", "observation": "compact"}),
        ("hanabi", {"preset": "full", "players": 3}),
        ("kuhn_poker", {"preset": "kuhn_poker"}),
        ("leduc_poker", {"preset": "leduc_poker"}),
        ("debate", {"preset": "debate"}),
    ],
)
def test_what_the_browser_is_sent_does_not_depend_on_what_is_hidden_from_its_seat(
    env: str, config: dict[str, Any]
) -> None:
    setup = registry.setup(env, config)
    rng = random.Random(0)
    num_changed = 0
    for seed in range(3):
        referee = Referee(setup.task("human", seed))
        while referee.status is None:
            for seat in range(setup.spec.num_players):
                other = referee.game.resampled(seat, rng)
                num_changed += other.hidden(seat) != referee.game.hidden(seat)
                sent = sent_for(referee.game, setup, seat, seed)
                # Whoever knows the seed knows everything that is hidden.
                assert sent == sent_for(other, setup, seat, seed + 1)
            replies = {}
            for player in referee.to_act():
                legal = referee.game.legal(player)
                replies[player] = rng.choice(legal) if legal else "Answer: 7"
            referee.step(replies)
    assert num_changed > 0, "the test has exchanged nothing"


def test_marks_and_escape_codes_of_others_arrive_as_text() -> None:
    setup = registry.setup("debate", {"preset": "debate"})
    referee = Referee(setup.task("human", 1))
    evil = "<script>alert(1)</script>\x1b[2J\u202e\nAnswer: 7"
    referee.step({0: "Answer: 7", 1: evil})
    sent = sent_for(referee.game, setup, 0, 1)
    table = json.loads(sent)["scene"]["table"]
    assert "\x1b" not in table
    assert "\u202e" not in table
    assert "[U+202E]" in table
    # The page writes it by `textContent`, see test_person_page_in_a_browser.
    assert "script>alert(1)" in table


# Games that nobody plays on.


async def begun(games: PersonGames) -> str:
    return await games.begin(NewGameRequest(**SETUP.row(), seats=("human", "random"), seed=3))


def test_a_game_that_nobody_plays_on_is_ended_and_forgotten() -> None:
    async def play() -> None:
        scheduler = make_scheduler_of_people()
        games = PersonGames(*scheduler, NOTHING_OUTSIDE, NOBODY_SET, idle_seconds=0.1)
        token = await begun(games)
        game = games.find(token)
        assert game is not None
        await game.changed(0, 5)
        assert game.status is PersonStatus.YOUR_TURN
        await asyncio.sleep(0.05)
        assert games.find(token) is game, "a sign of life"
        number = game.number
        await game.changed(number, 5)
        assert game.status is PersonStatus.FAILED
        assert "no move for" in game.problem
        assert games.find(token) is None
        assert len(games) == 0

    asyncio.run(play())


def test_another_game_has_the_temperature_of_the_first_and_a_task_of_its_own() -> None:
    async def play() -> None:
        games = PersonGames(*make_scheduler_of_people(), NOTHING_OUTSIDE, NOBODY_SET)
        wanted = NewGameRequest(**SETUP.row(), seats=("human", "random"), seed=3, temperature=0.25)
        token = await games.begin(wanted)
        other = games.find(games.again(token) or "")
        assert other is not None
        assert other.wanted == structs.replace(wanted, seed=None)
        assert games.find(token) is not None
        assert games.again("x") is None

    asyncio.run(play())


def test_a_program_that_watches_is_no_sign_of_life() -> None:
    async def play() -> None:
        games = PersonGames(
            *make_scheduler_of_people(), NOTHING_OUTSIDE, NOBODY_SET, idle_seconds=0.1
        )
        token = await begun(games)
        for _ in range(20):
            games.find(token, is_person=False)
            await asyncio.sleep(0.01)
        assert games.find(token, is_person=False) is None

    asyncio.run(play())


def test_a_new_game_takes_the_place_of_one_that_was_left_but_not_of_one_in_play(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(person_games, "MAX_GAMES", 2)

    async def play() -> None:
        games = PersonGames(*make_scheduler_of_people(), NOTHING_OUTSIDE, NOBODY_SET)
        first = await begun(games)
        second = await begun(games)
        with pytest.raises(BusyError, match="2 games with people are open"):
            await begun(games)
        game = games.find(first)
        assert game is not None
        game.heard -= 300
        third = await begun(games)
        assert games.find(first) is None
        assert game.status is PersonStatus.FAILED
        assert games.find(second) is not None
        assert games.find(third) is not None

    asyncio.run(play())


class FailingPolicy:
    """A script that raises."""

    name = "failing"

    def seat(self, player: int, *, task: Any, game: int) -> "FailingPolicy":
        return self

    def act(self, seen: Observation) -> str:
        raise HanabiGrpoError("planted")


def test_a_game_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "random", FailingPolicy)
    assert make_script(SETUP, "random").name == "failing"

    async def play() -> None:
        games = PersonGames(*make_scheduler_of_people(), NOTHING_OUTSIDE, NOBODY_SET)
        wanted = NewGameRequest(**SETUP.row(), seats=("random", "human"), seed=3)
        game = games.find(await games.begin(wanted))
        assert game is not None
        await game.changed(0, 5)
        assert game.status is PersonStatus.FAILED
        assert game.state()["problem"] == "planted"

    asyncio.run(play())


def make_scheduler_of_people() -> tuple[Any, Any]:
    """Return a scheduler and its store."""
    from fake_engine import FakeEngine

    scheduler = make_scheduler(FakeEngine())
    return scheduler, scheduler._store
