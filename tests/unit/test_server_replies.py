"""One reply at a time: the same ids as a game's, a seat that must be held, and requests that are
refused.
"""

import asyncio
import json
import math
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from doctor_machines import ROOT
from fake_engine import CHAT, LAPTOP, TOKENIZER, FakeEngine, make_scheduler, sample, task
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.messages import EarlierTurn, ReplyRequest
from hanabi_grpo.rollout.sampler import Sample
from hanabi_grpo.types import Episode, Reply
from server_app import (
    JSON,
    PEFT_CONFIG,
    POST_ROLLOUT,
    RunningApp,
    WordEngine,
    adapter_bytes,
    push_to,
    rollout_body,
    running_app,
)

FULL = EnvConfig(preset="full", players=2, observation="full", legal_moves=True, max_turns=9)
ASKED: dict[str, Any] = {
    "seat": "base",
    "system": "",
    "turns": [{"prompt": "life1", "reply_ids": [3, 4]}],
    "prompt": "life1 info3",
    "max_tokens": 4,
    "temperature": 1.0,
}


@pytest.fixture(scope="module")
def app() -> Iterator[RunningApp]:
    with running_app(max_model_len=20000) as running:
        yield running


def ask(app: RunningApp, body: bytes | str) -> httpx.Response:
    return httpx.post(f"{app.url}/reply/", content=body, headers=JSON, timeout=30, trust_env=False)


def changed(**other: Any) -> str:
    return json.dumps({**ASKED, **other})


def replayed(client: RolloutClient, episode: Episode, config: EnvConfig) -> list[Reply]:
    """Ask for each reply of a game again, one request each, every player with its own
    conversation.
    """
    replies = []
    turns: dict[int, list[EarlierTurn]] = {player: [] for player in range(episode.num_players)}
    window = config.window
    for turn in episode.turns:
        own = turns[turn.player]
        asked = ReplyRequest(
            seat=episode.seats[turn.player],
            system=HANABI.system(config, turn.player),
            turns=tuple(own if window is None else own[max(0, len(own) + 1 - window) :]),
            fresh=window is not None,
            prompt=turn.prompt,
            max_tokens=4,
            temperature=1.0,
        )
        reply = client.reply(asked)
        own.append(EarlierTurn(prompt=turn.prompt, reply_ids=reply.reply_ids))
        replies.append(reply)
    return replies


@pytest.mark.parametrize(
    "config",
    [LAPTOP, FULL, LAPTOP.model_copy(update={"memory": 2})],
    ids=["compact", "full with a system message", "of the last two turns"],
)
def test_a_game_has_the_same_ids_reply_by_reply_as_in_one_request(
    app: RunningApp, config: EnvConfig
) -> None:
    with RolloutClient(app.url) as client:
        push_to(client, app)
        lent = client.lend(50, adapter_bytes(9.0), PEFT_CONFIG)
        for seats in (["player_0@1", "player_1@1"], ["player_1@1", lent], ["base", "player_0@1"]):
            result = client.play(
                [{**task(seed, config), "seats": seats} for seed in range(4)],
                num_games=1,
                max_tokens=4,
                temperature=1.0,
            )
            episodes = [episode for group in result.groups for episode in group]
            assert max(len(episode.turns) for episode in episodes) > 2
            for episode in episodes:
                for turn, reply in zip(
                    episode.turns, replayed(client, episode, config), strict=True
                ):
                    assert reply == Reply(
                        text=turn.reply,
                        prompt=turn.prompt,
                        prompt_ids=turn.prompt_ids,
                        reply_ids=turn.reply_ids,
                        logprobs=turn.logprobs,
                        version=turn.version,
                    )
                    assert turn.prompt_ids and turn.reply_ids


def test_a_conversation_that_has_no_room_for_the_reply_is_out_of_tokens_and_nothing_is_sampled() -> (
    None
):
    with running_app(max_model_len=64) as app, RolloutClient(app.url) as client:

        def ask(max_tokens: int, *turns: EarlierTurn) -> Reply:
            asked = {"seat": "base", "system": "", "prompt": "life1", "temperature": 1.0}
            return client.reply(ReplyRequest(turns=turns, max_tokens=max_tokens, **asked))

        fits = 64 - len(ask(4).prompt_ids)
        assert not ask(fits).out_of_tokens
        before = app.engine.num_samples
        gone = Reply(text="", prompt="life1", out_of_tokens=True)
        assert ask(fits + 1) == gone
        assert ask(1, EarlierTurn(prompt="life1", reply_ids=(3,) * 60)) == gone
        assert ask(1, *[EarlierTurn(prompt="life1 " * 9000, reply_ids=(3,) * 60000)] * 30) == gone
        assert app.engine.num_samples == before


