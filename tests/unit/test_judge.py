"""HANABI_JUDGE: what it is asked, what it pays, and what its faults lead to."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bad_server import bad_server, silent
from doctor_machines import find
from fake_engine import LAPTOP, task
from hanabi_grpo.agents import url_calls
from hanabi_grpo.agents.judge import FailedCalls, Judge, fill_template, read_score
from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.commands.doctor.server import partner_url_checks
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup, Task
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.envs.rewards import with_rewards
from hanabi_grpo.errors import PartnerDownError, PartnerError, ServerError, SettingsError
from hanabi_grpo.rollout.handshake import game_claims
from hanabi_grpo.settings import Settings, load_settings
from hanabi_grpo.settings.judge import judge_description
from hanabi_grpo.settings.judge_template import judge_template
from hanabi_grpo.training.estimators import make_estimator
from hanabi_grpo.types import Episode, Reply
from local_service import served
from ports import closed_port
from server_app import RunningApp, open_session, running_app, session_body
from url_service import Answer, Partner, completion


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_calls, "PAUSES", (0.01, 0.01))


def settings_of(*urls: str, **settings: Any) -> Settings:
    return Settings.model_validate({"partner_urls": urls, "judge": "url:big", **settings})


@contextmanager
def court(
    folder: Path, answer: Answer, url: str = "", **settings: Any
) -> Iterator[tuple[Partner, RunningApp, RolloutClient]]:
    """A judge, a rollout server that has it, and the trainer of the server's session."""
    with ExitStack() as stack:
        service = stack.enter_context(served(Partner(answer)))
        entry = f"big={url}/v1#m" if url else service.entry()
        judge = Judge(settings_of(entry, **settings), folder / "calls.jsonl")
        app = stack.enter_context(running_app(judge=judge, max_model_len=20000))
        client = stack.enter_context(RolloutClient(app.url))
        open_session(client, app, judge=judge.agreement)
        yield service, app, client


def play(
    client: RolloutClient,
    *,
    suite: str = "train",
    num_games: int = 4,
    setup: Setup[Any] | None = None,
    seeds: tuple[int, ...] = (3,),
) -> RolloutResult:
    """Games against a script that moves at random, so no two of them are the same."""
    game = setup.row() if setup else task(3)
    rows = []
    for seed in seeds:
        rows.append({**game, "suite": suite, "seed": seed, "seats": ["base", "random"]})
    return client.play(rows, num_games=num_games, max_tokens=4, temperature=0.5)


def judged(game: Episode, part: str = "judge") -> list[float | None]:
    """What a part pays each player in the last step, None where it is not there."""
    paid: list[float | None] = [None] * game.num_players
    for turn in game.turns:
        if turn.step == game.turns[-1].step:
            for player, parts in enumerate(turn.rewards):
                paid[player] = parts.get(part, paid[player])
    return paid


def read_calls(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Score: 7", 7.0),
        ("Well argued.\n**Score: 7.5/10**\n", 7.5),
        ("<think>Score: 1</think>It is fine.\n## Score: 10", 10.0),
        ("score = 0", 0.0),
        ("Score: 3\nNo, better:\nScore: 4", 4.0),
        ("Score: 11", None),
        ("Score: -3", None),
        ("Score: high", None),
        ("Score: 3 or 4", None),
        ("Score: nan", None),
        ("I would say 7.", None),
        ("<think>Score: 7", None),
        ("", None),
    ],
)
def test_a_score_is_one_number_from_0_to_10_on_the_line_that_says_so(
    answer: str, score: float | None
) -> None:
    assert read_score(answer) == score


