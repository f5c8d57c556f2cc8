"""Rollout requests: every field, and JSON that breaks what comes after it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanabi_grpo.server.answers import problem
from hanabi_grpo.server.strict_json import strict_json
from server_app import JSON, OWNER, RunningApp, rollout_body, running_app, session_body

DEEP = "[" * 100_000
DEEP_ENOUGH = "[" * 40 + "]" * 40


@pytest.fixture(scope="module")
def app() -> Iterator[RunningApp]:
    with running_app() as running:
        yield running


def ask(app: RunningApp, body: bytes | str) -> tuple[int, str]:
    content = body.encode() if isinstance(body, str) else body
    answer = httpx.post(f"{app.url}/infer/", content=content, headers=JSON, timeout=30, trust_env=False)
    return answer.status_code, answer.json() if answer.status_code == 200 else answer.json()["detail"]


def changed(**data_dict: Any) -> str:
    body = rollout_body()
    for row in body["infer_requests"]:
        row["data_dict"] |= data_dict
    return json.dumps(body)


def configured(**config: Any) -> str:
    return json.dumps(rollout_body(**config))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "rollout request: not JSON: Expecting value"),
        (b"\xff\x00", "rollout request: not UTF-8 text"),
        (b"\xef\xbb\xbf{}", "rollout request: not JSON"),
        ("{}", "infer_requests: Field required"),
        ("[]", "rollout request: all of it=[]"),
        ("3", "rollout request: all of it=3"),
        ('{"infer_requests": []}', "infer_requests=[]"),
        ('{"infer_requests": [3]}', "request row 0: all of it=3"),
        ('{"infer_requests": [{}]}', "request row 0: data_dict: Field required"),
        ('{"infer_requests": [], "infer_requests": []}', "key 'infer_requests' is there twice"),
        ('{"infer_requests": NaN}', "NaN is not JSON"),
        ('{"infer_requests": -Infinity}', "-Infinity is not JSON"),
        ('{"infer_requests": 1e999}', "1e999 is too large for a number"),
        ('{"infer_requests": ' + "9" * 5000 + "}", "a whole number of 5000 digits; allowed are 32"),
        ('{"infer_requests": ' + DEEP, "nested deeper than 32"),
        ('{"infer_requests": ' + DEEP_ENOUGH + "}", "nested deeper than 32"),
        ('{"a": "\\ud800"}', "half of a surrogate pair at character 0"),
        ('{"\\udfff": 1}', "half of a surrogate pair at character 0"),
        (changed(suite="a/b"), "suite='a/b'"),
        (changed(suite=""), "request row 0: data_dict.suite"),
        (changed(suite="x" * 65), "request row 0: data_dict.suite"),
        (changed(suite=3), "request row 0: data_dict.suite=3: Input should be a valid string"),
        (changed(seed=-1), "request row 0: data_dict.seed=-1"),
        (changed(seed=2**63), "request row 0: data_dict.seed=9223372036854775808"),
        (changed(seed="0"), "data_dict.seed='0'"),
        (changed(seed=1.0), "data_dict.seed=1.0"),
        (changed(seed=True), "data_dict.seed=True"),
        (changed(player=5), "request row 0: data_dict.player=5"),
        (changed(env_config="laptop"), "data_dict.env_config='laptop'"),
        (changed(env_config={}), "env_config: key 'preset' is missing"),
        (changed(env_config={"preset": "labtop"}), "did you mean"),
        (changed(env_config={"preset": "laptop", "players": 10**20}), "players"),
        (
            changed(env_config={"preset": "laptop", "reward_score": 1e300}),
            "env_config.reward_score=1e+300: allowed are",
        ),
        (changed(env_config={"preset": "laptop", "max_turns": -1}), "max_turns"),
        (configured(max_tokens=0), "request_config.max_tokens=0"),
        (configured(max_tokens=-5), "request_config.max_tokens=-5"),
        (configured(max_tokens="4"), "request_config.max_tokens='4'"),
        (configured(max_tokens=True), "request_config.max_tokens=True"),
        (configured(max_tokens=512), "MAX_COMPLETION_LENGTH=512: a reply must be shorter than the conversation"),
        (configured(max_tokens=10**18), "HANABI_MAX_MODEL_LEN=512"),
        (configured(temperature=-0.1), "request_config.temperature=-0.1"),
        (configured(temperature=1e30), "request_config.temperature=1e+30"),
        (configured(temperature=2.5), "request_config.temperature=2.5"),
        (configured(temperature="hot"), "request_config.temperature='hot'"),
        (configured(top_p=0.9), "request_config.top_p=0.9: only 1 keeps logprobs those of the policy"),
        (configured(top_k=5), "request_config.top_k=5: only -1 keeps"),
        (configured(min_p=0.1), "request_config.min_p=0.1"),
        (configured(n=2), "request_config.n=2"),
        (configured(n=True), "request_config.n=True"),
        (configured(repetition_penalty=1.1), "request_config.repetition_penalty=1.1"),
        (configured(seed=4), "request_config.seed=4"),
        (configured(stop=["x"]), "request_config.stop=['x']"),
        (json.dumps({**rollout_body(), "request_config": 3}), "request_config=3"),
        (json.dumps({**rollout_body(), "adapters": {"player_9": None}}), "adapters.player_9"),
        (json.dumps({**rollout_body(), "adapters": {"player_0": "player_0"}}), "adapters.player_0='player_0'"),
        (json.dumps({**rollout_body(), "adapters": {"player_0": "../x@1"}}), "adapters.player_0='../x@1'"),
        (json.dumps({**rollout_body(), "adapters": {"player_0": "player_0@" + "9" * 5000}}), "adapters.player_0="),
        (json.dumps({**rollout_body(), "adapters": ["player_0"]}), "adapters=['player_0']"),
    ],
)
def test_a_request_that_cannot_be_played_is_422_with_the_reason(
    app: RunningApp, body: bytes | str, reason: str
) -> None:
    status, detail = ask(app, body)
    assert status == 422, detail
    assert reason in detail
    assert len(detail) < 2100


def test_rows_and_deals_are_bounded(app: RunningApp) -> None:
    row = rollout_body()["infer_requests"][0]
    status, detail = ask(app, json.dumps({"infer_requests": [row] * 65537}))
    assert (status, "at most 65536" in detail) == (422, True), detail
    rows = [{"data_dict": {**row["data_dict"], "seed": seed}} for seed in range(16385)]
    status, detail = ask(app, json.dumps({"infer_requests": rows}))
    assert (status, detail) == (422, "rollout request: 16385 deals; allowed are 16384. Ask for fewer at once.")


def test_a_version_that_is_not_served_is_409_and_other_methods_are_405(app: RunningApp) -> None:
    status, detail = ask(app, json.dumps(rollout_body(adapters={"player_0": "player_0@3", "player_1": "player_1@3"})))
    assert status == 409 and "player_0@3 is required" in detail
    assert httpx.get(f"{app.url}/infer/", trust_env=False).status_code == 405
    assert httpx.get(f"{app.url}/nothing", trust_env=False).json()["detail"] == "GET /nothing: Not Found"


def test_neutral_sampling_fields_and_unknown_ones_are_accepted(app: RunningApp) -> None:
    neutral = {"top_p": 1.0, "top_k": -1, "min_p": None, "n": 1, "repetition_penalty": 1.0, "stop": [], "seed": None}
    assert ask(app, configured(**neutral, stream=False))[0] == 200
    body = {
        **rollout_body(),
        "metrics": None,
        "use_tqdm": None,
        "request_config": {"max_tokens": 4, "temperature": None},
    }
    assert ask(app, json.dumps(body))[0] == 200
    assert ask(app, configured(temperature=0))[0] == 200


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


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)  # fmt: skip


@given(json_values)
def test_ordinary_json_is_read_as_python_reads_it(value: Any) -> None:
    assert strict_json(json.dumps(value)) == value
    assert strict_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_give_a_value_or_a_value_error(text: bytes | str) -> None:
    try:
        value = strict_json(text)
    except ValueError as error:
        assert str(error)
    else:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


def test_a_reason_that_quotes_what_is_no_text_or_is_endless_is_still_an_answer() -> None:
    assert json.loads(bytes(problem(422, "suite='\ud800'").body)) == {"detail": "suite='\\ud800'"}
    detail = json.loads(bytes(problem(422, "x" * 5000).body))["detail"]
    assert detail == "x" * 2000 + "… (5000 characters)"