def test_a_request_that_cannot_be_answered_is_422_with_the_reason(app: RunningApp) -> None:
    before = app.engine.num_samples
    for body, reason in (
        ("", "reply request: not JSON"),
        (changed(extra=1), "extra=1: no such field"),
        (changed(seat="iggi"), "seat 'iggi' is a script, which needs no server"),
        (changed(seat="../x@1"), "seat '../x@1': allowed are"),
        (changed(turns=[{"prompt": "x", "reply_ids": []}]), "turns.0.reply_ids=[]"),
        (
            changed(turns=[{"prompt": "x", "reply_ids": [1, len(TOKENIZER)]}]),
            f"turns.0.reply_ids holds {len(TOKENIZER)}; this model has ids 0 to "
            f"{len(TOKENIZER) - 1}",
        ),
        (
            changed(max_tokens=20000),
            "MAX_COMPLETION_LENGTH=20000: a reply must be shorter than the conversation",
        ),
    ):
        answer = ask(app, body)
        assert answer.status_code == 422, answer.text
        assert reason in answer.json()["detail"]
    assert app.engine.num_samples == before


def test_what_is_not_held_is_409_and_odd_texts_are_answered(app: RunningApp) -> None:
    answer = ask(app, changed(seat="player_4@7"))
    assert (answer.status_code, "player_4@7 is required" in answer.text) == (409, True)
    answer = ask(app, changed(seat="frozen_0123456789abcdef@7"))
    assert (answer.status_code, "upload it again" in answer.text) == (409, True)
    for text in ("", "\x00", "ü🂡", "<|im_end|>"):
        answer = ask(
            app, changed(system=text, turns=[{"prompt": text, "reply_ids": [3]}], prompt=text)
        )
        assert answer.status_code == 200, answer.text


def test_a_trainer_that_lost_the_server_does_not_get_replies_of_another_runs_adapters(
    app: RunningApp,
) -> None:
    with RolloutClient(app.url) as client, httpx.Client(base_url=app.url, trust_env=False) as http:
        push_to(client, app, version=8)
        stranger = {"x-run-id": "elsewhere", "x-trainer-id": "1" * 32}
        for seat, status in (("player_0@8", 409), ("base", 200)):
            assert (
                http.post("/reply/", json={**ASKED, "seat": seat}, headers=stranger).status_code
                == status
            )
            body = rollout_body(seats=[seat, "iggi"])
            assert http.post("/rollout/", json=body, headers=stranger).status_code == status
        assert http.post("/reply/", json={**ASKED, "seat": "player_0@8"}).status_code == 200, (
            "nobody's request"
        )


class Cancelled(WordEngine):
    """Never replies; notes that it was cancelled."""

    cancelled = False

    async def generate(
        self, prompt_ids: list[int], sampling: Any, adapter: Any | None, *game: Any
    ) -> Sample:
        self.num_samples += 1
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return sample("Play 0")


def test_a_client_that_hangs_up_cancels_its_reply() -> None:
    engine = Cancelled()
    with running_app(engine=engine) as app, RolloutClient(app.url) as client:
        seat = client.lend(1, adapter_bytes(0.5), PEFT_CONFIG)
        body = changed(seat=seat).encode()
        with socket.create_connection(("127.0.0.1", app.port)) as connection:
            connection.sendall(
                POST_ROLLOUT.replace(b"rollout", b"reply")
                + b"content-length: %d\r\n\r\n" % len(body)
                + body
            )
            _wait(lambda: engine.num_samples == 1)
            (held,) = app.store.frozen._held.values()
            assert held.users == 1
        _wait(lambda: engine.cancelled and held.users == 0)


