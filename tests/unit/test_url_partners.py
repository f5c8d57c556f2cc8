"""Partners behind OpenAI-compatible URLs: what they are asked, what their faults lead to, and who
may name them.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bad_server import Behaviour, bad_server, drips, http, resets, silent
from doctor_machines import find, free_port
from fake_engine import CHAT, task, task_row
from hanabi_grpo.client import url_partners
from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.lineups import SeatResolver, parse_lineup
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.client.url_partners import UrlPartners
from hanabi_grpo.commands.doctor.server import partner_url_checks
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import PartnerDownError, PartnerError, ServerError, SettingsError
from hanabi_grpo.evaluation.evaluate import evaluate_lineup, lineup_key
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.rollout.messages import ReplyRequest
from hanabi_grpo.settings import Settings, load_settings
from hanabi_grpo.training.batching import usable_groups
from hanabi_grpo.training.partner_seats import PartnerSeats
from hanabi_grpo.training.tasks import check_stamps
from local_service import LocalService, QuietHandler, served
from server_app import RunningApp, lora_of, push_to, running_app, word_reply

KEY = "sk-0123456789abcdef"
FULL = Setup(HANABI, EnvConfig(preset="marshal-mini", observation="full", bomb_rule="keep"))
Answer = Callable[[dict[str, Any]], tuple[int, Any] | tuple[int, Any, dict[str, str]]]


def said(text: Any = "Play 0", **usage: int) -> tuple[int, Any]:
    counted = usage or {"prompt_tokens": 7, "completion_tokens": 3}
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}], "usage": counted}


class Partner(LocalService):
    """A model service that answers by a function of the request's body, and keeps what it was
    asked.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(Handler)
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()

    def url(self, name: str = "big") -> str:  # type: ignore[override]
        return f"{name}={super().url}/v1#org/model:1"


class Handler(QuietHandler):
    server: Partner

    def do_POST(self) -> None:
        self.server.keys.add(self.headers["authorization"])
        self.server.bodies.append(body := json.loads(self.body()))
        status, content, *headers = self.server.answer(body)
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.give(content, status if self.path == "/v1/chat/completions" else 404, *headers)

    def do_GET(self) -> None:
        self.give_json({"data": [{"id": "org/model:1"}]} if self.path == "/v1/models" else {})


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_partners, "PAUSES", (0.01, 0.01))


def partners_of(tmp_path: Path, *urls: str, **settings: Any) -> UrlPartners:
    given = {"partner_urls": urls, "partner_key": KEY, "partner_timeout": 60.0, **settings}
    return UrlPartners(Settings.model_validate(given), tmp_path / "calls.jsonl")


def calls(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]


@contextmanager
def table(
    tmp_path: Path, answer: Answer, **settings: Any
) -> Iterator[tuple[Partner, RunningApp, RolloutClient]]:
    """A partner, and a rollout server that knows it as url:big."""
    with ExitStack() as stack:
        partner = stack.enter_context(served(Partner(answer)))
        known = partners_of(tmp_path, partner.url(), **settings)
        app = stack.enter_context(running_app(partners=known, max_model_len=20000))
        yield partner, app, stack.enter_context(RolloutClient(app.url))


def play(
    client: RolloutClient, *seats: str, num_games: int = 2, setup: Setup[Any] | None = None
) -> RolloutResult:
    config = setup.row() if setup else task(3)
    row = {**config, "suite": "train", "seed": 3, "seats": list(seats)}
    return client.play([row], num_games=num_games, max_tokens=4, temperature=0.5)


def ask(partners: UrlPartners, times: int = 1) -> str:
    """The reply to the last of some calls of one request."""

    async def run() -> str:
        player = partners.player("url:big", max_tokens=4, temperature=0.5)
        for _ in range(times - 1):
            with pytest.raises(PartnerError):
                await partners.ask(player, [{"role": "user", "content": "?"}], {"seat": "player_1"})
        return await partners.ask(player, [{"role": "user", "content": "?"}], {"seat": "player_1"})

    return asyncio.run(run())


