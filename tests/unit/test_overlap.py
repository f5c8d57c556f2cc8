"""Games that are played while the trainer learns: through the real link and server, and with a
source that fails.
"""

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from fake_engine import task_row
from hanabi_grpo.client import fleet, rollout_client
from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.errors import ServerError, ServerGoneError, SettingsError, VersionError
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import own_seats
from hanabi_grpo.training.link import GamesRequest, ServerLink
from hanabi_grpo.training.model.adapters import use_adapter
from hanabi_grpo.training.overlap import PlayAhead
from hanabi_grpo.training.policy import EarlierVersions
from server_app import PEFT_CONFIG, PLAYERS, RunningApp, adapter_bytes, push_to, running_app
from waiting import wait_until

FIRST = [task_row(1), task_row(2)]
SECOND = [task_row(3), task_row(4)]


@pytest.fixture
def app() -> Iterator[RunningApp]:
    with running_app() as running:
        yield running


@pytest.fixture
def link(app: RunningApp, tmp_path: Path) -> Iterator[ServerLink]:
    """A trainer's link to a server that serves version 7 of its players."""
    made = ServerLink(Settings(num_generations=2, vllm_server_port=app.port), tmp_path)
    made.instance_id = app.identity.instance_id
    push_to(made.client, app, version=7)
    made.partners.load({}, made.instance_id)
    yield made
    made.client.close()


def push(link: ServerLink, version: int) -> None:
    link.client.push(
        version, {name: (adapter_bytes(version / 16), PEFT_CONFIG) for name in PLAYERS}
    )


def what_was_played(result: RolloutResult) -> list[list[tuple[Any, ...]]]:
    return [
        [(one.seed, one.game, *(turn.reply_ids for turn in one.turns)) for one in g]
        for g in result.groups
    ]


def versions(result: RolloutResult) -> set[int | None]:
    return {turn.version for group in result.groups for episode in group for turn in episode.turns}


def test_games_come_from_the_version_that_was_asked_although_a_newer_one_is_pushed_meanwhile(
    app: RunningApp, link: ServerLink
) -> None:
    ahead = PlayAhead(link, PLAYERS)
    expected = what_was_played(link.play(SECOND, PLAYERS, 7))
    first = ahead.take(FIRST, 7)
    assert (first.version, [group[0].seed for group in first.result.groups]) == (7, [1, 2])
    app.engine.seconds = 0.1
    ahead.ask(SECOND, 7)
    assert wait_until(lambda: app.scheduler.games_in_flight == 4)
    push(link, 8)
    assert app.store.versions() == {"player_0": 8, "player_1": 8}
    second = ahead.take(SECOND, 8)
    assert second.version == 7
    assert second.rollout_seconds >= 0.1
    assert versions(second.result) == {7}
    assert what_was_played(second.result) == expected
    # Its games have ended, so the old version has left the engine.
    assert wait_until(lambda: len(app.engine.loaded) == 2)
    assert link.incidents.counts == {}
    # The words do depend on the version.
    assert what_was_played(link.play(SECOND, PLAYERS, 8)) != expected


def test_requests_of_several_steps_are_under_way_at_once_each_with_its_own_version(
    app: RunningApp, link: ServerLink
) -> None:
    third = [task_row(5), task_row(6)]
    fourth = [task_row(7)]
    expected = what_was_played(link.play(third, PLAYERS, 7))
    app.engine.seconds = 0.3
    ahead = PlayAhead(link, PLAYERS)
    assert ahead.ask(SECOND, 7)
    assert ahead.ask(third, 7)
    assert wait_until(lambda: app.scheduler.games_in_flight == 8)
    push(link, 8)
    assert ahead.ask(fourth, 8)
    assert wait_until(lambda: app.scheduler.games_in_flight == 10)
    push(link, 9)
    assert ahead.num_asked == 3
    taken = [ahead.take(tasks, 9) for tasks in (SECOND, third, fourth)]
    assert [games.version for games in taken] == [7, 7, 8]
    assert [versions(games.result) for games in taken] == [{7}, {7}, {8}]
    assert what_was_played(taken[1].result) == expected
    assert ahead.num_asked == 0
    assert wait_until(lambda: len(app.engine.loaded) == 2)
    assert link.incidents.counts == {}