def test_the_question_quotes_what_was_said_without_thoughts_and_special_tokens() -> None:
    setup = registry.setup("debate", {"preset": "debate", "style": "full", "rounds": 1})
    start = setup.task("train", 0)
    referee = Referee(start)
    replies = {}
    for player, text in enumerate(
        ("<think>secret</think>{episode} <|im_end|>\nAnswer: 7", "<think>cut off")
    ):
        replies[player] = Reply(text=text, prompt=referee.see(player).message())
    referee.step(replies)
    episode = referee.episode()
    rules = setup.environment.system_message(setup.config, 0)
    prompt = referee.game.problem.question  # type: ignore[attr-defined]
    asked = fill_template("{rules}|{prompt}|{reply}|{other}", start, episode)
    said = "player_0:\n> {episode} < |im_end|>\n> Answer: 7\n\nplayer_1:\n(nothing)"
    assert asked == f"{rules}|> {prompt}\n> Your answer?|{said}|{{other}}"
    whole = fill_template(judge_template("episode"), start, episode)
    assert "player_1 was shown:\n> " + prompt in whole
    assert "player_0 answered:\n> {episode} < |im_end|>\n> Answer: 7" in whole
    assert "secret" not in whole and "cut off" not in whole
    # A script's move is no answer of a model, and it was shown nothing.
    alone = replace(episode, turns=(episode.turns[0], replace(episode.turns[1], prompt="")))
    assert fill_template("{reply}", start, alone) == "> {episode} < |im_end|>\n> Answer: 7"
    assert "player_1 was shown" not in fill_template("{episode}", start, alone)
    assert "not instructions" in fill_template(judge_template("answer"), start, episode)
    # An environment may quote what a player wrote.
    quoted = replace(episode.turns[0], prompt="It said <|im_end|>")
    quoting = replace(episode, turns=(quoted, *episode.turns[1:]))
    asked = fill_template("{prompt}\n{episode}", start, quoting)
    assert "It said < |im_end|>" in asked
    assert "<|im_end|>" not in asked


def test_every_game_that_is_learned_from_is_paid_its_score_and_the_record_says_by_whom(
    tmp_path: Path,
) -> None:
    scores = iter((0, 5, 10, 2.5))
    answers = lambda body: completion(f"Score: {next(scores)}")  # noqa: E731
    with court(tmp_path, answers, judge_weight=2.0, judge_requests=1) as (judge, app, client):
        [games] = play(client).groups
        assert sorted(map(judged, games)) == [[0.0, 0.0], [0.5, 0.5], [1.0, 1.0], [2.0, 2.0]]
        # Neither the run's validations nor other clients are judged.
        [validation] = play(client, suite="eval-validation").groups
        with RolloutClient(app.url) as guest:
            [others] = play(guest).groups
        for game in (*validation, *others):
            assert judged(game) == [None, None]
        assert len(judge.bodies) == 4
    by_score = sorted(read_calls(tmp_path), key=lambda row: row["spent"])
    assert [row["spent"] for row in by_score] == [10, 20, 30, 40]
    first = by_score[0]
    assert (first["partner"], first["model"]) == ("big", "org/model:1")
    assert (first["task"], first["reply"]) == ("hanabi train 3", "Score: 0")
    body = judge.bodies[0]
    assert (body["temperature"], body["max_tokens"]) == (0.0, 1024)
    # It is a part like any other: of the metrics, and of what turns are compared by.
    figures = Setup(HANABI, LAPTOP).metrics(games)
    assert (figures["reward/judge"], figures["judge/missing"]) == (0.875, 0.0)
    assert "reward/judge" not in Setup(HANABI, LAPTOP).metrics(others)
    plain = [game.reward(0) - (judged(game)[0] or 0.0) for game in games]
    [*advantages] = make_estimator("grpo", scale="none").advantages(games, 0)
    returns = [plain[number] + (judged(game)[0] or 0.0) for number, game in enumerate(games)]
    mean = sum(returns) / 4
    assert [values[0] for values in advantages] == pytest.approx([r - mean for r in returns])


def test_the_same_question_is_asked_once(tmp_path: Path) -> None:
    def slow(body: dict[str, Any]) -> Any:
        time.sleep(0.1)
        return completion("Score: 5")

    with court(tmp_path, slow) as (judge, _, client):
        row = {**task(3), "suite": "train", "seed": 3, "seats": ["base", "base"]}
        for _ in range(2):
            played = client.play([row], num_games=5, max_tokens=4, temperature=0.5)
            assert [judged(game) for game in played.groups[0]] == [[0.5, 0.5]] * 5
        assert len(judge.bodies) == 1


