"""Several servers behind one trainer: two real apps on sockets, and the arithmetic of shares."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_engine import task, task_row
from hanabi_grpo.client.fleet import (
    check_alike,
    each_server,
    merge_shares,
    server_url,
    share_tasks,
    side_by_side,
)
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.errors import ServerError, ServerGoneError, SettingsError
from hanabi_grpo.settings import Settings, load_settings
from hanabi_grpo.training import fleet_link
from hanabi_grpo.training.fleet_link import FleetLink, make_link
from hanabi_grpo.training.link import ServerLink
from hanabi_grpo.types import Episode
from server_app import (
    PEFT_CONFIG,
    PLAYERS,
    RANK,
    RunningApp,
    adapter_bytes,
    open_session,
    running_app,
)
from waiting import wait_until

DATASET = Path(__file__).parents[2] / "data/hanabi.laptop.jsonl"
TASKS = [task_row(seed) for seed in range(5)]
SIMPLE = EnvConfig(preset="simple", observation="compact", legal_moves=False)


@pytest.fixture
def apps() -> Iterator[tuple[RunningApp, RunningApp]]:
    with running_app(instance_id="first") as first, running_app(instance_id="second") as second:
        yield first, second


@pytest.fixture
def fleet(
    apps: tuple[RunningApp, RunningApp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., FleetLink]]:
    """Make a link to the two apps, or to some, that pushes the same weights always."""
    monkeypatch.setattr(fleet_link, "export_adapter", lambda *_: (adapter_bytes(0.5), PEFT_CONFIG))
    made: list[FleetLink] = []

    def make(servers: tuple[RunningApp, ...] = apps) -> FleetLink:
        settings = Settings(
            vllm_server_host=",".join(f"127.0.0.1:{app.port}" for app in servers),
            num_generations=2,
            dataset=str(DATASET),
            preset="laptop",
            lora_rank=RANK,
            server_timeout=20.0,
        )
        link = FleetLink(settings, tmp_path)
        for one, app in zip(link.links.values(), servers, strict=True):
            monkeypatch.setattr(one.client, "introduce", introduces(one.client, app))
        made.append(link)
        return link

    yield make
    for link in made:
        link.disconnect()
        for one in link.links.values():
            one.client.close()


def introduces(client: RolloutClient, app: RunningApp) -> Callable[..., dict[str, Any]]:
    """Claim to have the app's own model instead of hashing a folder; all else is what the link
    says.
    """

    def introduce(settings: Settings, **claims: Any) -> dict[str, Any]:
        return open_session(
            client, app, **{name: claims[name] for name in ("run_id", "secret", "version")}
        )

    return introduce


def told(games: list[list[Episode]]) -> list[list[Episode]]:
    """Games without the server that played them."""
    return [[replace(game, instance_id="") for game in group] for group in games]


def instances(games: list[list[Episode]]) -> list[set[str]]:
    return [{game.instance_id for game in group} for group in games]


def test_words_of_the_list_name_hosts_and_perhaps_their_ports() -> None:
    settings = load_settings(
        {"VLLM_SERVER_HOST": "gpu7, gpu8:8001,[::1]:8002,[::2]", "VLLM_SERVER_PORT": "9000"}
    )
    assert [server_url(one) for one in each_server(settings.settings)] == [
        *("http://gpu7:9000", "http://gpu8:8001", "http://[::1]:8002", "http://[::2]:9000")
    ]
    assert server_url(settings.settings) == "http://gpu7:9000"
    assert [server_url(one) for one in each_server(Settings(vllm_server_host="::1"))] == [
        "http://[::1]:8000"
    ]


def test_a_list_that_cannot_be_read_or_names_a_server_twice_is_refused() -> None:
    for text in (
        "a,",
        ",",
        "http://a",
        "a:0",
        "a:65536",
        "a:٣",
        "a:",
        "[::1",
        "[::1]8000",
        "[]:80",
    ):
        with pytest.raises(
            SettingsError, match=r"VLLM_SERVER_HOST=.*: a host name or address, or a comma list"
        ):
            load_settings({"VLLM_SERVER_HOST": text})
    with pytest.raises(SettingsError, match="means a:8000, a:8000: name each server once"):
        each_server(Settings(vllm_server_host="a,a:8000"))


def test_equal_deals_are_dealt_in_turn_and_longer_games_first() -> None:
    assert share_tasks([task.request() for task in TASKS], 2) == [[0, 2, 4], [1, 3]]
    assert share_tasks([TASKS[0].request()], 3) == [[0], [], []]
    assert share_tasks([], 2) == [[], []]
    # A game of the board simple has at most 21 turns, one of laptop 11.
    assert share_tasks([task(0), task(1), task(2, SIMPLE), task(3)], 2) == [[2, 3], [0, 1]]
    # A task that is named twice stays on one server, so that its games are counted on.
    assert share_tasks([task(1), task(1), task(2), task(3)], 2) == [[0, 1], [2, 3]]


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 6))
def test_every_deal_is_played_once_and_comes_back_to_its_place(
    seeds: list[int], servers: int
) -> None:
    tasks = [
        task(seed, SIMPLE if seed % 2 else EnvConfig.parse(task(0)["env_config"])) for seed in seeds
    ]
    shares = share_tasks(tasks, servers)
    assert sorted(place for share in shares for place in share) == list(range(len(tasks)))
    assert merge_shares(shares, [[tasks[place] for place in share] for share in shares]) == tasks
    assert share_tasks([{**one, "seats": ["iggi", "base"]} for one in tasks], servers) == shares


def test_calls_are_made_at_the_same_time_and_the_first_failure_is_raised_once_all_have_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meet, done = threading.Barrier(3, timeout=20), []
    assert side_by_side({name: (lambda name=name: (meet.wait(), name)[1]) for name in "abc"}) == [
        "a",
        "b",
        "c",
    ]

    def fail(kind: type[Exception]) -> None:
        raise kind("no")

    def work() -> None:
        time.sleep(0.2)
        done.append(True)

    with pytest.raises(ServerError, match="no"):
        side_by_side({"a": work, "b": lambda: fail(ServerError), "c": lambda: fail(ValueError)})
    assert done == [True]
    assert "b: ServerError: no" in caplog.text and "c: ValueError: no" in caplog.text


def test_servers_that_differ_are_named_with_what_differs() -> None:
    one = {"instance_id": "x", "protocol": 3, "dtype": "float32", "max_model_len": 512}
    check_alike({"a": one})
    check_alike({"a": one, "b": {**one, "instance_id": "y", "max_lora_rank": 64}})
    with pytest.raises(
        ServerError, match="differ in length of a conversation: a has 512, c has 1024"
    ):
        check_alike(
            {"a": one, "b": {**one, "instance_id": "y"}, "c": {**one, "max_model_len": 1024}}
        )
    with pytest.raises(ServerError, match="a and b are one server"):
        check_alike({"a": one, "b": dict(one)})


def test_two_servers_play_what_one_plays_in_the_order_of_the_request(
    apps: tuple[RunningApp, RunningApp], fleet: Callable[..., FleetLink], tmp_path: Path
) -> None:
    both, alone = fleet(), fleet(apps[:1])
    assert isinstance(make_link(alone.settings, tmp_path), ServerLink)
    assert isinstance(make_link(both.settings, tmp_path), FleetLink)
    both.connect(0)
    both.push(None, PLAYERS, 7)
    assert [app.store.versions() for app in apps] == [{"player_0": 7, "player_1": 7}] * 2
    shared = both.play(TASKS, PLAYERS, 7)
    assert instances(shared.groups) == [{"first"}, {"second"}, {"first"}, {"second"}, {"first"}]
    assert [group[0].seed for group in shared.groups] == [0, 1, 2, 3, 4]
    assert [[game.game for game in group] for group in shared.groups] == [[0, 1]] * 5
    assert both.spec_hashes == [shared.groups[0][0].spec_hash]
    assert both.server_facts["model_fingerprint"] == "f" * 16
    both.disconnect()
    assert [
        app.store.ownership.session is not None and app.store.ownership.session.released
        for app in apps
    ] == [
        True,
        True,
    ]
    alone.connect(7)
    alone.push(None, PLAYERS, 7)
    single = alone.play(TASKS, PLAYERS, 7)
    assert told(single.groups) == told(shared.groups)
    assert (
        0
        < single.cached_tokens
        == shared.cached_tokens
        < single.prompt_tokens
        == shared.prompt_tokens
    )


def test_a_server_that_is_not_there_or_of_another_model_is_named_and_no_session_is_opened(
    apps: tuple[RunningApp, RunningApp], fleet: Callable[..., FleetLink]
) -> None:
    with running_app(instance_id="third", model_fingerprint="0" * 16) as third:
        link = fleet((apps[0], third))
        with pytest.raises(
            ServerError,
            match=rf"differ in base model: .*{apps[0].port} has f+, .*{third.port} has 0+",
        ):
            link.connect(0)
        assert [app.store.ownership.session for app in (apps[0], third)] == [None, None]
    with pytest.raises(ServerGoneError, match=rf"127\.0\.0\.1:{third.port}: identity: no answer"):
        link.connect(0)


def test_a_server_that_refuses_is_named_and_the_others_are_free_for_the_next_trainer(
    apps: tuple[RunningApp, RunningApp], fleet: Callable[..., FleetLink]
) -> None:
    with RolloutClient(apps[1].url) as stranger:
        open_session(stranger, apps[1], run_id="outputs/other")
        link = fleet()
        with pytest.raises(ServerError, match=rf":{apps[1].port}: .*works for run outputs/other"):
            link.connect(0)
    assert all(one.client.session_timeout is None for one in link.links.values())
    fleet(apps[:1]).connect(0)


def test_a_server_that_dies_is_waited_for_by_name_and_given_the_adapters_and_its_own_games(
    apps: tuple[RunningApp, RunningApp],
    fleet: Callable[..., FleetLink],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with contextlib.ExitStack() as stack:
        mortal = stack.enter_context(running_app(instance_id="mortal"))
        port = mortal.port
        link = fleet((apps[0], mortal))
        link.connect(0)
        link.push(None, PLAYERS, 7)
        expected = told(link.play(TASKS, PLAYERS, 7).groups)
        mortal.engine.seconds = 30.0
        samples, results = apps[0].engine.num_samples, []
        player = threading.Thread(
            target=lambda: results.append(link.play(TASKS, PLAYERS, 7)), daemon=True
        )
        player.start()
        assert wait_until(lambda: mortal.scheduler.games_in_flight >= 4, 60)
        mortal.engine.is_dead = True
        assert wait_until(
            lambda: f"waiting for the rollout server at http://127.0.0.1:{port}" in caplog.text, 60
        )
        stack.close()
        with running_app(port=port, instance_id="reborn") as reborn:
            player.join(60)
            assert reborn.store.versions() == {"player_0": 7, "player_1": 7}
            assert told(results[0].groups) == expected
            assert instances(results[0].groups) == [
                {"first"},
                {"reborn"},
                {"first"},
                {"reborn"},
                {"first"},
            ]
            assert link.links[f"127.0.0.1:{port}"].incidents.counts["server_replaced"] == 1
            # The other server was not asked again: twice the games' replies in all, not three
            # times.
            assert apps[0].engine.num_samples == 2 * samples
            link.disconnect()