def _wait(done: Any) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_fault_of_the_engine_is_500_over_http_and_nothing_stays_in_use() -> None:
    class Faulty(WordEngine):
        async def generate(
            self, prompt_ids: list[int], sampling: Any, adapter: Any | None, *game: Any
        ) -> Sample:
            if sampling.max_tokens == 3:
                raise RuntimeError("out of memory")
            return sample("Play 0", math.nan)

    with running_app(engine=Faulty()) as app, RolloutClient(app.url) as client:
        seat = client.lend(1, adapter_bytes(0.5), PEFT_CONFIG)
        for max_tokens, message in (
            (3, "the server failed: RuntimeError; its log, in the other terminal, says where."),
            (4, "logprob 0 is"),
        ):
            answer = ask(app, changed(seat=seat, max_tokens=max_tokens))
            assert (answer.status_code, message in answer.json()["detail"]) == (500, True), (
                answer.text
            )
        assert [held.users for held in app.store.frozen._held.values()] == [0]


def test_a_reply_of_a_window_is_made_without_the_thoughts_of_the_turns_before_it() -> None:
    thought, said = (
        TOKENIZER.encode(text, add_special_tokens=False)
        for text in ("<think> life2", "</think> Play 0")
    )
    turns = [{"prompt": "life1", "reply_ids": [*thought, *said, CHAT.eos_id]}] * 3

    async def scenario(fresh: bool, **limits: int) -> Reply:
        wanted = msgspec.convert({**ASKED, "turns": turns, "fresh": fresh}, ReplyRequest)
        return await make_scheduler(FakeEngine(), **limits).reply(wanted)

    window = asyncio.run(scenario(True)).prompt_ids
    assert (
        TOKENIZER.decode(list(window)).count("assistant Play 0 <|im_end|>") == 3
        and thought[0] not in window
    )
    # Where a conversation grows, the reply's turn adds its own message alone.
    assert len(asyncio.run(scenario(False)).prompt_ids) < len(window)
    room = {"max_model_len": len(window) + 4}
    assert (
        not asyncio.run(scenario(True, **room)).out_of_tokens
        and asyncio.run(scenario(False, **room)).out_of_tokens
    )


def test_a_model_whose_template_takes_no_system_message_says_so() -> None:
    from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
    from hanabi_grpo.rollout.chat import ChatFormat
    from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(compact_vocabulary(LAPTOP.spec()))
    tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + str(tokenizer.chat_template)
    )

    async def scenario(system: str) -> Reply:
        scheduler = make_scheduler(FakeEngine(), chat=ChatFormat.from_tokenizer(tokenizer))
        return await scheduler.reply(msgspec.convert({**ASKED, "system": system}, ReplyRequest))

    assert asyncio.run(scenario("")).reply_ids
    with pytest.raises(
        SettingsError,
        match=r"chat template .* refuses the conversation \(no system\); send system=",
    ):
        asyncio.run(scenario("Be brief."))


CHAT_ASKED: dict[str, Any] = {
    "model": "base",
    "max_tokens": 4,
    "messages": [
        {"role": "system", "content": "life2"},
        {"role": "user", "content": "life1"},
        {"role": "assistant", "content": "Play 0"},
        {"role": "user", "content": "life1 info3"},
    ],
}


def test_the_chat_api_answers_with_the_reply_its_ids_and_logprobs_of_the_named_adapter(
    app: RunningApp, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        RolloutClient(app.url) as client,
        httpx.Client(base_url=f"{app.url}/v1", trust_env=False) as http,
    ):
        push_to(client, app, version=9)
        lent = client.lend(50, adapter_bytes(3.0), PEFT_CONFIG)
        listed = [row["id"] for row in http.get("/models").json()["data"]]
        assert listed[:4] == ["test-model", "base", "player_0@9", "player_1@9"] and lent in listed
        said = TOKENIZER.encode("Play 0", add_special_tokens=False)
        turns = [{"prompt": "life1", "reply_ids": said}]
        for model in (*listed[:4], lent):
            answer = http.post("/chat/completions", json={**CHAT_ASKED, "model": model}).json()
            seat = "base" if model == "test-model" else model
            same = json.loads(
                ask(app, changed(seat=seat, system="life2", turns=turns, fresh=True)).text
            )
            [choice] = answer["choices"]
            rows = choice["logprobs"]["content"]
            assert (answer["model"], choice["finish_reason"]) == (model, "stop")
            assert (choice["message"], choice["token_ids"]) == (
                {"role": "assistant", "content": same["text"]},
                same["reply_ids"],
            )
            assert [row["logprob"] for row in rows] == same["logprobs"] and same["logprobs"]
            assert (
                TOKENIZER.convert_tokens_to_ids([row["token"] for row in rows]) == same["reply_ids"]
            )
            assert answer["prompt_token_ids"] == same["prompt_ids"]
            streamed = http.post(
                "/chat/completions", json={**CHAT_ASKED, "model": model, "stream": True}
            ).text
            first, last, end = (
                line.removeprefix("data: ") for line in streamed.strip().split("\n\n")
            )
            [piece] = json.loads(first)["choices"]
            assert (
                piece.pop("delta") == choice.pop("message") and piece == choice and end == "[DONE]"
            )
            assert json.loads(last)["usage"] == answer["usage"]
            assert answer["usage"]["total_tokens"] == len(same["prompt_ids"]) + len(
                same["reply_ids"]
            )
    # What docs/interop.md shows.
    page = (ROOT / "docs" / "interop.md").read_text(encoding="utf-8")
    exec(
        "import httpx"
        + page.partition("import httpx")[2]
        .partition("```")[0]
        .replace("http://127.0.0.1:8000", app.url)
    )
    assert capsys.readouterr().out.startswith("Discard 1 [45, 48, 2] [-0.5")