def debated(answer: str) -> tuple[Task[Any], Episode]:
    """A finished game, and its task; other answers lead to another question."""
    setup = registry.setup("debate", {"preset": "debate", "style": "full", "rounds": 1})
    start = setup.task("train", 0)
    referee = Referee(start)
    replies = {}
    for player in range(2):
        replies[player] = Reply(text=answer, prompt=referee.see(player).message())
    referee.step(replies)
    return start, referee.episode()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, for a limited time."""
    async with asyncio.timeout(20.0):
        while not condition():
            await asyncio.sleep(0.01)


def ask_one_at_a_time(
    folder: Path, answer: Answer, ask: Callable[[Judge, Partner], Coroutine[Any, Any, None]]
) -> None:
    """Ask a judge that answers one call at a time."""
    with served(Partner(answer)) as service:
        judge = Judge(settings_of(service.entry(), judge_requests=1), folder / "calls.jsonl")
        asyncio.run(ask(judge, service))


def test_a_question_for_which_no_game_waits_any_more_is_cancelled(tmp_path: Path) -> None:
    released = threading.Event()

    def held(body: dict[str, Any]) -> Any:
        released.wait(20.0)
        return completion("Score: 5")

    async def ask(judge: Judge, service: Partner) -> None:
        failed = FailedCalls()
        games = []
        for number in range(3):
            score = judge.score(*debated(f"Answer: {number}"), failed)
            games.append(asyncio.create_task(score))
        await until(lambda: len(service.bodies) == 1)
        for game in games:
            game.cancel()
        await asyncio.wait(games)
        released.set()
        # The resumed run asks the first question again, and waits behind no other.
        assert await judge.score(*debated("Answer: 0"), FailedCalls()) == 0.5
        assert len(service.bodies) == 2

    ask_one_at_a_time(tmp_path, held, ask)
    cancelled, scored = read_calls(tmp_path)
    assert cancelled["error"] == "cancelled: nobody waits for the reply any more."
    assert (cancelled["reply"], cancelled["spent"]) == ("", 0)
    assert (scored["error"], scored["reply"], scored["spent"]) == ("", "Score: 5", 10)


def test_a_question_of_several_games_goes_on_while_one_of_them_waits(tmp_path: Path) -> None:
    released = threading.Event()

    def held(body: dict[str, Any]) -> Any:
        released.wait(20.0)
        return completion("Score: 5")

    async def ask(judge: Judge, service: Partner) -> None:
        game = debated("Answer: 7")
        first = asyncio.create_task(judge.score(*game, FailedCalls()))
        second = asyncio.create_task(judge.score(*game, FailedCalls()))
        await until(lambda: len(service.bodies) == 1)
        first.cancel()
        await asyncio.wait([first])
        released.set()
        assert await second == 0.5
        assert first.cancelled()
        assert len(service.bodies) == 1

    ask_one_at_a_time(tmp_path, held, ask)


def test_a_judge_is_not_called_after_its_failures_have_ended_the_request(tmp_path: Path) -> None:
    async def ask(judge: Judge, service: Partner) -> None:
        failed = FailedCalls()
        games = []
        for number in range(6):
            games.append(judge.score(*debated(f"Answer: {number}"), failed))
        errors = await asyncio.gather(*games, return_exceptions=True)
        down = PartnerDownError
        assert [type(error) for error in errors] == [PartnerError] * 2 + [down] * 4
        assert "it answered 500" in str(errors[5])
        assert "3 calls in a row failed like this" in str(errors[5])
        # Three calls of three tries.
        assert len(service.bodies) == 9

    ask_one_at_a_time(tmp_path, lambda body: (500, "ill"), ask)


def test_a_failure_counts_in_every_request_that_waits_for_the_question(tmp_path: Path) -> None:
    async def ask(judge: Judge, service: Partner) -> None:
        game = debated("Answer: 7")
        ending, going_on = FailedCalls(number=2), FailedCalls()
        errors = await asyncio.gather(
            judge.score(*game, ending),
            judge.score(*game, ending),
            judge.score(*game, going_on),
            return_exceptions=True,
        )
        down = PartnerDownError
        assert [type(error) for error in errors] == [down, down, PartnerError]
        assert (ending.number, going_on.number) == (3, 1)
        assert len(service.bodies) == 3

    ask_one_at_a_time(tmp_path, lambda body: (500, "ill"), ask)


class Every:
    """A judge that says `bad` each time that `number` divides."""

    def __init__(self, number: int, bad: Any) -> None:
        self.number = number
        self.bad = bad
        self.calls = 0

    def __call__(self, body: dict[str, Any]) -> Any:
        self.calls += 1
        return self.bad if self.calls % self.number == 0 else completion("Score: 8")


@pytest.mark.parametrize("bad", [completion("Lovely!"), (400, "no")])
def test_a_game_without_a_score_is_dropped_and_counted(tmp_path: Path, bad: Any) -> None:
    with court(tmp_path, Every(4, bad), judge_requests=1) as (_, app, client):
        result = play(client, num_games=8)
        assert [judged(game) for game in result.groups[0]] == [[0.8, 0.8]] * 6
        assert len(result.dropped) == 2
        for game in result.dropped:
            assert "PartnerError: judge url:big" in game.reason
        assert app.scheduler.games_failed == 2
        assert app.scheduler.games_retried == 0


def test_or_it_is_paid_the_mean_of_its_task_under_a_name_of_its_own(tmp_path: Path) -> None:
    scores = iter((10, 0, "none", 5))
    answers = lambda body: completion(f"Score: {next(scores)}")  # noqa: E731
    limits = {"judge_failure": "mean", "judge_requests": 1, "judge_weight": 2.0}
    with court(tmp_path, answers, **limits) as (_, _, client):
        result = play(client)
    [games] = result.groups
    assert not result.dropped
    paid = [game for game in games if judged(game, "judge_mean") != [None, None]]
    assert [judged(game, "judge_mean") for game in paid] == [[1.0, 1.0]]
    assert [judged(game) for game in paid] == [[None, None]]
    figures = Setup(HANABI, LAPTOP).metrics(games)
    assert (figures["reward/judge"], figures["judge/missing"]) == (1.0, 0.25)


@pytest.mark.parametrize("failure", ["drop", "mean"])
def test_nonsense_for_most_games_ends_the_request_with_the_reason(
    tmp_path: Path, failure: str
) -> None:
    answers = lambda body: completion("As a judge I can not")  # noqa: E731
    with court(tmp_path, answers, judge_failure=failure) as (_, _, client):
        message = (
            r"HANABI_JUDGE=url:big: 4 of 4 games have no score, the first because of: judge "
            r"url:big: no line .Score: .* in its answer: 'As a judge I can not'.*RESUME=latest"
        )
        with pytest.raises(ServerError, match=message):
            play(client)


def test_a_judge_that_is_gone_or_hangs_ends_the_request_in_time(tmp_path: Path) -> None:
    with (
        closed_port() as port,
        court(tmp_path, completion, f"http://127.0.0.1:{port}") as (_, _, client),
    ):
        message = r"judge url:big .*not reached .*3 calls in a row .*calls.jsonl.*RESUME=latest"
        with pytest.raises(ServerError, match=message):
            play(client, num_games=8)
    start = time.monotonic()
    with (
        bad_server(silent) as server,
        court(tmp_path, completion, server.url, judge_timeout=0.3) as (_, app, client),
    ):
        message = r"no answer in 0.3 s \(HANABI_JUDGE_TIMEOUT\)\. 3 calls in a row"
        with pytest.raises(ServerError, match=message):
            play(client, num_games=8)
        # Whoever is not judged plays on.
        with RolloutClient(app.url) as guest:
            assert len(play(guest).groups[0]) == 4
        assert len(play(client, suite="eval-validation").groups[0]) == 4
    assert time.monotonic() - start < 30


def test_a_judge_whose_name_server_does_not_answer_delays_no_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo
    is_asked = threading.Event()
    is_over = threading.Event()

    def getaddrinfo(host: Any, *others: Any, **hints: Any) -> Any:
        if host not in ("judge.invalid", b"judge.invalid"):
            return look_up(host, *others, **hints)
        is_asked.set()
        is_over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with ThreadPoolExecutor(max_workers=1) as pool:
        with court(tmp_path, completion, "http://judge.invalid") as (_, _, client):
            playing = pool.submit(play, client)
            assert is_asked.wait(20)
        # `court` fails if the server is still there after 20 seconds.
        is_over.set()
        with pytest.raises(ServerError):
            playing.result()


def test_its_tokens_are_a_budget_of_its_own(tmp_path: Path) -> None:
    good = lambda body: completion("Score: 5")  # noqa: E731
    limits = {"judge_tokens": 25, "judge_requests": 1, "partner_tokens": 1}
    with court(tmp_path, good, **limits) as (judge, app, client):
        message = r"HANABI_JUDGE_TOKENS=25: .* used 30 tokens.*Restart the server"
        with pytest.raises(ServerError, match=message):
            play(client, num_games=8)
        assert len(judge.bodies) == 3
        # Guests have no part in it.
        with RolloutClient(app.url) as guest:
            assert len(play(guest, num_games=8).groups[0]) == 8
        assert len(judge.bodies) == 3
    restarted = Judge(settings_of("big=http://localhost:1/v1#m"), tmp_path / "calls.jsonl")
    assert restarted.spent == 30, "a restart counts on"
    uncounted = {**completion("Score: 5")[1], "usage": None}
    message = "do not report token usage, so HANABI_JUDGE_TOKENS cannot be enforced"
    with (
        court(tmp_path / "2", lambda body: (200, uncounted), judge_tokens=25) as (_, _, client),
        pytest.raises(ServerError, match=message),
    ):
        play(client, num_games=8)


def test_server_and_trainer_have_the_same_judge_or_none(tmp_path: Path) -> None:
    url = "big=http://localhost:1/v1#m"
    judge = Judge(settings_of(url))
    claims = {"games": game_claims([Setup(HANABI, LAPTOP)])}
    message = "judge differs: server url:big, weight 1, failure drop, template .*, trainer "
    with running_app(judge=judge) as app:
        for settings, there in (
            (Settings(), "none"),
            (settings_of(url, judge_weight=0.5), "url:big, weight 0.5"),
            (settings_of(url, judge_template="episode"), "url:big, weight 1"),
        ):
            trainer = RolloutClient(app.url, judge=judge_description(settings))
            with trainer, pytest.raises(ServerError, match=message + there):
                open_session(trainer, app, judge=judge_description(settings), **claims)
        agreed = load_settings(
            {
                "HANABI_JUDGE": "url:big",
                "VLLM_SERVER_PORT": app.url.rpartition(":")[2],
            },
            Path("no"),
        ).settings
        # The trainer needs no URL of the judge, and its client sends what it expects.
        with RolloutClient.from_settings(agreed) as trainer:
            fields = session_body(app.identity, **claims)
            for name in ("protocol", "trainer_id", "judge"):
                del fields[name]
            assert trainer.open_session(**fields)["judge"] == judge.agreement
    with (
        running_app() as app,
        RolloutClient(app.url) as trainer,
        pytest.raises(ServerError, match="judge differs: server none, trainer url:big"),
    ):
        open_session(trainer, app, judge=judge.agreement)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"HANABI_JUDGE": "big"}, "HANABI_JUDGE='big': url:NAME, with the name of one of"),
        ({"HANABI_JUDGE": "url:"}, "HANABI_JUDGE='url:'"),
        ({"HANABI_JUDGE_TEMPLATE": "Is it good?"}, "HANABI_JUDGE_TEMPLATE=.*contains {reply} or"),
        ({"HANABI_JUDGE_TEMPLATE": "none.md"}, "HANABI_JUDGE_TEMPLATE='none.md': answer, episode"),
        ({"HANABI_JUDGE_WEIGHT": "2"}, "HANABI_JUDGE_WEIGHT=2 without HANABI_JUDGE: .*no effect"),
        ({"HANABI_JUDGE_FAILURE": "mean"}, "HANABI_JUDGE_FAILURE=mean without HANABI_JUDGE"),
        ({"HANABI_JUDGE_FAILURE": "zero"}, "HANABI_JUDGE_FAILURE='zero': one of drop, mean"),
        (
            {"HANABI_JUDGE": "url:big", "HANABI_ENV": "kuhn_poker"},
            "HANABI_JUDGE=url:big with HANABI_ENV=kuhn_poker: the judge pays all players the same",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(given, Path("no"))


def test_a_template_is_a_text_or_a_file_and_settings_hold_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("polite.md").write_text("Is {reply} polite?\n")
    by_file = load_settings({"HANABI_JUDGE_TEMPLATE": "polite.md"}, Path("no")).settings
    assert by_file.judge_template == "Is {reply} polite?"
    text = load_settings({"HANABI_JUDGE_TEMPLATE": "Is {reply} polite?"}, Path("no")).settings
    assert text.judge_template == by_file.judge_template


def test_the_doctor_tells_of_a_judge_without_a_url() -> None:
    [check] = find(partner_url_checks, HANABI_JUDGE="url:big")
    assert (check.status, check.name) == ("fail", "partner urls")
    assert "HANABI_JUDGE=url:big is not among HANABI_PARTNER_URLS" in check.finding
    assert check.remedy == "export HANABI_PARTNER_URLS='big=URL#MODEL'"


def test_names_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="HANABI_JUDGE=url:big: HANABI_PARTNER_URLS has url:s"):
        Judge(settings_of("small=http://localhost:1/v1#m"))
    with pytest.raises(SettingsError, match=r"map unused names .*; names already in use: .*judge"):
        with_rewards(
            HANABI, name="h", rewards={"judge": lambda episode: [0.0] * 2}, reward_range=(0, 1)
        )
    zero_sum = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
    with court(tmp_path, lambda body: completion("Score: 5")) as (judge, _, client):
        with pytest.raises(ServerError, match="HANABI_JUDGE=url:big with a game of kuhn_poker"):
            play(client, setup=zero_sum)
        assert not judge.bodies
