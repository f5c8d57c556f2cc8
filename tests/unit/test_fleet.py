"""Several servers behind one trainer: two real apps on sockets, and the arithmetic of shares."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_engine import task, task_row
from hanabi_grpo.client import rollout_client
from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.fleet import (
    check_alike,
    cut_request,
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
    links: list[FleetLink] = []

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
        for server_link, app in zip(link.links.values(), servers, strict=True):
            client = server_link.client
            monkeypatch.setattr(client, "introduce", introduces(client, app))
        links.append(link)
        return link

    yield make
    for link in links:
        link.disconnect()
        for server_link in link.links.values():
            server_link.client.close()


def introduces(client: RolloutClient, app: RunningApp) -> Callable[..., dict[str, Any]]:
    """Claim to have the app's own model instead of hashing a folder; the rest is the link's."""

    def introduce(settings: Settings, **claims: Any) -> dict[str, Any]:
        return open_session(
            client,
            app,
            run_id=claims["run_id"],
            secret=claims["secret"],
            version=claims["version"],
        )

    return introduce


Groups = list[list[Episode]]
"""Episodes by task."""


def without_server(groups: Groups) -> Groups:
    """The same episodes without a word about the server that played them."""
    return [[replace(episode, instance_id="") for episode in group] for group in groups]


def servers_of(groups: Groups) -> list[set[str]]:
    """Per task the server processes that played it."""
    return [{episode.instance_id for episode in group} for group in groups]


def test_a_list_names_hosts_and_perhaps_their_ports() -> None:
    variables = {
        "VLLM_SERVER_HOST": "gpu7, gpu8:8001,[::1]:8002,[::2]",
        "VLLM_SERVER_PORT": "9000",
    }
    settings = load_settings(variables).settings
    assert [server_url(server) for server in each_server(settings)] == [
        "http://gpu7:9000",
        "http://gpu8:8001",
        "http://[::1]:8002",
        "http://[::2]:9000",
    ]
    assert server_url(settings) == "http://gpu7:9000"


def test_an_ipv6_address_alone_needs_no_brackets() -> None:
    [server] = each_server(Settings(vllm_server_host="::1"))
    assert server_url(server) == "http://[::1]:8000"


@pytest.mark.parametrize(
    "text",
    [
        *("a,", ",", "http://a", "a:0", "a:65536", "a:٣", "a:", "[::1", "[::1]8000", "[]:80"),
        # Two colons do not make an IPv6 address, and what is no host name would end up in a URL.
        *("http://gpu7:8000", "https://gpu7:8000/", "gpu7:8000:9000", "[gpu7]:80", "::1%a/b"),
        *("gpu7/", "me@gpu7", "gpu7?x", "gpu7#x", "gpu 7"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(text: str) -> None:
    message = r"VLLM_SERVER_HOST=.*: a host name or address without http://, or a comma-separated"
    with pytest.raises(SettingsError, match=message):
        load_settings({"VLLM_SERVER_HOST": text})


def test_a_list_that_names_a_server_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match="means a:8000, a:8000: name each server once"):
        each_server(Settings(vllm_server_host="a,a:8000"))


def test_equal_tasks_are_shared_in_turn_and_longer_games_first() -> None:
    assert share_tasks([row.request() for row in TASKS], 2) == [[0, 2, 4], [1, 3]]
    assert share_tasks([TASKS[0].request()], 3) == [[0], [], []]
    assert share_tasks([], 2) == [[], []]
    # A game of the board simple has at most 21 turns, one of laptop 11.
    assert share_tasks([task(0), task(1), task(2, SIMPLE), task(3)], 2) == [[2, 3], [0, 1]]
    # A task that is named twice stays on one server, so that its games are counted on.
    assert share_tasks([task(1), task(1), task(2), task(3)], 2) == [[0, 1], [2, 3]]


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 6))
def test_every_task_is_played_once_and_comes_back_to_its_place(
    seeds: list[int], num_servers: int
) -> None:
    tasks = [task(seed, SIMPLE) if seed % 2 else task(seed) for seed in seeds]
    shares = share_tasks(tasks, num_servers)
    shared = [position for share in shares for position in share]
    assert sorted(shared) == list(range(len(tasks)))
    parts = [[tasks[position] for position in share] for share in shares]
    assert merge_shares(shares, parts) == tasks
    with_seats = [{**row, "seats": ["iggi", "base"]} for row in tasks]
    assert share_tasks(with_seats, num_servers) == shares


def test_a_long_request_is_cut_the_first_part_half_as_long_and_no_task_that_is_named_twice() -> (
    None
):
    tasks = [task(seed) for seed in (0, 1, 2, 3, 0, 4, 5)]
    assert cut_request(tasks, 2, most_games=14) == [[0, 1, 2, 3, 4, 5, 6]]
    assert cut_request(tasks, 2, most_games=8) == [[0, 4], [1, 2, 3, 5], [6]]
    # A task's games are never divided, even where they are more than a request should have.
    assert cut_request(tasks, 2, most_games=2) == [[0, 4], [1], [2], [3], [5], [6]]
    assert cut_request([], 2) == [[]]


def test_very_many_games_come_in_several_requests_and_are_those_of_one(
    apps: tuple[RunningApp, RunningApp],
    fleet: Callable[..., FleetLink],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = fleet(apps[:1])
    link.connect(0)
    link.push(None, PLAYERS, 7)
    in_one = link.play(TASKS, PLAYERS, 7)
    seeds = Counter(apps[0].engine.seeds)
    apps[0].engine.seeds.clear()
    sizes: list[int] = []

    def cut(tasks: Sequence[Mapping[str, Any]], num_games: int) -> list[list[int]]:
        parts = cut_request(tasks, num_games, most_games=4)
        sizes.extend(len(part) for part in parts)
        return parts

    monkeypatch.setattr(rollout_client, "cut_request", cut)
    in_parts = link.play(TASKS, PLAYERS, 7)
    assert sizes == [1, 2, 2]
    assert in_parts == in_one
    assert Counter(apps[0].engine.seeds) == seeds, "the size of a request changes no reply"


def test_a_request_of_several_that_fails_ends_all_and_no_further_one_is_made(
    apps: tuple[RunningApp, RunningApp],
    fleet: Callable[..., FleetLink],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = fleet(apps[:1])
    link.connect(0)
    link.push(None, PLAYERS, 7)
    [server_link] = link.links.values()
    num_asked = 0
    play_one = server_link.client._play

    def count(fields: Mapping[str, Any]) -> RolloutResult:
        nonlocal num_asked
        num_asked += 1
        return play_one(fields)

    monkeypatch.setattr(server_link.client, "_play", count)
    with pytest.raises(ServerError, match="player_0@8 is required"):
        server_link.client.play(
            [task(seed) for seed in range(40)],
            num_games=500,
            max_tokens=4,
            temperature=1.0,
            seats=("player_0@8", "player_1@8"),
        )
    assert num_asked <= 2, "20,000 games are six requests"
    assert apps[0].scheduler.games_played == 0


def test_calls_are_made_at_the_same_time_and_the_first_failure_is_raised_once_all_have_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    barrier = threading.Barrier(3, timeout=20)

    def meet(name: str) -> str:
        barrier.wait()
        return name

    answers = side_by_side({name: partial(meet, name) for name in "abc"})
    assert answers == ["a", "b", "c"]
    done: list[bool] = []

    def fail(kind: type[Exception]) -> None:
        raise kind("no")

    def work() -> None:
        time.sleep(0.2)
        done.append(True)

    with pytest.raises(ServerError, match="no"):
        side_by_side({"a": work, "b": partial(fail, ServerError), "c": partial(fail, ValueError)})
    assert done == [True]
    assert "b: ServerError: no" in caplog.text
    assert "c: ValueError: no" in caplog.text


def test_servers_that_differ_are_named_with_what_differs() -> None:
    first = {"instance_id": "x", "protocol": 3, "dtype": "float32", "max_model_len": 512}
    check_alike({"a": first})
    check_alike({"a": first, "b": {**first, "instance_id": "y", "max_lora_rank": 64}})
    second = {**first, "instance_id": "y"}
    longer = {**first, "max_model_len": 1024}
    message = "differ in length of a conversation: a has 512, c has 1024"
    with pytest.raises(ServerError, match=message):
        check_alike({"a": first, "b": second, "c": longer})
    with pytest.raises(ServerError, match="a and b are the same server"):
        check_alike({"a": first, "b": dict(first)})


def test_two_servers_play_what_one_plays_in_the_order_of_the_request(
    apps: tuple[RunningApp, RunningApp], fleet: Callable[..., FleetLink], tmp_path: Path
) -> None:
    both = fleet()
    alone = fleet(apps[:1])
    assert isinstance(make_link(alone.settings, tmp_path), ServerLink)
    assert isinstance(make_link(both.settings, tmp_path), FleetLink)
    both.connect(0)
    both.push(None, PLAYERS, 7)
    for app in apps:
        assert app.store.versions() == {"player_0": 7, "player_1": 7}
    shared = both.play(TASKS, PLAYERS, 7)
    shared_seeds = Counter([*apps[0].engine.seeds, *apps[1].engine.seeds])
    assert servers_of(shared.groups) == [{"first"}, {"second"}, {"first"}, {"second"}, {"first"}]
    assert [group[0].seed for group in shared.groups] == [0, 1, 2, 3, 4]
    for group in shared.groups:
        assert [episode.game for episode in group] == [0, 1]
    assert both.spec_hashes == [shared.groups[0][0].spec_hash]
    assert both.server_facts["model_fingerprint"] == "f" * 16
    both.disconnect()
    for app in apps:
        session = app.store.ownership.session
        assert session is not None
        assert session.released
    alone.connect(7)
    alone.push(None, PLAYERS, 7)
    apps[0].engine.seeds.clear()
    single = alone.play(TASKS, PLAYERS, 7)
    assert Counter(apps[0].engine.seeds) == shared_seeds, "a server's share changes no reply"
    assert None not in shared_seeds
    assert max(shared_seeds.values()) == 1, "each reply has a seed of its own"
    assert without_server(single.groups) == without_server(shared.groups)
    assert single.cached_tokens == shared.cached_tokens
    assert single.prompt_tokens == shared.prompt_tokens
    assert 0 < single.cached_tokens < single.prompt_tokens


def test_the_digest_of_an_adapter_is_computed_once_for_all_servers(
    apps: tuple[RunningApp, RunningApp],
    fleet: Callable[..., FleetLink],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digested: list[bytes] = []
    compute = rollout_client.weights_digest

    def count(weights: bytes) -> str:
        digested.append(weights)
        return compute(weights)

    monkeypatch.setattr(rollout_client, "weights_digest", count)
    monkeypatch.setattr(fleet_link, "weights_digest", count)
    link = fleet()
    link.connect(0)
    link.push(None, PLAYERS, 7)
    assert digested == [adapter_bytes(0.5)] * len(PLAYERS)
    for app in apps:
        assert app.store.versions() == {"player_0": 7, "player_1": 7}


def test_a_server_that_is_not_there_or_of_another_model_is_named_and_no_session_is_opened(
    apps: tuple[RunningApp, RunningApp], fleet: Callable[..., FleetLink]
) -> None:
    with running_app(instance_id="third", model_fingerprint="0" * 16) as third:
        link = fleet((apps[0], third))
        message = rf"differ in base model: .*{apps[0].port} has f+, .*{third.port} has 0+"
        with pytest.raises(ServerError, match=message):
            link.connect(0)
        assert apps[0].store.ownership.session is None
        assert third.store.ownership.session is None
    with pytest.raises(ServerGoneError, match=rf"127\.0\.0\.1:{third.port}: identity: no answer"):
        link.connect(0)


def test_a_server_that_refuses_is_named_and_the_others_are_free_for_the_next_trainer(
    apps: tuple[RunningApp, RunningApp], fleet: Callable[..., FleetLink]
) -> None:
    with RolloutClient(apps[1].url) as stranger:
        open_session(stranger, apps[1], run_id="outputs/other")
        link = fleet()
        with pytest.raises(ServerError, match=rf":{apps[1].port}: .*serves run outputs/other"):
            link.connect(0)
    for server_link in link.links.values():
        assert server_link.client.session_timeout is None
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
        expected = without_server(link.play(TASKS, PLAYERS, 7).groups)
        mortal.engine.seconds = 30.0
        samples = apps[0].engine.num_samples
        results: list[RolloutResult] = []

        def play() -> None:
            results.append(link.play(TASKS, PLAYERS, 7))

        player = threading.Thread(target=play, daemon=True)
        player.start()
        assert wait_until(lambda: mortal.scheduler.games_in_flight >= 4, 60)
        mortal.engine.is_dead = True
        waiting = f"waiting for the rollout server at http://127.0.0.1:{port}"
        assert wait_until(lambda: waiting in caplog.text, 60)
        stack.close()
        with running_app(port=port, instance_id="reborn") as reborn:
            player.join(60)
            assert reborn.store.versions() == {"player_0": 7, "player_1": 7}
            assert without_server(results[0].groups) == expected
            assert servers_of(results[0].groups) == [
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
