"""One reply at a time: the same ids as a game's, a seat that must be held, refused requests."""

import asyncio
import json
import math
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest

from doctor_machines import ROOT
from fake_engine import CHAT, LAPTOP, TOKENIZER, FakeEngine, make_scheduler, sample, task
from hanabi_grpo.client import rollout_client
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.prompts import compact_vocabulary
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.messages import (
    EarlierTurn,
    ReplyRequest,
    ScoreAnswer,
    ScoredPrompt,
    ScoreRequest,
)
from hanabi_grpo.rollout.sampler import AdapterHandle, Sample, SamplingConfig
from hanabi_grpo.sft.tiny_model.tokenizer import build_tokenizer
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
from waiting import wait_until

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


def with_fields(**other: Any) -> str:
    """A reply request that differs in some fields."""
    return json.dumps({**ASKED, **other})


def ask_again(client: RolloutClient, episode: Episode, config: EnvConfig) -> list[Reply]:
    """Ask for each reply of a game again, one request each.

    Every player has its own conversation.
    """
    replies = []
    turns: dict[int, list[EarlierTurn]] = {player: [] for player in range(episode.num_players)}
    window = config.window
    for turn in episode.turns:
        remembered = turns[turn.player]
        shown = remembered
        if window is not None:
            shown = remembered[max(0, len(remembered) + 1 - window) :]
        reply = client.reply(
            ReplyRequest(
                seat=episode.seats[turn.player],
                system=HANABI.system(config, turn.player),
                turns=tuple(shown),
                fresh=window is not None,
                prompt=turn.prompt,
                max_tokens=4,
                temperature=1.0,
            )
        )
        remembered.append(EarlierTurn(prompt=turn.prompt, reply_ids=reply.reply_ids))
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
        guest = client.upload_guest(50, adapter_bytes(9.0), PEFT_CONFIG)
        for seats in (["player_0@1", "player_1@1"], ["player_1@1", guest], ["base", "player_0@1"]):
            tasks = [{**task(seed, config), "seats": seats} for seed in range(4)]
            result = client.play(tasks, num_games=1, max_tokens=4, temperature=1.0)
            episodes = [episode for group in result.groups for episode in group]
            assert max(len(episode.turns) for episode in episodes) > 2
            for episode in episodes:
                replies = ask_again(client, episode, config)
                for turn, reply in zip(episode.turns, replies, strict=True):
                    assert reply == Reply(
                        text=turn.reply,
                        prompt=turn.prompt,
                        prompt_ids=turn.prompt_ids,
                        reply_ids=turn.reply_ids,
                        logprobs=turn.logprobs,
                        version=turn.version,
                    )
                    assert turn.prompt_ids
                    assert turn.reply_ids


def test_without_room_for_the_reply_a_conversation_is_out_of_tokens_and_nothing_is_sampled() -> (
    None
):
    with running_app(max_model_len=64) as app, RolloutClient(app.url) as client:

        def reply(max_tokens: int, *turns: EarlierTurn) -> Reply:
            return client.reply(
                ReplyRequest(
                    seat="base",
                    system="",
                    turns=turns,
                    prompt="life1",
                    max_tokens=max_tokens,
                    temperature=1.0,
                )
            )

        room = 64 - len(reply(4).prompt_ids)
        assert not reply(room).out_of_tokens
        before = app.engine.num_samples
        out_of_tokens = Reply(text="", prompt="life1", out_of_tokens=True)
        assert reply(room + 1) == out_of_tokens
        long_turn = EarlierTurn(prompt="life1", reply_ids=(3,) * 60)
        assert reply(1, long_turn) == out_of_tokens
        huge_turn = EarlierTurn(prompt="life1 " * 9000, reply_ids=(3,) * 60000)
        assert reply(1, *[huge_turn] * 30) == out_of_tokens
        assert app.engine.num_samples == before


def test_a_request_that_cannot_be_answered_is_422_with_the_reason(app: RunningApp) -> None:
    before = app.engine.num_samples
    for body, reason in (
        ("", "reply request: not JSON"),
        (with_fields(extra=1), "extra=1: no such field"),
        (with_fields(seat="iggi"), "seat 'iggi' is a script, which needs no server"),
        (with_fields(seat="../x@1"), "seat '../x@1': allowed are"),
        (with_fields(turns=[{"prompt": "x", "reply_ids": []}]), "turns.0.reply_ids=[]"),
        (
            with_fields(turns=[{"prompt": "x", "reply_ids": [1, len(TOKENIZER)]}]),
            f"turns.0.reply_ids contains {len(TOKENIZER)}; this model has ids 0 to "
            f"{len(TOKENIZER) - 1}",
        ),
        (
            with_fields(max_tokens=20000),
            "MAX_COMPLETION_LENGTH=20000: a reply must be shorter than the conversation",
        ),
    ):
        answer = ask(app, body)
        assert answer.status_code == 422, answer.text
        assert reason in answer.json()["detail"]
    assert app.engine.num_samples == before