def test_the_chat_request_of_the_page_is_answered(
    app: RunningApp, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "interop.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    exec(code.replace("http://127.0.0.1:8000", app.url), {})
    assert "-0.5" in capsys.readouterr().out


def test_a_chat_request_that_cannot_be_answered_says_why(app: RunningApp) -> None:
    before, [system, user, said, _] = app.engine.num_samples, CHAT_ASKED["messages"]
    for status, other, reason in (
        (
            422,
            {"model": "gpt-4o"},
            "model='gpt-4o': allowed are adapter@version (player_0@7), base, test-model",
        ),
        (422, {"max_tokens": None}, "max_tokens has 0 values"),
        (422, {"max_completion_tokens": 5}, "max_tokens has 2 values"),
        (422, {"top_p": 0.9}, "top_p=0.9"),
        (422, {"seed": 1}, "seed=1: no such field"),
        (422, {"messages": []}, "messages=[]"),
        (422, {"messages": [user, said]}, "messages of ['user', 'assistant']; allowed are"),
        (422, {"messages": [user, system]}, "messages of ['user', 'system']; allowed are"),
        (
            422,
            {"messages": [user, {**said, "content": "life1 " * 9000}] * 3 + [user]},
            "HANABI_MAX_MODEL_LEN=20000",
        ),
        (
            422,
            {
                "messages": [user, {**said, "content": "life1 " * 9000}] * 2 + [user],
                "max_tokens": 9000,
            },
            "Send less",
        ),
        (409, {"model": "player_4@7"}, "player_4@7 is required"),
    ):
        answer = httpx.post(
            f"{app.url}/v1/chat/completions", json={**CHAT_ASKED, **other}, trust_env=False
        )
        assert (answer.status_code, reason in answer.json()["detail"]) == (status, True), (
            answer.text
        )
    assert app.engine.num_samples == before


def test_an_answer_that_is_no_reply_of_that_seat_is_refused() -> None:
    right = {
        "text": "x",
        "prompt_ids": [1],
        "reply_ids": [1, 2],
        "logprobs": [-0.5, -1],
        "version": None,
        "out_of_tokens": False,
        "instance_id": "i",
    }
    asked = ReplyRequest(
        seat="base", system="", turns=(), prompt="p", max_tokens=4, temperature=1.0
    )

    def client_of(answer: dict[str, Any]) -> RolloutClient:
        client = RolloutClient("http://server")
        transport = httpx.MockTransport(
            lambda request: httpx.Response(200, content=json.dumps(answer))
        )
        client._http = httpx.Client(base_url="http://server", transport=transport)
        return client

    assert client_of(right).reply(asked).logprobs == (-0.5, -1.0)
    for other, message in (
        ({"version": 3}, "it came from version 3"),
        ({"logprobs": [float("nan")] * 2}, "does not fit"),
        ({"logprobs": [-0.5]}, "does not fit"),
        ({"out_of_tokens": True}, "does not fit"),
    ):
        with pytest.raises(ServerError, match=message):
            client_of({**right, **other}).reply(asked)
