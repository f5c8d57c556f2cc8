"""Partners behind OpenAI-compatible URLs: what they are asked, and what their faults lead to."""

import asyncio
import json
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bad_server import Behaviour, bad_server, drips, http, resets, silent
from doctor_machines import find
from fake_engine import CHAT, task, task_row
from hanabi_grpo.agents import url_calls, url_transcript
from hanabi_grpo.agents.url_model import UrlPartners
from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.lineups import SeatResolver, parse_lineup
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.commands.doctor.server import partner_url_checks
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import PartnerDownError, PartnerError, ServerError, SettingsError
from hanabi_grpo.evaluation.evaluate import evaluate_lineup, lineup_key
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.rollout.chat import Exchange
from hanabi_grpo.rollout.messages import ReplyRequest
from hanabi_grpo.settings import Settings, load_settings
from hanabi_grpo.settings.refs import UrlRef
from hanabi_grpo.training.batching import usable_groups
from hanabi_grpo.training.partner_seats import PartnerSeats
from hanabi_grpo.training.tasks import check_stamps
from hanabi_grpo.types import Turn
from local_service import served
from ports import closed_port
from server_app import RunningApp, lora_of, open_session, push_to, running_app, word_reply
from url_service import Answer, Partner, Response, completion

KEY = "sk-0123456789abcdef"
BIG = UrlRef(name="big")
FULL = Setup(HANABI, EnvConfig(preset="marshal-mini", observation="full", bomb_rule="keep"))
TOKENS_PER_CALL = 10
Message = dict[str, str]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_calls, "PAUSES", (0.01, 0.01))


def partners_of(folder: Path, *urls: str, **settings: Any) -> UrlPartners:
    given = {"partner_urls": urls, "partner_key": KEY, "partner_timeout": 60.0, **settings}
    return UrlPartners(Settings.model_validate(given), folder / "calls.jsonl")


def read_calls(folder: Path) -> list[dict[str, Any]]:
    """The lines of the transcript."""
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


@contextmanager
def table(
    folder: Path, answer: Answer, **settings: Any
) -> Iterator[tuple[Partner, RunningApp, RolloutClient]]:
    """A partner, and a rollout server that knows it as url:big."""
    with ExitStack() as stack:
        partner = stack.enter_context(served(Partner(answer)))
        partners = partners_of(folder, partner.entry(), **settings)
        app = stack.enter_context(running_app(partners=partners, max_model_len=20000))
        yield partner, app, stack.enter_context(RolloutClient(app.url))


def play(
    client: RolloutClient, *seats: str, num_games: int = 2, setup: Setup[Any] | None = None
) -> RolloutResult:
    game = setup.row() if setup else task(3)
    row = {**game, "suite": "train", "seed": 3, "seats": list(seats)}
    return client.play([row], num_games=num_games, max_tokens=4, temperature=0.5)


def ask(partners: UrlPartners, times: int = 1) -> str:
    """The reply to the last of some calls of one request; those before it fail."""
    messages = [{"role": "user", "content": "?"}]
    where = {"seat": "player_1"}

    async def ask_in_loop() -> str:
        player = partners.player(BIG, max_tokens=4, temperature=0.5)
        for _ in range(times - 1):
            with pytest.raises(PartnerError):
                await partners.ask(player, messages, where)
        return await partners.ask(player, messages, where)

    return asyncio.run(ask_in_loop())