def test_what_is_not_held_is_409_and_odd_texts_are_answered(app: RunningApp) -> None:
    answer = ask(app, with_fields(seat="player_4@7"))
    assert answer.status_code == 409
    assert "player_4@7 is required" in answer.text
    answer = ask(app, with_fields(seat="frozen_0123456789abcdef@7"))
    assert answer.status_code == 409
    assert "upload it again" in answer.text
    for text in ("", "\x00", "ü🂡", "<|im_end|>"):
        turns = [{"prompt": text, "reply_ids": [3]}]
        answer = ask(app, with_fields(system=text, turns=turns, prompt=text))
        assert answer.status_code == 200, answer.text


def test_a_trainer_that_lost_the_server_does_not_get_replies_of_another_runs_adapters(
    app: RunningApp,
) -> None:
    with RolloutClient(app.url) as client, httpx.Client(base_url=app.url, trust_env=False) as http:
        push_to(client, app, version=8)
        stranger = {"x-run-id": "elsewhere", "x-trainer-id": "1" * 32}
        for seat, status in (("player_0@8", 409), ("base", 200)):
            answer = http.post("/reply/", json={**ASKED, "seat": seat}, headers=stranger)
            assert answer.status_code == status
            body = rollout_body(seats=[seat, "iggi"])
            answer = http.post("/rollout/", json=body, headers=stranger)
            assert answer.status_code == status
        answer = http.post("/reply/", json={**ASKED, "seat": "player_0@8"})
        assert answer.status_code == 200, "a request that names no run"


class SilentEngine(WordEngine):
    """Never replies; notes that it was cancelled."""

    was_cancelled = False

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        self.num_samples += 1
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return sample("Play 0")


def test_a_client_that_disconnects_cancels_its_reply() -> None:
    engine = SilentEngine()
    with running_app(engine=engine) as app, RolloutClient(app.url) as client:
        seat = client.upload_guest(1, adapter_bytes(0.5), PEFT_CONFIG)
        body = with_fields(seat=seat).encode()
        head = POST_ROLLOUT.replace(b"rollout", b"reply")
        length = b"content-length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", app.port)) as connection:
            connection.sendall(head + length + body)
            assert wait_until(lambda: engine.num_samples == 1, 20)
            [guest] = app.store.frozen._held.values()
            assert guest.users == 1
        assert wait_until(lambda: engine.was_cancelled and guest.users == 0, 20)


class FaultyEngine(WordEngine):
    """Fails when 3 tokens are asked for, else replies with logprobs that are no numbers."""

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: SamplingConfig,
        adapter: AdapterHandle | None,
        game: int | None = None,
    ) -> Sample:
        if sampling.max_tokens == 3:
            raise RuntimeError("out of memory")
        return sample("Play 0", math.nan)


def test_a_fault_of_the_engine_is_500_over_http_and_nothing_stays_in_use() -> None:
    with running_app(engine=FaultyEngine()) as app, RolloutClient(app.url) as client:
        seat = client.upload_guest(1, adapter_bytes(0.5), PEFT_CONFIG)
        for max_tokens, message in (
            (3, "the server failed: RuntimeError; see its log in the other terminal."),
            (4, "logprob 0 is"),
        ):
            answer = ask(app, with_fields(seat=seat, max_tokens=max_tokens))
            assert answer.status_code == 500, answer.text
            assert message in answer.json()["detail"]
        assert [guest.users for guest in app.store.frozen._held.values()] == [0]


def test_a_reply_of_a_window_is_made_without_the_thoughts_of_the_turns_before_it() -> None:
    thought = TOKENIZER.encode("<think> life2", add_special_tokens=False)
    action = TOKENIZER.encode("</think> Play 0", add_special_tokens=False)
    turns = [{"prompt": "life1", "reply_ids": [*thought, *action, CHAT.eos_id]}] * 3

    def reply(*, fresh: bool, **limits: int) -> Reply:
        async def scenario() -> Reply:
            wanted = msgspec.convert({**ASKED, "turns": turns, "fresh": fresh}, ReplyRequest)
            return await make_scheduler(FakeEngine(), **limits).reply(wanted)

        return asyncio.run(scenario())

    window_ids = reply(fresh=True).prompt_ids
    assert TOKENIZER.decode(list(window_ids)).count("assistant Play 0 <|im_end|>") == 3
    assert thought[0] not in window_ids
    # Where a conversation grows, the reply's turn adds its own message alone.
    assert len(reply(fresh=False).prompt_ids) < len(window_ids)
    room = len(window_ids) + 4
    assert not reply(fresh=True, max_model_len=room).out_of_tokens
    assert reply(fresh=False, max_model_len=room).out_of_tokens


