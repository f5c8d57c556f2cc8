"""Rollout requests: every field, and JSON that breaks what comes after it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from hanabi_grpo.server.answers import problem
from server_app import JSON, OWNER, RunningApp, rollout_body, running_app, session_body

DEEP = "[" * 100_000
DEEP_ENOUGH = "[" * 40 + "]" * 40


@pytest.fixture(scope="module")
def app() -> Iterator[RunningApp]:
    with running_app() as running:
        yield running


def ask(app: RunningApp, body: bytes | str) -> tuple[int, str]:
    content = body.encode() if isinstance(body, str) else body
    answer = httpx.post(f"{app.url}/rollout/", content=content, headers=JSON, timeout=30, trust_env=False)
    return answer.status_code, answer.json() if answer.status_code == 200 else answer.json()["detail"]


def changed(**task: Any) -> str:
    body = rollout_body()
    body["tasks"][0] |= task
    return json.dumps(body)


def asked(**other: Any) -> str:
    return json.dumps({**rollout_body(), **other})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "rollout request: not JSON"),
        (b'{"tasks": [{"suite": "\xff"}]}', "rollout request: not UTF-8 text"),
        ("[]", "rollout request: all of it=[]: Expected `object`, got `array`"),
        (asked(tasks=[]), "tasks=[]: Expected `array` of length >= 1"),
        (asked(top_p=0.9), "top_p=0.9: no such field"),
        (changed(player=0), "tasks.0.player=0: no such field"),
        ('{"tasks": NaN}', "rollout request: not JSON"),
        (asked().replace('ture": 1.0', 'ture": 1e999'), "temperature: Number out of range"),
        ('{"tasks": ' + DEEP, "tasks.0: Expected `object`, got `array`"),
        ('{"tasks": ' + DEEP_ENOUGH + "}", "tasks.0=[[["),
        (changed(env_config={"preset": [[]]}), "tasks.0.env_config={'preset': [[]]}: Expected"),
        (changed(env_config={"x" * 101: 1}), "tasks.0.env_config: Expected `str` of length <= 100"),
        (changed().replace("train", "\\ud800"), "rollout request: not JSON"),
        (changed(suite="a/b"), "tasks.0.suite='a/b': Expected `str` matching regex"),
        (changed(suite="train\n"), "tasks.0.suite='train\\n'"),
        (changed(seed=-1), "tasks.0.seed=-1: Expected `int` >= 0"),
        (changed(seed=2**63), "tasks.0.seed=9223372036854775808: Expected `int` <= 9223372036854775807"),
        (changed(seed="0"), "tasks.0.seed='0'"),
        (changed(env_config={}), "env_config: key 'preset' is missing"),
        (changed(env_config={"preset": "labtop"}), "did you mean"),
        (changed(env_config={"preset": "laptop", "players": 10**20}), "players"),
        (changed(env_config={"preset": "laptop", "max_turns": -1}), "max_turns"),
        (asked(num_games=0), "num_games=0: Expected `int` >= 1"),
        (asked(num_games=32769), "num_games=32769: Expected `int` <= 32768"),
        (asked(max_tokens=0), "max_tokens=0"),
        (asked(max_tokens=512), "MAX_COMPLETION_LENGTH=512: a reply must be shorter than the conversation"),
        (asked(temperature=-0.1), "temperature=-0.1: Expected `float` >= 0"),
        (asked(temperature=2.5), "temperature=2.5: Expected `float` <= 2"),
        (asked(seats={"player_0": "base"}), "seats={'player_0': 'base'}"),
        (asked(seats=["player_0", "base"]), "tasks.0: seat 'player_0': allowed are adapter@version"),
        (asked(seats=["../x@1", "base"]), "seat '../x@1'"),
        (asked(seats=["base"]), "tasks.0: 2 players, but seats=('base',) names 1; name all."),
    ],
)
def test_a_request_that_cannot_be_played_is_422_with_the_reason(
    app: RunningApp, body: bytes | str, reason: str
) -> None:
    status, detail = ask(app, body)
    assert status == 422, detail
    assert reason in detail
    assert len(detail) < 2100


def test_tasks_and_games_are_bounded(app: RunningApp) -> None:
    status, detail = ask(app, json.dumps(rollout_body(num_deals=16385)))
    assert (status, "Expected `array` of length <= 16384" in detail) == (422, True), detail
    status, detail = ask(app, json.dumps(rollout_body(num_deals=2, num_games=16385)))
    assert (status, detail) == (
        422,
        "2 tasks, num_games=16385: a request may ask for 32768 games. Ask for fewer at once.",
    )


def test_a_version_that_is_not_served_is_409_and_other_methods_are_405(app: RunningApp) -> None:
    status, detail = ask(app, json.dumps(rollout_body(seats=["player_0@3", "player_1@3"])))
    assert status == 409 and "player_0@3 is required" in detail
    assert httpx.get(f"{app.url}/rollout/", trust_env=False).status_code == 405
    assert httpx.get(f"{app.url}/nothing", trust_env=False).json()["detail"] == "GET /nothing: Not Found"


def test_query_parameters_of_another_type_are_422(app: RunningApp) -> None:
    for path in ("/log/?after=x", "/log/?after=" + "9" * 5000):
        answer = httpx.get(f"{app.url}{path}", trust_env=False)
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith("query.after: ")
    assert httpx.get(f"{app.url}/log/?after=-99999999999999999999", trust_env=False).status_code == 200


def test_session_and_adapter_routes_answer_odd_input_with_4xx(app: RunningApp) -> None:
    with httpx.Client(base_url=app.url, trust_env=False) as client:
        assert client.post("/session/", json=session_body(app.identity)).status_code == 200
        valid = json.dumps(session_body(app.identity))
        for body in ("", "[]", DEEP, valid.replace(":", ": NaN,", 1), '{"run_id": "\\ud800"}', valid[:-5], "9" * 5000):
            answer = client.post("/session/", content=body, headers=JSON)
            assert 400 <= answer.status_code < 500, body[:50]
        for config in ("", "[]", "[" * 30000, "NaN", "1e999", "9" * 5000, '"x"', "{}", '{"r": 8, "r": 8}'):
            headers = {**OWNER, "x-sha256": "0" * 64, "x-peft-config": config}
            answer = client.put("/adapters/player_0", params={"version": 1}, content=b"x", headers=headers)
            assert answer.status_code == 422, config[:50]
        for version in ("-1", "x", "9" * 5000, "1e3", str(2**63), ""):
            answer = client.put("/adapters/player_0", params={"version": version}, content=b"x", headers=OWNER)
            assert answer.status_code == 422, version[:50]
            assert client.post("/adapters/commit", params={"version": version}, headers=OWNER).status_code in (409, 422)
        for name in ("player_9", "..%2f..%2fetc", "%00", "%ff%fe", "x" * 4000):
            answer = client.put(f"/adapters/{name}?version=1", content=b"x", headers=OWNER)
            assert 400 <= answer.status_code < 500, name[:50]


def test_a_reason_that_quotes_what_is_no_text_or_is_endless_is_still_an_answer() -> None:
    assert json.loads(bytes(problem(422, "suite='\ud800'").body)) == {"detail": "suite='\\ud800'"}
    detail = json.loads(bytes(problem(422, "x" * 5000).body))["detail"]
    assert detail == "x" * 2000 + "… (5000 characters)"