class OpenCalls:
    """Answers every call after a while, and counts how many were in progress at once."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._num = 0
        self.most = 0

    def __call__(self, body: dict[str, Any]) -> Response:
        with self._lock:
            self._num += 1
            self.most = max(self.most, self._num)
        time.sleep(self._seconds)
        with self._lock:
            self._num -= 1
        return completion()


def expected_messages(system: str, turns: list[Turn], number: int, kept: int) -> list[Message]:
    """What a partner is asked at its turn of this number, with `kept` turns before it."""
    messages = [{"role": "system", "content": system}]
    for turn in turns[max(0, number - kept) : number]:
        messages.append({"role": "user", "content": turn.prompt})
        messages.append({"role": "assistant", "content": "Discard 0"})
    messages.append({"role": "user", "content": turns[number].prompt})
    return messages


@pytest.mark.parametrize(("memory", "kept"), [("game", 99), ("turn", 0), (2, 1)])
def test_a_partner_is_shown_the_conversation_of_its_seat_as_chat_messages(
    tmp_path: Path, memory: Any, kept: int
) -> None:
    setup = Setup(HANABI, FULL.config.model_copy(update={"memory": memory}))
    reply = "<think>well</think>Discard 0"
    with table(tmp_path, lambda body: completion(reply)) as (partner, app, client):
        [[game]] = play(client, "base", "url:big", num_games=1, setup=setup).groups
    turns = list(game.trajectory(1))
    assert game.seats == ("base", "url:big")
    assert len(turns) > 2
    assert app.engine.num_samples == len(game.trajectory(0))
    check_stamps([game], ("base", "url:big"), app.identity.instance_id)
    for turn in turns:
        assert (turn.reply, turn.prompt_ids, turn.reply_ids, turn.version) == (reply, (), (), None)
    system = HANABI.system(setup.config, 1)
    for number, body in enumerate(partner.bodies):
        assert body == {
            "model": "org/model:1",
            "messages": expected_messages(system, turns, number, kept),
            "max_tokens": 4,
            "temperature": 0.5,
        }
    rows = read_calls(tmp_path)
    spent = [TOKENS_PER_CALL * number for number in range(1, len(turns) + 1)]
    assert [row["spent"] for row in rows] == spent
    assert [row["prompt"] for row in rows] == [turn.prompt for turn in turns]
    last = rows[-1]
    assert (last["partner"], last["seat"]) == ("big", "player_1")
    assert (last["task"], last["game"]) == ("hanabi train/3", 0)
    assert (last["tries"], last["error"]) == (1, "")
    restarted = UrlPartners(Settings(), tmp_path / "calls.jsonl")
    assert restarted.spent == last["spent"], "a restart counts on"


def test_only_the_key_of_the_partner_is_sent_and_nothing_of_this_machine_or_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another-key")
    monkeypatch.setenv("OPENAI_ORG_ID", "another-organization")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/another-url")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-another: header")
    with served(Partner(lambda body: completion())) as partner:
        ask(partners_of(tmp_path, partner.entry()))
        ask(partners_of(tmp_path, partner.entry(), partner_key=None))
    with_key, without_key = partner.headers
    assert with_key["authorization"] == f"Bearer {KEY}"
    assert "authorization" not in without_key
    for headers in partner.headers:
        assert "another" not in str(headers)
        assert "x-stainless-os" not in headers


NO_CHOICE = {"choices": []}
CONTENT_IS_A_NUMBER = {"choices": [{"message": {"content": 7}}]}


@pytest.mark.parametrize(
    "first",
    [
        (500, "oops"),
        (408, ""),
        (429, {}, {"Retry-After": "0"}),
        (200, b"<html>"),
        (200, NO_CHOICE),
        (200, CONTENT_IS_A_NUMBER),
        (200, [1]),
        completion(" "),
        completion(None),
        completion("x", prompt_tokens=-1),
        (200, b"", {"Content-Encoding": "gzip"}),
    ],
)
def test_what_may_pass_is_asked_again_and_the_record_says_how_often(
    tmp_path: Path, first: Response
) -> None:
    answers = iter([first, completion("Hint R")])
    with served(Partner(lambda body: next(answers))) as partner:
        assert ask(partners_of(tmp_path, partner.entry())) == "Hint R"
    [call] = read_calls(tmp_path)
    assert call["tries"] == 2


def test_an_answer_without_end_is_cut_off(tmp_path: Path) -> None:
    endless = drips(http(b"", length=10**9), b" " * (1 << 20))
    with bad_server(endless) as server, pytest.raises(PartnerError, match="more than 16777216"):
        ask(partners_of(tmp_path, f"big={server.url}/v1#m"))


def says(status: str, *headers: str, body: bytes = b"") -> Behaviour:
    return lambda connection, head: connection.sendall(http(body, status, *headers))


@pytest.mark.parametrize(
    ("behave", "message", "tries", "seconds"),
    [
        (silent, r"no answer in 0.3 s \(HANABI_PARTNER_TIMEOUT\)", 3, 0.3),
        (drips(http(b"", length=10**6), b" "), "no answer in 0.3 s", 3, 0.3),
        (resets(), r"not reached \((ReadError|RemoteProtocolError)", 3, 60.0),
        (resets(http(b"{", length=50)), "not reached", 3, 60.0),
        (says("401 No", body=KEY.encode()), r"401: .*\*\*.* Set HANABI_PARTNER_KEY", 1, 60.0),
        (says("404 No"), "that it serves this model", 1, 60.0),
        (says("302 No", "location: /"), "it answered 302", 1, 60.0),
        (says("503 No", "retry-after: 99999"), "it answered 503", 3, 2.0),
    ],
)
def test_what_stays_broken_is_given_up_with_a_sentence_and_never_hangs(
    tmp_path: Path, behave: Behaviour, message: str, tries: int, seconds: float
) -> None:
    with bad_server(behave) as server:
        partners = partners_of(tmp_path, f"big={server.url}/v1#m", partner_timeout=seconds)
        with pytest.raises(PartnerError, match=f"^url:big .*{message}") as caught:
            ask(partners)
    [call] = read_calls(tmp_path)
    assert call["tries"] == tries
    assert call["error"] and call["reply"] == ""
    assert KEY not in str(caught.value)
    assert KEY not in (tmp_path / "calls.jsonl").read_text()


def test_a_url_that_fails_three_calls_in_a_row_ends_the_request(tmp_path: Path) -> None:
    message = r"not reached .*3 calls in a row .*calls.jsonl.*RESUME=latest"
    with closed_port() as port:
        partners = partners_of(tmp_path, f"big=http://127.0.0.1:{port}/v1#m")
        with pytest.raises(PartnerDownError, match=message):
            ask(partners, times=3)
    assert all(call["error"] and call["reply"] == "" for call in read_calls(tmp_path))


def test_a_game_that_loses_its_partner_is_dropped_and_counted(tmp_path: Path) -> None:
    calls: list[None] = []

    def fail_the_second_game(body: dict[str, Any]) -> Response:
        calls.append(None)
        # Its first call, and the two tries after it.
        return (500, "ill") if len(calls) in (2, 3, 4) else completion()

    with table(tmp_path, fail_the_second_game, partner_requests=1) as (_, app, client):
        played = play(client, "url:big", "base", num_games=3)
        [game] = played.dropped
        assert "PartnerError: url:big (http://" in game.reason
        assert len(played.groups[0]) == 2
        assert (app.scheduler.games_retried, app.scheduler.games_failed) == (0, 1)
        # What is learned from is the smaller group, and the run's incidents say so.
        [group], [sentence] = usable_groups(played.groups, played.dropped)
        assert len(group) == 2
        assert sentence.startswith("task train 3: 1 of 3 games dropped (game ")


@pytest.mark.parametrize(
    ("answer", "games", "message"),
    [
        (
            (400, "no such role"),
            2,
            "2 of 2 games with it were dropped, more than half.*no such role.*doctor",
        ),
        ((500, "ill"), 8, "3 calls in a row failed like this"),
    ],
)
def test_a_partner_that_most_games_lose_ends_the_request(
    tmp_path: Path, answer: Response, games: int, message: str
) -> None:
    with table(tmp_path, lambda body: answer) as (partner, _, client):
        with pytest.raises(ServerError, match=f"the server answered 500: url:big.*{message}"):
            play(client, "url:big", "base", num_games=games)
        assert len(partner.bodies) <= 3 * 8


def test_a_used_up_budget_ends_the_request(tmp_path: Path) -> None:
    limits = {"partner_tokens": 25, "partner_requests": 1}
    with table(tmp_path, lambda body: completion(), **limits) as (partner, app, client):
        open_session(client, app)
        message = r"HANABI_PARTNER_TOKENS=25: .* used 30 tokens.*Restart the server"
        with pytest.raises(ServerError, match=message):
            play(client, "url:big", "url:big")
        assert len(partner.bodies) == 3


def test_guests_spend_a_budget_of_their_own_and_never_the_trainers(tmp_path: Path) -> None:
    limits = {"partner_tokens": 1000, "partner_guest_tokens": 25, "partner_requests": 1}
    with table(tmp_path, lambda body: completion(), **limits) as (_, app, trainer):
        open_session(trainer, app)
        with RolloutClient(app.url) as guest:
            message = r"HANABI_PARTNER_GUEST_TOKENS=25: .* used 30 tokens.*in HANABI_PARTNER_G"
            with pytest.raises(ServerError, match=message):
                play(guest, "url:big", "url:big")
            [[game]] = play(trainer, "base", "url:big", num_games=1).groups
            num_calls = len(game.trajectory(1))
            with pytest.raises(ServerError, match="HANABI_PARTNER_GUEST_TOKENS=25"):
                play(guest, "url:big", "base")
    last = read_calls(tmp_path)[-1]
    assert (last["spent"], last["guests_spent"]) == (30 + TOKENS_PER_CALL * num_calls, 30)
    restarted = partners_of(tmp_path, "big=http://127.0.0.1:1/v1#m", **limits)
    player = restarted.player(BIG, max_tokens=4, temperature=0.5, own=False)
    with pytest.raises(PartnerDownError, match="used 30 tokens"):
        asyncio.run(restarted.ask(player, [{"role": "user", "content": "?"}], {}))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, for a limited time."""
    async with asyncio.timeout(20.0):
        while not condition():
            await asyncio.sleep(0.01)