def test_games_ahead_come_in_one_request_however_many_they_are(
    app: RunningApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later part would name a version that is not served any more."""
    settings = Settings(num_generations=2, vllm_server_port=app.port, overlap=1)
    ahead_link = ServerLink(settings, tmp_path)
    ahead_link.instance_id = app.identity.instance_id
    push_to(ahead_link.client, app, version=7)
    ahead_link.partners.load({}, ahead_link.instance_id)
    monkeypatch.setattr(rollout_client, "cut_request", partial(fleet.cut_request, most_games=2))
    app.engine.seconds = 0.3
    ahead = PlayAhead(ahead_link, PLAYERS)
    assert ahead.ask([*FIRST, *SECOND], 7)
    assert wait_until(lambda: app.scheduler.games_in_flight == 8)
    push(ahead_link, 8)
    assert versions(ahead.take([*FIRST, *SECOND], 8).result) == {7}
    assert ahead_link.incidents.counts == {}
    ahead_link.client.close()


def test_a_request_that_a_push_overtook_is_refused_and_made_again_with_the_version_that_is_served(
    app: RunningApp, link: ServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed, fetch = threading.Event(), link.fetch

    def late(request: GamesRequest) -> RolloutResult:
        if request.version == 7:
            assert pushed.wait(20)
        return fetch(request)

    monkeypatch.setattr(link, "fetch", late)
    ahead = PlayAhead(link, PLAYERS)
    ahead.ask(FIRST, 7)
    push(link, 8)
    pushed.set()
    games = ahead.take(FIRST, 8)
    assert (games.version, versions(games.result)) == (8, {8})
    assert link.incidents.counts == {"games_asked_again": 1}
    assert (
        "player_0@7 is required, but this server holds player_0@8"
        in link.incidents.path.read_text()
    )


def test_an_answer_of_another_version_is_refused_and_not_asked_for_again(
    app: RunningApp, link: ServerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(link, 8)
    fetch = link.fetch
    monkeypatch.setattr(
        link, "fetch", lambda request: fetch(replace(request, own=own_seats(2, PLAYERS, 8)))
    )
    ahead = PlayAhead(link, PLAYERS)
    ahead.ask(FIRST, 7)
    with pytest.raises(
        ServerError, match="the seats player_0@8, player_1@8, but player_0@7, player_1@7"
    ):
        ahead.take(FIRST, 8)
    assert link.incidents.counts == {}


class Source:
    """Plays nothing, and fails as it is told to."""

    def __init__(self, fetch: Any = None, prepare: Any = None) -> None:
        self.incidents = self
        self.recorded: list[tuple[str, str]] = []
        self.played: list[tuple[Any, int]] = []
        self._fetch, self._prepare = fetch or (lambda: None), prepare or (lambda: None)

    def record(self, kind: str, message: str, **_: Any) -> None:
        self.recorded.append((kind, message))

    def play(
        self, tasks: list[dict[str, Any]], names: tuple[str, ...], version: int
    ) -> RolloutResult:
        self.played.append((tasks, version))
        return RolloutResult(groups=[])

    def prepare(
        self, tasks: list[dict[str, Any]], names: tuple[str, ...], version: int
    ) -> GamesRequest:
        self._prepare()
        return GamesRequest(tasks=tasks, own=(), version=version, instance_id="here")

    def fetch(self, request: GamesRequest) -> RolloutResult:
        self._fetch()
        return RolloutResult(groups=[])

    def accept(self, request: GamesRequest, result: RolloutResult) -> RolloutResult:
        return result


def raising(error: BaseException) -> Any:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("place", ["fetch", "prepare"])
@pytest.mark.parametrize("kind", [ServerGoneError, ServerError])
def test_a_lost_request_is_written_down_and_its_step_plays_in_the_plain_way(
    place: str, kind: type[Exception]
) -> None:
    source = Source(**{place: raising(kind("no answer"))})
    ahead = PlayAhead(source, PLAYERS)
    assert ahead.ask(FIRST, 7) == (place == "fetch")
    assert ahead.take(FIRST, 8).version == 8
    assert source.played == [(FIRST, 8)]
    [(kind_word, message)] = source.recorded
    assert kind_word == "games_asked_again"
    assert "of version 7 are discarded: no answer" in message


def test_a_request_is_used_once_and_by_its_own_deals_only() -> None:
    source = Source()
    ahead = PlayAhead(source, PLAYERS)
    ahead.ask(FIRST, 7)
    assert [ahead.take(FIRST, 8).version for _ in range(2)] == [7, 8]
    ahead.ask(FIRST, 8)
    assert ahead.take(SECOND, 9).version == 9
    assert source.played == [(FIRST, 8), (SECOND, 9)]
    assert "their tasks are not this step's tasks" in source.recorded[0][1]


def test_whatever_else_happens_in_the_thread_is_raised_in_the_trainer() -> None:
    for error in (SettingsError("a task that cannot be played"), MemoryError(), SystemExit(3)):
        source = Source(fetch=raising(error))
        ahead = PlayAhead(source, PLAYERS)
        ahead.ask(FIRST, 7)
        with pytest.raises(type(error)) as caught:
            ahead.take(FIRST, 8)
        assert caught.value is error
        assert source.played == source.recorded == []


@pytest.fixture(scope="module")
def model() -> PeftModel:
    """One linear layer with an adapter for each player, which is not the zero that LoRA starts
    with.
    """
    torch.manual_seed(3)
    config = LoraConfig(r=2, lora_alpha=4, target_modules=["0"])
    made = get_peft_model(
        torch.nn.Sequential(torch.nn.Linear(4, 4)), config, adapter_name="player_0"
    )
    made.add_adapter("player_1", config)
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            parameter.requires_grad_(True)
            torch.nn.init.normal_(parameter)
    return made


def outputs(model: PeftModel, name: str) -> torch.Tensor:
    use_adapter(model, name)
    with torch.no_grad():
        return model(torch.ones(1, 4))


def move(model: PeftModel) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(0.37)


def test_forward_passes_meet_the_kept_version_and_the_weights_of_now_come_back_bit_by_bit(
    model: PeftModel,
) -> None:
    kept = EarlierVersions(model)
    before = {name: outputs(model, name) for name in PLAYERS}
    kept.keep(4)
    move(model)
    tensors = {
        name: (parameter, parameter.detach().clone())
        for name, parameter in model.named_parameters()
    }
    now = {name: outputs(model, name) for name in PLAYERS}
    kept.keep(5)
    with kept.using(4):
        assert all(torch.equal(outputs(model, name), before[name]) for name in PLAYERS)
    with pytest.raises(ZeroDivisionError), kept.using(4):
        1 / 0  # noqa: B018
    assert all(torch.equal(outputs(model, name), now[name]) for name in PLAYERS)
    assert not any(torch.equal(now[name], before[name]) for name in PLAYERS)
    kept.keep(6)
    with (
        pytest.raises(
            VersionError, match=r"version 4 are no longer available \(available: \[5, 6\]\)"
        ),
        kept.using(4),
    ):
        pass
    for name, parameter in model.named_parameters():
        assert parameter is tensors[name][0]
        assert torch.equal(parameter, tensors[name][1])
        assert parameter.requires_grad == ("lora_" in name)