def test_a_reply_needs_no_thread_of_the_pool_in_which_uploads_are_checked() -> None:
    async def scenario() -> Reply:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        end = threading.Event()
        upload = loop.run_in_executor(None, end.wait)
        try:
            wanted = msgspec.convert(ASKED, ReplyRequest)
            return await asyncio.wait_for(make_scheduler(FakeEngine()).reply(wanted), 5)
        finally:
            end.set()
            await upload

    assert asyncio.run(scenario()).reply_ids


def test_a_model_whose_template_takes_no_system_message_says_so() -> None:
    tokenizer = build_tokenizer(compact_vocabulary(LAPTOP.spec()))
    refuses_system = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    )
    tokenizer.chat_template = refuses_system + str(tokenizer.chat_template)
    chat = ChatFormat.from_tokenizer(tokenizer)

    def reply(system: str) -> Reply:
        async def scenario() -> Reply:
            wanted = msgspec.convert({**ASKED, "system": system}, ReplyRequest)
            return await make_scheduler(FakeEngine(), chat=chat).reply(wanted)

        return asyncio.run(scenario())

    def score(system: str) -> ScoreAnswer:
        async def scenario() -> ScoreAnswer:
            prompt = ScoredPrompt(system=system, prompt="life1", replies=("Play 0",))
            wanted = ScoreRequest(seat="base", prompts=(prompt,))
            return await make_scheduler(ScoringEngine(-0.5), chat=chat).score(wanted)

        return asyncio.run(scenario())

    assert reply("").reply_ids
    # Two words and the end.
    assert score("").logprobs == ((-1.5,),)
    for asked, name in ((reply, "reply"), (score, "score")):
        with pytest.raises(
            SettingsError,
            match=rf"{name} request: the chat template .* rejects the conversation "
            r"\(no system\); send system=",
        ):
            asked("Be brief.")


class ScoringEngine(WordEngine):
    """Gives every token the same logprob."""

    def __init__(self, logprob: float) -> None:
        super().__init__()
        self.logprob = logprob

    async def score(
        self,
        prompt_ids: list[int],
        reply_ids: list[int],
        adapter: AdapterHandle | None,
        copy: int | None = None,
    ) -> tuple[float, ...]:
        return (self.logprob,) * len(reply_ids)


@pytest.mark.parametrize("logprob", [math.nan, -math.inf])
def test_a_score_that_is_no_number_is_an_error_and_not_null(logprob: float) -> None:
    prompts = [ScoredPrompt(system="", prompt="life1", replies=("Play 0",))]
    with (
        running_app(engine=ScoringEngine(logprob)) as app,
        RolloutClient(app.url) as client,
        pytest.raises(
            ServerError,
            match=rf"score of 'Play 0': logprob 0 is {logprob}; a logprob must be finite",
        ),
    ):
        client.score("base", prompts)


def test_any_number_of_replies_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    many = tuple(f"Play {number}" for number in range(150))
    prompts = [
        ScoredPrompt(system="", prompt="life1", replies=many),
        ScoredPrompt(system="", prompt="life2", replies=("Play 0",)),
    ]
    monkeypatch.setattr(rollout_client, "MAX_SCORED", 2)
    with running_app(engine=ScoringEngine(-0.5)) as app, RolloutClient(app.url) as client:
        scores = client.score("base", prompts)
        assert [len(values) for values in scores] == [150, 1]
        single = ScoredPrompt(system="", prompt="life1", replies=many[149:])
        [[last]] = client.score("base", [single])
        assert scores[0][149] == pytest.approx(last)
        assert client.score("base", []) == ()


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
    app: RunningApp,
) -> None:
    turns = [
        {
            "prompt": "life1",
            "reply_ids": TOKENIZER.encode("Play 0", add_special_tokens=False),
        }
    ]
    with (
        RolloutClient(app.url) as client,
        httpx.Client(base_url=f"{app.url}/v1", trust_env=False) as http,
    ):
        push_to(client, app, version=9)
        guest = client.upload_guest(50, adapter_bytes(3.0), PEFT_CONFIG)
        models = [row["id"] for row in http.get("/models").json()["data"]]
        assert models[:4] == ["test-model", "base", "player_0@9", "player_1@9"]
        assert guest in models
        for model in (*models[:4], guest):
            completion = http.post("/chat/completions", json={**CHAT_ASKED, "model": model}).json()
            seat = "base" if model == "test-model" else model
            request = with_fields(seat=seat, system="life2", turns=turns, fresh=True)
            reply = json.loads(ask(app, request).text)
            check_completion(completion, reply, model)