def start_call(partners: UrlPartners, *, own: bool = False) -> "asyncio.Task[str]":
    """A call of a request of its own, in progress."""
    player = partners.player(BIG, max_tokens=4, temperature=0.5, own=own)
    return asyncio.create_task(partners.ask(player, [{"role": "user", "content": "?"}], {}))


async def hang_up(call: "asyncio.Task[str]") -> None:
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()


CANCELLED = "cancelled: nobody waits for the reply any more."


def test_a_guest_that_hangs_up_pays_for_its_call(tmp_path: Path) -> None:
    def slow(body: dict[str, Any]) -> Response:
        time.sleep(0.1)
        return completion()

    async def hang_up_again_and_again(partners: UrlPartners, service: Partner) -> None:
        for number in range(1, 4):
            call = start_call(partners)
            await until(lambda: len(service.bodies) == number)  # noqa: B023
            await hang_up(call)
            await until(lambda: partners.spent == TOKENS_PER_CALL * number)  # noqa: B023
        message = "HANABI_PARTNER_GUEST_TOKENS=25: .* used 30 tokens"
        with pytest.raises(PartnerDownError, match=message):
            await start_call(partners)
        assert len(service.bodies) == 3

    with served(Partner(slow)) as service:
        partners = partners_of(tmp_path, service.entry(), partner_guest_tokens=25)
        asyncio.run(hang_up_again_and_again(partners, service))
    rows = read_calls(tmp_path)
    assert [row["guests_spent"] for row in rows] == [10, 20, 30]
    for row in rows:
        assert (row["error"], row["reply"], row["tries"]) == (CANCELLED, "Play 0", 1)
        assert (row["prompt_tokens"], row["reply_tokens"]) == (7, 3)