def test_a_partner_is_shown_the_conversation_of_its_seat_as_chat_messages(tmp_path: Path) -> None:
    for memory, kept in (("game", 99), ("turn", 0), (2, 1)):
        folder = tmp_path / str(memory)
        setup = Setup(HANABI, FULL.config.model_copy(update={"memory": memory}))
        with table(folder, lambda body: said("<think>well</think>Discard 0")) as (
            partner,
            app,
            client,
        ):
            (game,) = play(client, "base", "url:big", num_games=1, setup=setup).groups[0]
        turns = game.trajectory(1)
        assert game.seats == ("base", "url:big") and len(turns) > 2
        assert app.engine.num_samples == len(game.trajectory(0))
        check_stamps([game], ("base", "url:big"), app.identity.instance_id)
        assert {(turn.reply, turn.prompt_ids, turn.reply_ids, turn.version) for turn in turns} == {
            ("<think>well</think>Discard 0", (), (), None)
        }
        system = {"role": "system", "content": HANABI.system(setup.config, 1)}
        for number, body in enumerate(partner.bodies):
            before = [
                {"role": "user", "content": turn.prompt}
                for turn in turns[max(0, number - kept) : number]
            ]
            earlier = [
                one
                for asked in before
                for one in (asked, {"role": "assistant", "content": "Discard 0"})
            ]
            now = {"role": "user", "content": turns[number].prompt}
            assert body.pop("messages") == [system, *earlier, now]
            assert body == {"model": "org/model:1", "max_tokens": 4, "temperature": 0.5}
        assert partner.keys == {f"Bearer {KEY}"}
        rows = calls(folder)
        assert [row["spent"] for row in rows] == [
            10 * number for number in range(1, len(turns) + 1)
        ]
        assert [row["prompt"] for row in rows] == [turn.prompt for turn in turns]
        wanted = {
            "partner": "big",
            "seat": "player_1",
            "task": "hanabi train/3",
            "game": 0,
            "tries": 1,
            "error": "",
        }
        assert wanted.items() <= rows[-1].items()
        assert UrlPartners(Settings(), folder / "calls.jsonl").spent == rows[-1]["spent"], (
            "a restart counts on"
        )


def test_what_may_pass_is_asked_again_and_the_record_says_how_often(tmp_path: Path) -> None:
    no_text = [
        {"choices": []},
        {"choices": [{"message": {"content": 7}}]},
        [1],
        said(" ")[1],
        said(None)[1],
    ]
    bad = [
        (500, "oops"),
        (408, ""),
        (429, {}, {"Retry-After": "0"}),
        (200, b"<html>"),
        said("x", prompt_tokens=-1),
    ]
    bad += [(200, content) for content in no_text]
    for number, first in enumerate(bad):
        answers = iter([first, said("Hint R")])
        with served(Partner(lambda body, answers=answers: next(answers))) as partner:  # type: ignore[misc]
            assert ask(partners_of(tmp_path, partner.url())) == "Hint R"
        assert (calls(tmp_path)[number]["tries"], len(calls(tmp_path))) == (2, number + 1), first


def test_what_stays_broken_is_given_up_with_a_sentence_and_never_hangs(tmp_path: Path) -> None:
    def answers(status: str, *headers: str, body: bytes = b"") -> Behaviour:
        return lambda connection, head: connection.sendall(http(body, status, *headers))

    for behave, message, tries, limit in (
        (silent, r"no answer in 0.3 s \(HANABI_PARTNER_TIMEOUT\)", 3, 0.3),
        (drips(http(b"", length=10**6), b" "), "no answer in 0.3 s", 3, 0.3),
        (resets(), r"not reached \((ReadError|RemoteProtocolError)", 3, 60.0),
        (resets(http(b"{", length=50)), "not reached", 3, 60.0),
        (answers("401 No", body=KEY.encode()), r"401: .*\*\*.* Set HANABI_PARTNER_KEY", 1, 60.0),
        (answers("404 No"), "is the model named as there", 1, 60.0),
        (answers("302 No", "location: /"), "it answered 302", 1, 60.0),
        (answers("503 No", "retry-after: 99999"), "it answered 503", 3, 2.0),
    ):
        with bad_server(behave) as bad:
            with pytest.raises(PartnerError, match=f"^url:big .*{message}") as caught:
                ask(partners_of(tmp_path, f"big={bad.url}/v1#m", partner_timeout=limit))
            assert (calls(tmp_path)[-1]["tries"], KEY in str(caught.value)) == (tries, False), (
                message
            )
    with pytest.raises(
        PartnerDownError, match=r"not reached .*3 calls in a row .*calls.jsonl.*RESUME=latest"
    ):
        ask(partners_of(tmp_path, f"big=http://127.0.0.1:{free_port()}/v1#m"), times=3)
    assert all(row["error"] and row["reply"] == "" for row in calls(tmp_path))
    assert KEY not in (tmp_path / "calls.jsonl").read_text()


