"""One seat as an OpenEnv server.

OpenEnv's own client plays there and its own validator looks at it.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip(
    "openenv", reason="the extra openenv is not installed: uv pip install 'hanabi-grpo[openenv]'"
)

from doctor_machines import ROOT
from hanabi_grpo.envs.base import Policy, Setup
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.envs.wrappers import SeatEnv
from openenv_servers import serving
from waiting import wait_until

SETUP = setup("hanabi", {"preset": "laptop"})
SESSIONS = 64
PAGE = (ROOT / "docs" / "interop.md").read_text(encoding="utf-8")


def partners() -> dict[int, Policy]:
    return {1: SETUP.environment.policies["iggi"]()}


@pytest.fixture(scope="module")
def app() -> Any:
    from hanabi_grpo.envs.interop.openenv_server import openenv_app

    return openenv_app(SETUP, 0, partners(), sessions=SESSIONS)


@pytest.fixture(scope="module")
def url(app: Any) -> Iterator[str]:
    with serving(app) as url:
        yield url


@pytest.fixture(autouse=True)
def _every_session_is_closed(app: Any) -> Iterator[None]:
    """Fail a test that leaves a session open, which takes the place of a later one."""
    yield
    assert wait_until(lambda: app._num_open == 0), f"{app._num_open} sessions are open"


def reply_to(message: str, seed: int) -> str:
    return ("Play 0", "Discard 0", "what?")[(len(message) + seed) % 3]


def test_64_sessions_at_once_play_what_the_same_seat_plays_here_and_one_more_is_refused(
    url: str,
) -> None:
    from openenv.core.generic_client import GenericEnvClient

    at_once = asyncio.Barrier(SESSIONS)
    was_refused = asyncio.Event()

    async def play(seed: int) -> list[Any]:
        async with GenericEnvClient(
            base_url=url, connect_timeout_s=60, message_timeout_s=120
        ) as client:
            result = await client.reset(seed=seed, episode_id=f"e{seed}", split="train")
            await at_once.wait()
            if seed == 0:
                with pytest.raises(Exception, match=r"CAPACITY_REACHED|received 1013"):
                    async with GenericEnvClient(base_url=url) as one_more:
                        await one_more.reset()
                was_refused.set()
            await was_refused.wait()
            message = result.observation["message"]
            seen = [message]
            while not result.done:
                result = await client.step({"reply": reply_to(message, seed)})
                message = result.observation["message"]
                seen.append((result.observation["rewards"], result.reward, message))
            state = await client.state()
            assert state["episode_id"] == f"e{seed}"
            assert state["seed"] == seed
            assert state["split"] == "train"
            assert state["step_count"] == len(seen) - 1
            assert result.observation["result"]
            return seen

    def played_here(seed: int) -> list[Any]:
        env = SeatEnv(SETUP.environment, SETUP.config, 0, partners())
        message, _ = env.reset(options={"split": "train", "seed": seed})
        seen: list[Any] = [message]
        is_over = False
        while not is_over:
            message, reward, terminated, truncated, info = env.step(reply_to(message, seed))
            seen.append((info["rewards"], reward, message))
            is_over = terminated or truncated
        return seen

    async def play_all() -> list[list[Any]]:
        return await asyncio.gather(*(play(seed) for seed in range(SESSIONS)))

    assert asyncio.run(play_all()) == [played_here(seed) for seed in range(SESSIONS)]


def test_the_client_of_the_page_plays_a_game(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, after_import = PAGE.partition("from openenv.core")
    code, _, _ = after_import.partition("```")
    exec(f"from openenv.core{code}".replace("http://127.0.0.1:8100", url), {})
    assert re.match(r"\{'score': \d", capsys.readouterr().out)


def test_the_seat_that_trl_trains_earns_what_the_same_replies_earn_here(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    monkeypatch.syspath_prepend(str(ROOT / "integrations" / "openenv"))
    from train_trl import PLAIN_CALL, PLAIN_TEMPLATE, TINY, Seat

    seat = Seat(url)
    env = SeatEnv(SETUP.environment, SETUP.config, 0, partners())
    try:
        for seed in range(3):
            message, info = env.reset(options={"split": "train", "seed": seed})
            assert seat.reset(seed=seed, prompt=[]) == f"{info['system']}\n\n{message}"
            reward = 0.0
            over = False
            while not over:
                reply = reply_to(message, seed)
                message, earned, over, _, _ = env.step(reply)
                assert seat.move(reply=reply) == message
                reward += earned
            with pytest.raises(ValueError, match="over"):
                seat.move(reply="Play 0")
            assert seat.get_reward() == reward
            assert json.loads(capsys.readouterr().out)["over"]
    finally:
        seat._client.close()
    # A model without tool calls: its whole reply is the call.
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.chat_template = PLAIN_TEMPLATE
    tokenizer.response_template = PLAIN_CALL
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "life1 info3"}], add_generation_prompt=True, return_dict=False
    )
    reply_ids = tokenizer("Play 0<|im_end|>")["input_ids"]
    message = tokenizer.parse_response(reply_ids, prefix=prompt)
    [call] = message["tool_calls"]
    assert call["function"] == {"name": "move", "arguments": {"reply": "Play 0"}}


def test_what_a_client_does_wrong_is_an_error_of_its_own_session(url: str) -> None:
    from openenv.core.generic_client import GenericEnvClient

    with contextlib.closing(GenericEnvClient(base_url=url).sync()) as client:
        for wrong, reason in (
            (lambda: client.step({"reply": "Play 0"}), "send reset first"),
            (lambda: client.step({"word": "Play 0"}), "VALIDATION_ERROR"),
            (lambda: client.reset(board="full"), "allowed: split, seed, game"),
        ):
            with pytest.raises(Exception, match=reason):
                wrong()
        assert client.reset(seed=1).observation["legal"]


def test_openenvs_own_validator_finds_nothing_at_the_running_server(url: str) -> None:
    from openenv.cli._validation import validate_running_environment

    report = validate_running_environment(url, timeout_s=30)
    failed = [criterion for criterion in report["criteria"] if not criterion["passed"]]
    assert report["passed"], failed


def test_such_a_server_is_an_environment_of_ours_too(url: str) -> None:
    from hanabi_grpo.envs import conformance, registry
    from hanabi_grpo.envs.referee import Referee
    from hanabi_grpo.errors import SettingsError

    environment = registry.get(f"openenv:{url.removeprefix('http://')}")
    [preset] = environment.presets.values()
    config = preset.model_copy(
        update={
            "observation_field": "message",
            "max_turns": 9,
            "least_return": -9.0,
            "greatest_return": 9.0,
        }
    )
    # The address, and with it every game, is another one in each run; some games end early.
    report = conformance.check_games(environment, config, num_episodes=8)
    assert report.num_steps > report.num_episodes
    assert report.num_copies == 0, "it cannot be copied"
    conformance.check_replies(environment, config, num_episodes=5)
    conformance.check_policies(environment, config)
    conformance.check_wrappers(environment, config)
    referee = Referee(Setup(environment, config).task("eval", 1))
    here = SETUP.environment.reset(SETUP.config, split="openenv", seed=referee.game.seed)  # type: ignore[attr-defined]
    assert referee.see(0).message() == here.message(0)
    # The session of a game that is dropped before its end is closed by the next game.
    del referee
    all_fields = Referee(Setup(environment, preset).task("eval", 1)).see(0).message()
    assert "message: The game begins." in all_fields
    assert "\nlegal: [" in all_fields
    wrong = config.model_copy(update={"observation_field": "text"})
    with pytest.raises(
        SettingsError,
        match=r"HANABI_OBSERVATION_FIELD=text: .* have the fields metadata, message, system",
    ):
        Referee(Setup(environment, wrong).task("eval", 1))
    with pytest.raises(SettingsError, match=r"is not an OpenEnv server .* start it first"):
        registry.get("openenv:localhost:1")


def test_a_mistake_over_http_is_answered_with_its_reason(url: str) -> None:
    for path, body, reason in (
        ("reset", {"seed": 3, "split": "test"}, "this server offers"),
        ("step", {"action": {"reply": "Play 0"}}, "send reset first"),
    ):
        answer = httpx.post(f"{url}/{path}", json=body, trust_env=False)
        assert answer.status_code == 422, answer.text
        assert reason in answer.json()["detail"]