@pytest.mark.parametrize("own", [False, True])
def test_calls_at_the_same_time_exceed_a_budget_by_no_more_than_one_of_them(
    tmp_path: Path, own: bool
) -> None:
    open_calls = OpenCalls(seconds=0.05)

    async def call_at_once(partners: UrlPartners) -> list[str | BaseException]:
        calls = [start_call(partners, own=own) for _ in range(16)]
        return await asyncio.gather(*calls, return_exceptions=True)

    with served(Partner(open_calls)) as service:
        limits = {"partner_tokens": 105, "partner_guest_tokens": 105, "partner_requests": 32}
        partners = partners_of(tmp_path, service.entry(), **limits)
        outcomes = asyncio.run(call_at_once(partners))
    # A call may cost 4 tokens for the reply, 1 for the question and 16 around it, which is a fifth
    # of the budget; each costs 10.
    assert open_calls.most == 5
    assert partners.spent == 110
    assert outcomes.count("Play 0") == len(service.bodies) == 11
    refusals = [outcome for outcome in outcomes if outcome != "Play 0"]
    assert all(isinstance(refusal, PartnerDownError) for refusal in refusals)
    assert "used 110 tokens" in str(refusals[0])


def test_a_call_that_is_cancelled_while_it_waits_for_the_budget_sends_nothing(
    tmp_path: Path,
) -> None:
    released = threading.Event()

    def held(body: dict[str, Any]) -> Response:
        released.wait(20.0)
        return completion()

    async def hang_up_in_the_queue(partners: UrlPartners, service: Partner) -> None:
        first = start_call(partners)
        await until(lambda: len(service.bodies) == 1)
        waiting = start_call(partners)
        later = start_call(partners)
        await asyncio.sleep(0.1)
        await hang_up(waiting)
        released.set()
        assert await first == await later == "Play 0"

    with served(Partner(held)) as service:
        limits = {"partner_guest_tokens": 40, "partner_requests": 32}
        partners = partners_of(tmp_path, service.entry(), **limits)
        asyncio.run(hang_up_in_the_queue(partners, service))
    assert [row["error"] for row in read_calls(tmp_path)] == ["", ""]