def test_a_game_that_loses_its_partner_is_dropped_and_counted_and_most_of_them_end_the_request(
    tmp_path: Path,
) -> None:
    seen: list[str] = []

    def some(body: dict[str, Any]) -> tuple[int, Any]:
        # The second game's calls fail, from the first to the last try.
        seen.append("")
        return (500, "ill") if 1 < len(seen) <= 4 else said()

    with table(tmp_path, some, partner_requests=1) as (_, app, client):
        played = play(client, "url:big", "base", num_games=3)
        (game,) = played.dropped
        assert "PartnerError: url:big (http://" in game.reason and len(played.groups[0]) == 2
        assert (app.scheduler.games_retried, app.scheduler.games_failed) == (0, 1)
        # What is learned from is the smaller group, and the run's incidents say so.
        [group], [sentence] = usable_groups(played.groups, played.dropped)
        assert len(group) == 2 and sentence.startswith("task train 3: 1 of 3 games dropped (game ")
    for answer, games, message in (
        (
            (400, "no such role"),
            2,
            "2 of 2 games with it were dropped, more than half.*no such role.*doctor",
        ),
        ((500, "ill"), 8, "3 calls in a row failed like this"),
    ):
        with table(tmp_path, lambda body, answer=answer: answer) as (partner, _, client):  # type: ignore[misc]
            with pytest.raises(ServerError, match=f"the server answered 500: url:big.*{message}"):
                play(client, "url:big", "base", num_games=games)
            assert len(partner.bodies) <= 3 * 8


def test_a_used_up_budget_and_answers_that_cannot_be_counted_end_the_request(
    tmp_path: Path,
) -> None:
    with table(tmp_path, lambda body: said(), partner_tokens=25, partner_requests=1) as (
        partner,
        _,
        client,
    ):
        with pytest.raises(
            ServerError,
            match=r"HANABI_PARTNER_TOKENS=25: .* counted 30 tokens.*Start the server anew",
        ):
            play(client, "url:big", "url:big")
        assert len(partner.bodies) == 3
    uncounted = said()[1] | {"usage": None}
    with (
        table(tmp_path / "2", lambda body: (200, uncounted), partner_tokens=25) as (_, _, client),
        pytest.raises(ServerError, match="no usage, so HANABI_PARTNER_TOKENS cannot be kept"),
    ):
        play(client, "url:big", "base")


def test_no_more_calls_than_allowed_are_made_at_once_and_a_long_transcript_is_moved_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_now, most = [0], [0]

    def count(body: dict[str, Any]) -> tuple[int, Any]:
        open_now[0] += 1
        most[0] = max(most[0], open_now[0])
        time.sleep(0.02)
        open_now[0] -= 1
        return said()

    monkeypatch.setattr(url_partners, "MAX_TRANSCRIPT", 2000)
    with table(tmp_path, count, partner_requests=1) as (partner, _, client):
        play(client, "url:big", "base", num_games=6)
    assert most == [1] and len(partner.bodies) > 9
    assert (tmp_path / "calls.jsonl").stat().st_size < 3000 and (
        tmp_path / "calls.old.jsonl"
    ).stat().st_size > 2000
    assert calls(tmp_path)[-1]["spent"] == 10 * len(partner.bodies)


def test_another_rollout_server_is_such_a_url(tmp_path: Path) -> None:
    with (
        running_app(max_model_len=20000, api_key=KEY) as other,
        RolloutClient(other.url, api_key=KEY) as its,
    ):
        lora = lora_of(push_to(its, other)["player_1"])
        for model, expected in (("base", None), ("player_1@1", lora), ("player_1", lora)):
            known = partners_of(tmp_path, f"big={other.url}/v1#{model}")
            with (
                running_app(partners=known, max_model_len=20000) as app,
                RolloutClient(app.url) as client,
            ):
                (game,) = play(client, "iggi", "url:big", num_games=1, setup=FULL).groups[0]
            earlier: list[tuple[str, str]] = []
            for turn in game.trajectory(1):
                ids = CHAT.open(HANABI.system(FULL.config, 1), turn.prompt, earlier)
                assert turn.reply == CHAT.decode(list(word_reply(expected, ids).ids))
                earlier.append((turn.prompt, turn.reply))
            assert calls(tmp_path)[-1]["prompt_tokens"] == len(ids)
        user = {"role": "user", "content": "?"}
        for change, status, message in (
            ({"model": "iggi"}, 422, "allowed are adapter@version"),
            ({"model": "player_9"}, 422, "allowed are adapter@version"),
            ({"model": "player_1@9"}, 409, "player_1@9 is required"),
            ({"messages": [user, user]}, 422, "user and assistant in turn"),
            ({"messages": [{"role": "tool", "content": ""}]}, 422, "messages.0.role"),
            (
                {"messages": [{"role": "user", "content": "? " * 20000}]},
                422,
                "longer than the conversations",
            ),
        ):
            body = {"model": "base", "messages": [user], "max_tokens": 4, **change}  # type: ignore[dict-item]
            url = f"{other.url}/v1/chat/completions"
            answer = httpx.post(
                url, json=body, headers={"authorization": f"Bearer {KEY}"}, trust_env=False
            )
            assert answer.status_code == status and message in answer.json()["detail"], answer.text


