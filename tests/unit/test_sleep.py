"""HANABI_SLEEP: when the engine sleeps, who wakes it, and where it is refused."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from fake_engine import task, task_row
from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.handshake import session_headers
from hanabi_grpo.rollout.messages import ReplyRequest, ScoredPrompt
from hanabi_grpo.server.engine import engine_options
from hanabi_grpo.settings import Settings, load_settings
from hanabi_grpo.training.link import ServerLink
from server_app import (
    PEFT_CONFIG,
    PLAYERS,
    DozyEngine,
    RunningApp,
    adapter_bytes,
    open_session,
    push_to,
    rollout_body,
    running_app,
)
from waiting import wait_until


@pytest.fixture
def app() -> Iterator[RunningApp]:
    with running_app(engine=DozyEngine(), sleeps=True) as running:
        yield running


@pytest.fixture
def trainer(app: RunningApp) -> Iterator[RolloutClient]:
    with RolloutClient(app.url) as client:
        yield client


def dozy(app: RunningApp) -> DozyEngine:
    assert isinstance(app.engine, DozyEngine)
    return app.engine


def play(client: RolloutClient, *seats: str, num_games: int = 2) -> RolloutResult:
    row = {**task(3), "suite": "train", "seed": 3, "seats": list(seats or ("base", "base"))}
    return client.play([row], num_games=num_games, max_tokens=4, temperature=0.5)


class Background:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:
            self.result = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> Any:
        self._thread.join(20)
        assert self.is_done
        return self.result


def test_it_sleeps_before_the_trainer_has_its_games_and_wakes_for_what_it_asks_next(
    app: RunningApp, trainer: RolloutClient
) -> None:
    engine = dozy(app)
    for version in (1, 2, 3):
        if version == 1:
            push_to(trainer, app)
        else:
            bodies = {name: (adapter_bytes(version / 16), PEFT_CONFIG) for name in PLAYERS}
            trainer.push(version, bodies)
        assert not engine.is_asleep
        seats = [f"{name}@{version}" for name in PLAYERS]
        [games] = play(trainer, *seats).groups
        assert engine.is_asleep, "the trainer may take the memory as soon as it has the games"
        assert {turn.version for turn in games[0].turns} == {version}
    assert engine.events == ["sleep", "wake", "sleep", "wake", "sleep"]


def test_scores_and_adapters_of_the_trainer_wake_it_too(
    app: RunningApp, trainer: RolloutClient
) -> None:
    engine = dozy(app)
    push_to(trainer, app)
    play(trainer)
    prompt = ScoredPrompt(system="", prompt="Hint R", replies=("Play 0", "Play 1"))
    # What the trainer measures between two steps gives the memory back as its games do.
    assert len(trainer.score("player_0@1", [prompt])[0]) == 2
    assert engine.events == ["sleep", "wake", "sleep"]
    trainer.upload_guest(50, adapter_bytes(0.5), PEFT_CONFIG)
    assert engine.events == ["sleep", "wake", "sleep", "wake"]
    play(trainer)
    assert engine.is_asleep


def test_a_single_reply_of_the_trainer_wakes_it_too(
    app: RunningApp, trainer: RolloutClient
) -> None:
    engine = dozy(app)
    push_to(trainer, app)
    play(trainer)
    asked = ReplyRequest(
        seat="player_0@1", system="", turns=(), prompt="life1", max_tokens=4, temperature=1.0
    )
    assert trainer.reply(asked).version == 1
    assert engine.events == ["sleep", "wake", "sleep"]
    messages = [{"role": "user", "content": "life1"}]
    headers = session_headers(trainer.trainer_id, trainer.trainer_id)
    answer = httpx.post(
        f"{app.url}/v1/chat/completions",
        json={"model": "player_0", "messages": messages, "max_tokens": 4},
        headers=headers,
        timeout=5,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    assert engine.events == ["sleep", "wake", "sleep", "wake", "sleep"]


def test_others_wait_while_the_trainer_learns_and_play_beside_its_games(
    app: RunningApp, trainer: RolloutClient
) -> None:
    engine = dozy(app)
    push_to(trainer, app)
    play(trainer)
    with RolloutClient(app.url) as guest:
        waiting = Background(lambda: play(guest))
        assert not wait_until(lambda: waiting.is_done, seconds=1.5)
        assert engine.is_asleep
        trainer.push(2, {name: (adapter_bytes(0.5), PEFT_CONFIG) for name in PLAYERS})
        assert len(waiting.end().groups[0]) == 2
    assert engine.events == ["sleep", "wake"]


def test_a_trainer_that_is_gone_leaves_nobody_waiting(
    app: RunningApp, trainer: RolloutClient
) -> None:
    engine = dozy(app)
    push_to(trainer, app)
    play(trainer)
    with RolloutClient(app.url) as guest:
        waiting = Background(lambda: play(guest))
        assert not wait_until(lambda: waiting.is_done, seconds=0.7)
        trainer.release()
        assert len(waiting.end().groups[0]) == 2
        # Without a trainer there is nobody to sleep for.
        assert not engine.is_asleep
        play(guest)
        assert not engine.is_asleep
    with RolloutClient(app.url) as successor:
        push_to(successor, app)
        play(successor)
        assert engine.is_asleep
        # The next trainer's session drops adapters, which is a call of the engine.
        successor.release()
        with RolloutClient(app.url) as third:
            push_to(third, app)
    assert "in its sleep" not in " ".join(engine.events)


def test_it_waits_for_replies_of_others_that_are_being_sampled(
    app: RunningApp, trainer: RolloutClient
) -> None:
    engine = dozy(app)
    push_to(trainer, app)
    engine.seconds = 0.2
    with RolloutClient(app.url) as guest:
        beside = Background(lambda: play(guest, num_games=4))
        assert wait_until(lambda: app.scheduler.games_in_flight == 4)
        play(trainer, "random", "random")
        # `DozyEngine` raises for a reply that it sleeps in.
        assert engine.is_asleep
        trainer.push(2, {name: (adapter_bytes(0.5), PEFT_CONFIG) for name in PLAYERS})
        assert len(beside.end().groups[0]) == 4
    assert engine.events == ["sleep", "wake"]


def test_a_client_that_hangs_up_leaves_no_half_sleep(
    app: RunningApp, trainer: RolloutClient
) -> None:
    engine = dozy(app)
    push_to(trainer, app)
    engine.seconds_to_sleep = 2.0
    row = {**task(3), "suite": "train", "seed": 3, "seats": ["base", "base"]}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{app.url}/rollout/",
            json=rollout_body(tasks=[row]),
            headers=trainer.headers,
            timeout=1.0,
            trust_env=False,
        )
    assert app.scheduler.games_played == 1
    assert wait_until(lambda: engine.is_asleep)
    with RolloutClient(app.url) as guest:
        waiting = Background(lambda: play(guest))
        assert not wait_until(lambda: waiting.is_done, seconds=0.7)
    assert "in its sleep" not in " ".join(engine.events)


def test_an_engine_that_cannot_sleep_or_wake_is_told_with_the_way_out(
    app: RunningApp, trainer: RolloutClient
) -> None:
    engine = dozy(app)
    push_to(trainer, app)
    engine.faults = {"sleep": RuntimeError("no such pool")}
    message = r"could not be put to sleep \(no such pool\); set HANABI_SLEEP=0 .*RESUME=latest"
    with pytest.raises(ServerError, match=message):
        play(trainer)
    engine.faults = {"wake": RuntimeError("CUDA out of memory")}
    play(trainer)
    message = r"the engine cannot wake up: .*CUDA out of memory.*Lower HANABI_GPU_MEMORY_UTIL"
    with pytest.raises(ServerError, match=message):
        play(trainer)
    # The server ends, as with any dead engine, and its parent starts the next.
    assert wait_until(lambda: not _is_up(app))


def _is_up(app: RunningApp) -> bool:
    try:
        app.connect(1.0).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "HANABI_SLEEP=1 without a GPU: a sleeping engine releases GPU memory"),
        ({"HANABI_OVERLAP": "1"}, "HANABI_SLEEP=1 with HANABI_OVERLAP=1: games are played while"),
        ({"NPROC_PER_NODE": "2", "DEEPSPEED": "zero2"}, "HANABI_SLEEP=1 with NPROC_PER_NODE=2"),
        (
            {"VLLM_DATA_PARALLEL_SIZE": "2"},
            "HANABI_SLEEP=1 with VLLM_DATA_PARALLEL_SIZE=2: it requires one GPU",
        ),
        ({"VLLM_TENSOR_PARALLEL_SIZE": "2"}, "HANABI_SLEEP=1 with VLLM_TENSOR_PARALLEL_SIZE=2"),
    ],
)
def test_where_it_cannot_work_it_is_refused(given: dict[str, str], message: str) -> None:
    device = "gpu" if given else "cpu"
    one_gpu = {"VLLM_DATA_PARALLEL_SIZE": "1", "NPROC_PER_NODE": "1"}
    variables = {"HANABI_SLEEP": "1", **one_gpu, **given}
    with pytest.raises(SettingsError, match=message):
        load_settings(variables, Path("no"), device=(device, "test"))


def test_vllm_is_told_only_where_it_may_sleep() -> None:
    variables = {"VLLM_DATA_PARALLEL_SIZE": "1", "NPROC_PER_NODE": "1", "HANABI_SLEEP": "1"}
    gpu = load_settings(variables, Path("no"), device=("gpu", "test")).settings
    assert engine_options(gpu, "model")["enable_sleep_mode"] is True
    assert "enable_sleep_mode" not in engine_options(Settings(), "model")


@pytest.mark.parametrize(("sleep", "expected"), [(True, 2), (False, 0)])
def test_the_trainer_hands_back_what_it_has_freed_before_the_engine_wakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleep: bool, expected: int
) -> None:
    handed_back: list[bool] = []
    with running_app(engine=DozyEngine(), sleeps=True) as app:
        engine = dozy(app)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: handed_back.append(engine.is_asleep))
        settings = Settings(num_generations=2, vllm_server_port=app.port, sleep=sleep)
        link = ServerLink(settings, tmp_path)
        link.instance_id = app.identity.instance_id
        push_to(link.client, app, version=7)
        link.partners.load({}, link.instance_id)
        link.play([task_row(1)], PLAYERS, 7)
        bodies = {name: (adapter_bytes(0.5), PEFT_CONFIG) for name in PLAYERS}
        link.push_exported(bodies, 8)
        link.client.close()
    # Before the games, and before the push that wakes it.
    assert handed_back == [False, True][:expected]


def test_a_session_that_is_opened_wakes_it(app: RunningApp, trainer: RolloutClient) -> None:
    push_to(trainer, app)
    play(trainer)
    assert dozy(app).is_asleep
    open_session(trainer, app, run_id=trainer.trainer_id, version=1)
    assert not dozy(app).is_asleep