def test_the_call_of_a_guest_that_hung_up_keeps_its_place_until_it_ends(tmp_path: Path) -> None:
    released = threading.Event()

    def held(body: dict[str, Any]) -> Response:
        released.wait(20.0)
        return completion()

    async def hang_up_and_call_again(partners: UrlPartners, service: Partner) -> None:
        call = start_call(partners)
        await until(lambda: len(service.bodies) == 1)
        waiting = start_call(partners)
        await asyncio.sleep(0)
        for gone in (waiting, call):
            await hang_up(gone)
        call = start_call(partners)
        await asyncio.sleep(0.2)
        assert len(service.bodies) == 1
        released.set()
        assert await call == "Play 0"
        assert len(service.bodies) == 2

    with served(Partner(held)) as service:
        partners = partners_of(tmp_path, service.entry(), partner_requests=2)
        asyncio.run(hang_up_and_call_again(partners, service))
    # The call that was cancelled before it was its turn sent nothing.
    assert [row["error"] for row in read_calls(tmp_path)] == [CANCELLED, ""]


def test_every_cancelled_call_is_recorded_and_not_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def held(body: dict[str, Any]) -> Response:
        released.wait(20.0)
        return completion()

    async def cancel(partners: UrlPartners, service: Partner, *, own: bool) -> None:
        num_before = len(service.bodies)
        call = start_call(partners, own=own)
        await until(lambda: len(service.bodies) > num_before)
        await hang_up(call)

    with served(Partner(held)) as service:
        partners = partners_of(tmp_path, service.entry())
        asyncio.run(cancel(partners, service, own=True))
        # The server shuts down before a guest's call has ended.
        asyncio.run(cancel(partners, service, own=False))
        released.set()
    assert partners.spent == 0
    rows = read_calls(tmp_path)
    assert [(row["error"], row["tries"]) for row in rows] == [(CANCELLED, 1), (CANCELLED, 1)]

    monkeypatch.setattr(url_calls, "PAUSES", (60.0,))

    async def cancel_in_a_pause(partners: UrlPartners, service: Partner) -> None:
        call = start_call(partners)
        await until(lambda: len(service.bodies) == 1)
        await asyncio.sleep(0.2)
        await hang_up(call)

    with served(Partner(lambda body: (500, "ill"))) as service:
        partners = partners_of(tmp_path, service.entry())
        asyncio.run(cancel_in_a_pause(partners, service))
        assert len(service.bodies) == 1
    last = read_calls(tmp_path)[-1]
    assert last["error"].startswith(f"{CANCELLED} it answered 500")
    assert last["tries"] == 1


def test_guests_may_be_kept_off_urls_and_ask_a_paid_one_for_no_more_than_the_server_says(
    tmp_path: Path,
) -> None:
    for limits, message in (
        ({"partner_guest_tokens": 0}, "url:big: HANABI_PARTNER_GUEST_TOKENS=0, so only the trai"),
        (
            {"max_completion_length": 3},
            "url:big: MAX_COMPLETION_LENGTH=4, but on this server only the",
        ),
    ):
        with table(tmp_path, lambda body: completion(), **limits) as (partner, app, trainer):
            with RolloutClient(app.url) as guest:
                with pytest.raises(ServerError, match=f"answered 422: {message}"):
                    play(guest, "base", "url:big")
                assert not partner.bodies
                assert play(guest, "base", "base").groups
            open_session(trainer, app)
            assert play(trainer, "base", "url:big").groups
            assert partner.bodies