def check_completion(completion: dict[str, Any], reply: dict[str, Any], model: str) -> None:
    """A chat completion says what `/reply/` says of the same conversation."""
    [choice] = completion["choices"]
    tokens = choice["logprobs"]["content"]
    assert completion["model"] == model
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {"role": "assistant", "content": reply["text"]}
    assert choice["token_ids"] == reply["reply_ids"]
    assert reply["logprobs"]
    assert [token["logprob"] for token in tokens] == reply["logprobs"]
    texts = [token["token"] for token in tokens]
    assert TOKENIZER.convert_tokens_to_ids(texts) == reply["reply_ids"]
    assert completion["prompt_token_ids"] == reply["prompt_ids"]
    num_tokens = len(reply["prompt_ids"]) + len(reply["reply_ids"])
    assert completion["usage"]["total_tokens"] == num_tokens


def test_a_streamed_completion_is_the_whole_one_in_two_events(app: RunningApp) -> None:
    with httpx.Client(base_url=f"{app.url}/v1", trust_env=False) as http:
        completion = http.post("/chat/completions", json=CHAT_ASKED).json()
        streamed = http.post("/chat/completions", json={**CHAT_ASKED, "stream": True}).text
    events = [event.removeprefix("data: ") for event in streamed.strip().split("\n\n")]
    first, last, end = events
    [choice] = completion["choices"]
    [piece] = json.loads(first)["choices"]
    assert piece.pop("delta") == choice.pop("message")
    assert piece == choice
    assert json.loads(last)["usage"] == completion["usage"]
    assert end == "[DONE]"


def test_the_chat_request_of_the_page_is_answered(
    app: RunningApp, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "interop.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    exec(code.replace("http://127.0.0.1:8000", app.url), {})
    assert capsys.readouterr().out.startswith("Discard 1 [45, 48, 2] [-0.5")


def test_a_chat_reply_without_a_token_is_one_that_said_nothing(app: RunningApp) -> None:
    system, user, reply, last = CHAT_ASKED["messages"]
    # The words of this tokenizer have no space.
    messages = [system, user, {**reply, "content": " "}, last]
    assert TOKENIZER.encode(" ", add_special_tokens=False) == []
    answer = httpx.post(
        f"{app.url}/v1/chat/completions",
        json={**CHAT_ASKED, "messages": messages},
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    told = TOKENIZER.decode(answer.json()["prompt_token_ids"])
    assert told.count("assistant") == 2


def test_a_chat_request_that_cannot_be_answered_says_why(app: RunningApp) -> None:
    before = app.engine.num_samples
    system, user, reply, _ = CHAT_ASKED["messages"]
    long_reply = {**reply, "content": "life1 " * 9000}
    for status, other, reason in (
        (
            422,
            {"model": "gpt-4o"},
            "model='gpt-4o': allowed are adapter@version (player_0@7), base, test-model",
        ),
        (422, {"max_tokens": None}, "max_tokens has 0 values"),
        (422, {"max_completion_tokens": 5}, "max_tokens has 2 values"),
        (422, {"top_p": 0.9}, "top_p=0.9"),
        (422, {"top_k": 1}, "top_k=1: no such field"),
        (422, {"seed": -1}, "seed=-1: Expected `int` >= 0"),
        (422, {"messages": []}, "messages=[]"),
        (
            422,
            {"messages": [user, reply]},
            "messages with roles ['user', 'assistant']; allowed are",
        ),
        (422, {"messages": [user, system]}, "messages with roles ['user', 'system']; allowed are"),
        (
            422,
            {"messages": [user, long_reply, user, long_reply, user, long_reply, user]},
            "HANABI_MAX_MODEL_LEN=20000",
        ),
        (
            422,
            {"messages": [user, long_reply, user, long_reply, user], "max_tokens": 9000},
            "Shorten the messages",
        ),
        (409, {"model": "player_4@7"}, "player_4@7 is required"),
    ):
        answer = httpx.post(
            f"{app.url}/v1/chat/completions", json={**CHAT_ASKED, **other}, trust_env=False
        )
        assert answer.status_code == status, answer.text
        assert reason in answer.json()["detail"]
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
        ({"logprobs": [float("nan")] * 2}, "unexpected response"),
        ({"logprobs": [-0.5]}, "1 logprobs for 2 reply ids; allowed: one each"),
        ({"out_of_tokens": True}, "out_of_tokens=True, but 2 reply ids"),
    ):
        with pytest.raises(ServerError, match=message):
            client_of({**right, **other}).reply(asked)