def test_names_that_the_server_does_not_know_are_refused_wherever_they_are_given(
    tmp_path: Path,
) -> None:
    with table(tmp_path, lambda body: said()) as (partner, app, client):
        for seats in (("url:small", "base"), ("base", "url:small")):
            with pytest.raises(
                ServerError,
                match="url:small: the rollout server knows url:big; start it with HANABI",
            ):
                play(client, *seats)
        with pytest.raises(ServerError, match="can only play in games"):
            client.reply(
                ReplyRequest(
                    seat="url:big", system="", turns=(), prompt="?", max_tokens=4, temperature=1.0
                )
            )
        resolver = SeatResolver(client, Settings())
        assert resolver.seats(parse_lineup("url:big,iggi", 2).refs) == ("url:big", "iggi")
        with pytest.raises(SettingsError, match="url:small: the rollout server knows url:big"):
            resolver.seats(parse_lineup("url:small,iggi", 2).refs)
        pool = PartnerSeats(
            Settings(partners=("player_1=url:big",), partner_share=1.0), tmp_path, client.lend
        )
        pool.load({}, "", app.identity.partners)
        [seated] = pool.seat([task_row(3)], ("player_0@1", "player_1@1"), 1, "")
        assert seated["seats"] == ["player_0@1", "url:big"] and pool.names == {"url:big": "big"}
        with pytest.raises(
            SettingsError, match="HANABI_PARTNERS=url:big: the rollout server knows no URL"
        ):
            pool.load({}, "")
        # An evaluation plays it in every seat, and says which model it was.
        given = Served(client=client, resolver=resolver, max_tokens=4, temperature=0.5)
        lineup, setup = parse_lineup("url:big,iggi", 2), FULL
        name = partner.url().removeprefix("big=")
        assert lineup_key(lineup, setup, served=given)["policies"]["url:big"] == name
        assert evaluate_lineup(lineup, setup, 2, served=given).seats == (
            ("url:big", "iggi"),
            ("iggi", "url:big"),
        )
    with pytest.raises(SettingsError, match="is asked by the rollout server"):
        parse_lineup("human,url:big", 2, human=True)


def test_a_bad_setting_is_refused_and_the_key_is_masked() -> None:
    good = "big=http://localhost:8001/v1#Qwen/Qwen3-8B"
    given = {
        "HANABI_PARTNER_URLS": f"{good}, b2=https://[::1]/v1/#m:free",
        "HANABI_PARTNER_KEY": KEY,
    }
    loaded = load_settings(given, Path("no"))
    assert len(loaded.settings.partner_urls) == 2 and KEY not in repr(loaded)
    bad = (
        "big big=http://host/v1 http://host/v1#m Big=http://host/v1#m big=ftp://host/v1#m "
        "big=http:///v1#m "
    )
    bad += "big=http://user:pass@host/v1#m big=http://host/v1?key=1#m big=http://host:99999/v1#m"
    for text in (*bad.split(), f"{good},{good}"):
        with pytest.raises(
            SettingsError, match=r"HANABI_PARTNER_URLS=.*a comma list of NAME=URL#MODEL, e\.g\."
        ):
            load_settings({"HANABI_PARTNER_URLS": text}, Path("no"))


def test_the_doctor_asks_each_url_for_its_models() -> None:
    with served(Partner(lambda body: said())) as partner:
        gone = f"gone=http://127.0.0.1:{free_port()}/v1#m"
        urls = f"{partner.url()},{partner.url('other')}x,{gone},{partner.url('lost').replace('/v1', '')}"
        found = find(partner_url_checks, HANABI_PARTNER_URLS=urls)
    assert [one.status for one in found] == ["ok", "warn", "fail", "fail"]
    assert "lists org/model:1, and not org/model:1x" in found[1].finding
    assert "not reached (ConnectError" in found[2].finding and "data" in found[3].finding