def test_guests_take_at_most_half_of_the_calls_at_the_same_time(tmp_path: Path) -> None:
    open_calls = OpenCalls(seconds=0.02)

    with table(tmp_path, open_calls, partner_requests=4) as (_, app, client):
        play(client, "url:big", "base", num_games=12)
        assert open_calls.most == 2
        open_session(client, app)
        play(client, "url:big", "base", num_games=12)
        assert open_calls.most == 4


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({}, None),
        ({"HANABI_PARTNER_KEY": KEY}, 1_000_000),
        ({"HANABI_PARTNER_KEY": KEY, "HANABI_PARTNER_TOKENS": "5000"}, 5000),
        ({"HANABI_PARTNER_TOKENS": "5000", "HANABI_PARTNER_GUEST_TOKENS": "0"}, 0),
    ],
)
def test_guests_have_as_many_tokens_as_the_trainer_and_some_where_a_key_says_that_they_cost(
    given: dict[str, str], tokens: int | None
) -> None:
    assert load_settings(given, Path("no")).settings.partner_guest_tokens == tokens


def test_answers_that_cannot_be_counted_end_the_request_of_a_budget(tmp_path: Path) -> None:
    uncounted = {**completion()[1], "usage": None}
    with table(tmp_path, lambda body: (200, uncounted), partner_tokens=25) as (_, app, client):
        open_session(client, app)
        message = "do not report token usage, so HANABI_PARTNER_TOKENS cannot be enforced"
        with pytest.raises(ServerError, match=message):
            play(client, "url:big", "base")


def test_no_more_calls_than_allowed_are_made_at_once_and_a_long_transcript_is_moved_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_calls = OpenCalls(seconds=0.02)

    monkeypatch.setattr(url_transcript, "MAX_TRANSCRIPT", 2000)
    with table(tmp_path, open_calls, partner_requests=1) as (partner, _, client):
        play(client, "url:big", "base", num_games=6)
    assert open_calls.most == 1
    assert len(partner.bodies) > 9
    assert (tmp_path / "calls.jsonl").stat().st_size < 3000
    assert (tmp_path / "calls.old.jsonl").stat().st_size > 2000
    assert read_calls(tmp_path)[-1]["spent"] == TOKENS_PER_CALL * len(partner.bodies)


@pytest.fixture
def other_server() -> Iterator[RunningApp]:
    """A rollout server that may be a partner of another one."""
    with running_app(max_model_len=20000, api_key=KEY) as app:
        yield app


def test_another_rollout_server_is_such_a_url(tmp_path: Path, other_server: RunningApp) -> None:
    with RolloutClient(other_server.url, api_key=KEY) as client:
        lora = lora_of(push_to(client, other_server)["player_1"])
        for model, expected in (("base", None), ("player_1@1", lora), ("player_1", lora)):
            partners = partners_of(tmp_path, f"big={other_server.url}/v1#{model}")
            with (
                running_app(partners=partners, max_model_len=20000) as app,
                RolloutClient(app.url) as player,
            ):
                [[game]] = play(player, "iggi", "url:big", num_games=1, setup=FULL).groups
            earlier: list[Exchange] = []
            for turn in game.trajectory(1):
                ids = CHAT.open(HANABI.system(FULL.config, 1), turn.prompt, earlier)
                assert turn.reply == CHAT.decode(list(word_reply(expected, ids).ids))
                earlier.append(Exchange(turn.prompt, turn.reply))
            assert read_calls(tmp_path)[-1]["prompt_tokens"] == len(ids)


USER = {"role": "user", "content": "?"}


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "iggi"}, 422, "allowed are adapter@version"),
        ({"model": "player_9"}, 422, "allowed are adapter@version"),
        ({"model": "player_1@9"}, 409, "player_1@9 is required"),
        ({"messages": [USER, USER]}, 422, "user and assistant in turn"),
        ({"messages": [{"role": "tool", "content": ""}]}, 422, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": "? " * 20000}]},
            422,
            "exceed this server's conversation length",
        ),
    ],
)
def test_a_rollout_server_refuses_chat_requests_that_it_cannot_answer(
    other_server: RunningApp, change: dict[str, Any], status: int, message: str
) -> None:
    answer = httpx.post(
        f"{other_server.url}/v1/chat/completions",
        json={"model": "base", "messages": [USER], "max_tokens": 4, **change},
        headers={"authorization": f"Bearer {KEY}"},
        trust_env=False,
    )
    assert answer.status_code == status
    assert message in answer.json()["detail"]


def test_names_that_the_server_does_not_know_are_refused_wherever_they_are_given(
    tmp_path: Path,
) -> None:
    with table(tmp_path, lambda body: completion()) as (_, app, client):
        message = "url:small: the rollout server knows url:big; start it with HANABI"
        for seats in (("url:small", "base"), ("base", "url:small")):
            with pytest.raises(ServerError, match=message):
                play(client, *seats)
        request = ReplyRequest(
            seat="url:big", system="", turns=(), prompt="?", max_tokens=4, temperature=1.0
        )
        with pytest.raises(ServerError, match="can only play in games"):
            client.reply(request)
        resolver = SeatResolver(client, Settings())
        assert resolver.seats(parse_lineup("url:big,iggi", 2).refs) == ("url:big", "iggi")
        with pytest.raises(SettingsError, match="url:small: the rollout server knows url:big"):
            resolver.seats(parse_lineup("url:small,iggi", 2).refs)
        settings = Settings(partners=("player_1=url:big",), partner_share=1.0)
        pool = PartnerSeats(settings, tmp_path, client.upload_guest)
        pool.load({}, "", app.identity.partners)
        [seated] = pool.seat([task_row(3)], ("player_0@1", "player_1@1"), 1, "")
        assert seated["seats"] == ["player_0@1", "url:big"]
        assert pool.names == {"url:big": "big"}
        message = "HANABI_PARTNERS=url:big: the rollout server knows no URL"
        with pytest.raises(SettingsError, match=message):
            pool.load({}, "")
    with pytest.raises(SettingsError, match="only in games that the rollout server plays"):
        parse_lineup("human,url:big", 2, human=True)


def test_an_evaluation_plays_a_url_in_every_seat_and_says_which_model_it_was(
    tmp_path: Path,
) -> None:
    with table(tmp_path, lambda body: completion()) as (partner, _, client):
        resolver = SeatResolver(client, Settings())
        games = Served(client=client, resolver=resolver, max_tokens=4, temperature=0.5)
        lineup = parse_lineup("url:big,iggi", 2)
        key = lineup_key(lineup, FULL, served=games)
        assert key["policies"]["url:big"] == partner.entry().removeprefix("big=")
        result = evaluate_lineup(lineup, FULL, 2, served=games)
        assert result.seats == (("url:big", "iggi"), ("iggi", "url:big"))


GOOD_URL = "big=http://localhost:8001/v1#Qwen/Qwen3-8B"


def test_urls_are_read_and_the_key_is_masked() -> None:
    variables = {
        "HANABI_PARTNER_URLS": f"{GOOD_URL}, b2=https://[::1]/v1/#m:free",
        "HANABI_PARTNER_KEY": KEY,
    }
    loaded = load_settings(variables, Path("no"))
    assert len(loaded.settings.partner_urls) == 2
    assert KEY not in repr(loaded)


@pytest.mark.parametrize(
    "text",
    [
        "big",
        "big=http://host/v1",
        "http://host/v1#m",
        "Big=http://host/v1#m",
        "big=ftp://host/v1#m",
        "big=http:///v1#m",
        "big=http://user:pass@host/v1#m",
        "big=http://host/v1?key=1#m",
        "big=http://host:99999/v1#m",
        f"{GOOD_URL},{GOOD_URL}",
    ],
)
def test_a_bad_url_is_refused(text: str) -> None:
    message = r"HANABI_PARTNER_URLS=.*a comma-separated list of NAME=URL#MODEL, e\.g\."
    with pytest.raises(SettingsError, match=message):
        load_settings({"HANABI_PARTNER_URLS": text}, Path("no"))


def test_the_doctor_asks_each_url_for_its_models() -> None:
    with served(Partner(lambda body: completion())) as partner, closed_port() as closed:
        urls = [
            partner.entry(),
            partner.entry("other") + "x",
            f"gone=http://127.0.0.1:{closed}/v1#m",
            partner.entry("lost").replace("/v1", ""),
        ]
        checks = find(partner_url_checks, HANABI_PARTNER_URLS=",".join(urls))
    assert [check.status for check in checks] == ["ok", "warn", "fail", "fail"]
    assert "lists org/model:1, but not org/model:1x" in checks[1].finding
    assert "not reached (ConnectError" in checks[2].finding
    assert "data" in checks[3].finding
    # What is to be typed keeps the other URLs, and a shell reads it as one word.
    _, typed = shlex.split(checks[1].remedy)
    entries = typed.removeprefix("HANABI_PARTNER_URLS=").split(",")
    corrected = f"other={partner.entry('other').partition('=')[2].partition('#')[0]}#MODEL"
    assert entries == [urls[0], corrected, urls[2], urls[3]]
