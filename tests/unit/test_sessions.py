"""Which trainer the server works for: with a fake clock, on the real app, and by heartbeats."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from hanabi_grpo.client.heartbeat import Heartbeat
from hanabi_grpo.client.rollout_client import ClientTimeouts, RolloutClient
from hanabi_grpo.errors import ServerError, SessionError, VersionError
from hanabi_grpo.rollout.handshake import read_session_headers, session_headers
from hanabi_grpo.runs.run_folder import public_run
from hanabi_grpo.server.sessions import Ownership, versions_to_drop
from server_app import (
    PEFT_CONFIG,
    PLAYERS,
    RunningApp,
    adapter_bytes,
    open_session,
    running_app,
    session_body,
    upload_headers,
)
from store_parts import A, B, wanted
from waiting import wait_until


def test_the_log_that_every_client_may_read_names_a_run_by_its_public_digest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hanabi_grpo")
    run_id = "/home/somebody/secret project/outputs/run"
    with running_app() as app, RolloutClient(app.url) as client:
        monkeypatch.setattr(logging.getLogger("hanabi_grpo"), "handlers", [app.ring])
        open_session(client, app, run_id=run_id)
        client.release()
        with RolloutClient(app.url) as other:
            open_session(other, app, run_id="another run")
        answer = httpx.get(f"{app.url}/log/", trust_env=False)
    lines = answer.json()["lines"]
    assert "secret project" not in answer.text
    assert any(f"now serving run {public_run(run_id)} (trainer " in line for line in lines)
    assert any(
        f"run {public_run(run_id)} (trainer " in line and line.endswith("left") for line in lines
    )


@pytest.fixture(scope="module")
def app() -> Iterator[RunningApp]:
    with running_app() as running:
        yield running


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def owned_server() -> tuple[Ownership, FakeClock]:
    """A server that works for trainer A of the run "run"."""
    clock = FakeClock()
    ownership = Ownership(60.0, clock=clock)
    ownership.refuse_stranger(wanted())
    ownership.open(wanted())
    return ownership, clock


def test_a_stranger_reads_whose_server_it_is_since_when_and_the_ways_out() -> None:
    ownership, clock = owned_server()
    clock.now += 20
    with pytest.raises(SessionError) as caught:
        ownership.refuse_stranger(wanted("other", B))
    assert str(caught.value) == (
        "this server serves run run, last heard from 20 s ago. One trainer at a time: stop it, "
        "or, if it is gone, wait 40 s; or start a second server on another PORT."
    )
    # A resumed trainer of the run: the lock on the run folder says that the first one is gone.
    ownership.refuse_stranger(wanted("run", B))
    ownership.refuse_stranger(wanted("another run of the same process", A))


def test_a_trainer_that_knows_a_runs_name_but_not_its_secret_is_a_stranger() -> None:
    ownership, clock = owned_server()
    thief = wanted("run", B, secret="6" * 64)
    with pytest.raises(
        SessionError, match=r"0 s ago; this trainer has its name but not the secret of its folder"
    ):
        ownership.refuse_stranger(thief)
    clock.now += 61
    # After the timeout anybody may come, but as another run: what this one pushed is not the
    # thief's.
    ownership.refuse_stranger(thief)
    assert versions_to_drop(ownership.session, thief, {"player_0": 57}) == {"player_0": 57}
    assert ownership.session is not None
    assert not ownership.session.is_of_run(thief)
    assert ownership.session.is_of_run(wanted("run", B))
    ownership.open(thief)
    with pytest.raises(
        SessionError, match="a second trainer process of the same run took over"
    ) as caught:
        ownership.check(session_headers("run", A))
    assert A not in str(caught.value)
    assert B not in str(caught.value)


def test_every_request_of_the_owner_is_a_sign_of_life_and_silence_lets_others_in() -> None:
    ownership, clock = owned_server()
    for _ in range(5):
        clock.now += 50
        ownership.check(session_headers("run", A))
    with pytest.raises(SessionError):
        ownership.refuse_stranger(wanted("other", B))
    clock.now += 60
    assert ownership.is_alive
    clock.now += 1
    assert not ownership.is_alive
    ownership.check(session_headers("run", A))
    assert ownership.is_alive, "a late owner goes on as long as nobody took over"
    clock.now += 61
    ownership.refuse_stranger(wanted("other", B))
    ownership.open(wanted("other", B))
    with pytest.raises(
        SessionError, match=r"run run is not the one that this server works for \(other\)"
    ):
        ownership.check(session_headers("run", A))


def test_a_released_server_is_free_at_once_and_its_trainer_must_open_again() -> None:
    ownership, _ = owned_server()
    ownership.release(session_headers("run", A))
    ownership.release(session_headers("run", A))
    with pytest.raises(
        SessionError, match="run run has released this server; open a session again"
    ):
        ownership.check(session_headers("run", A))
    ownership.refuse_stranger(wanted("other", B))
    ownership.open(wanted())
    ownership.check(session_headers("run", A))


def test_without_a_session_every_request_says_so_and_a_heartbeat_is_404(app: RunningApp) -> None:
    with pytest.raises(SessionError, match="no trainer has opened a session on this server"):
        Ownership(60.0).check(session_headers("run", A))
    # A new server process is no takeover, which is 409: the trainer has to be introduced again.
    answer = httpx.post(
        f"{app.url}/session/heartbeat", headers=session_headers("run", A), trust_env=False
    )
    assert answer.status_code == 404
    assert "open one first" in answer.text


def test_a_run_id_travels_in_a_header_whatever_its_letters() -> None:
    for run_id in ("/runs/jürgen 1/a%2Fb", "line\nbreak", "漢字", " both ends "):
        assert read_session_headers(httpx.Headers(session_headers(run_id, A))) == (run_id, A)


def test_a_resumed_trainer_must_name_exactly_the_newer_versions_that_it_replaces() -> None:
    ownership, _ = owned_server()
    served = {"player_0": 57, "player_1": 57}
    for replaces in (None, {}, {"player_0": 57}, {"player_0": 56, "player_1": 57}):
        resumed = wanted(trainer_id=B, version=50, replaces=replaces)
        with pytest.raises(
            VersionError,
            match=r"holds player_0@57, player_1@57 of this run; the trainer resumes at 50: steps "
            r"51-57 were not saved",
        ):
            versions_to_drop(ownership.session, resumed, served)
    resumed = wanted(version=50, replaces=served)
    assert versions_to_drop(ownership.session, resumed, served) == served


def test_what_is_not_newer_stays_served_for_the_same_run_and_for_no_other() -> None:
    ownership, _ = owned_server()
    served = {"player_0": 57, "player_1": 57}
    assert versions_to_drop(ownership.session, wanted(version=57), served) == {}
    assert versions_to_drop(ownership.session, wanted("other", version=57), served) == served
    assert versions_to_drop(None, wanted(), served) == {}
    # Another process of the run that starts over may have another seed; the same one keeps all.
    start = {"player_0": 0, "player_1": 0}
    restarted = wanted(trainer_id=B, version=0)
    assert versions_to_drop(ownership.session, restarted, start) == start
    assert versions_to_drop(ownership.session, wanted(version=0), start) == {}


@contextmanager
def trainer_of(app: RunningApp, run_id: str, **other: Any) -> Iterator[RolloutClient]:
    """A trainer with a session of a run."""
    with RolloutClient(app.url, timeouts=ClientTimeouts(answer=10)) as client:
        open_session(client, app, run_id=run_id, **other)
        yield client


def adapters_of(value: float) -> dict[str, tuple[bytes, dict[str, Any]]]:
    """Weights and configuration of each player's adapter."""
    return {name: (adapter_bytes(value), PEFT_CONFIG) for name in PLAYERS}


def both_at(version: int) -> dict[str, int]:
    return dict.fromkeys(PLAYERS, version)


def client_as(app: RunningApp, run_id: str, trainer_id: str) -> RolloutClient:
    """A client that has not noticed that its session is over."""
    client = RolloutClient(app.url)
    client._http.headers.update(session_headers(run_id, trainer_id))
    return client


def test_a_stranger_can_neither_push_nor_commit_nor_play_versions_nor_release(
    app: RunningApp,
) -> None:
    with trainer_of(app, "owner") as owner:
        owner.push(3, adapters_of(0.3))
        before = dict(app.engine.loaded)
        for stranger in (
            client_as(app, "owner", B),
            client_as(app, "stranger", owner.trainer_id),
        ):
            with pytest.raises(ServerError, match=r"409: run .* is not the one"):
                stranger.push(4, adapters_of(0.4))
            for method, path in (
                ("POST", "/adapters/commit?version=3"),
                ("DELETE", "/session/"),
                ("POST", "/session/heartbeat"),
            ):
                answer = stranger._http.request(method, path)
                assert answer.status_code == 409, path
            tasks = []
            for game in session_body(app.identity)["games"]:
                tasks.append({"env_config": game["env_config"], "suite": "eval", "seed": 0})
            seats = [f"{name}@3" for name in PLAYERS]
            with pytest.raises(ServerError, match="409: run"):
                stranger.play(tasks, num_games=1, max_tokens=4, temperature=1.0, seats=seats)
        assert owner.identity()["versions"] == both_at(3)
        assert app.engine.loaded == before
        owner.push(4, adapters_of(0.4))


def test_an_upload_that_a_takeover_overtakes_is_refused(app: RunningApp) -> None:
    body = adapter_bytes(0.7)
    with trainer_of(app, "slow upload") as slow:
        headers = {
            **slow.headers,
            **upload_headers(body),
            "content-length": str(len(body)),
            "host": "localhost",
        }
        lines = ["PUT /adapters/player_0?version=1 HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines) + "\r\n\r\n"
        with app.connect() as connection:
            connection.sendall(head.encode() + body[:100])
            slow.identity()
            slow.release()
            with trainer_of(app, "quick"):
                connection.sendall(body[100:])
                answer = ""
                while not answer.endswith("}"):
                    answer += connection.recv(65536).decode()
                assert answer.startswith("HTTP/1.1 409")
                # Which of the two it is depends on whether the head was read before the other
                # trainer came.
                is_other = "run slow upload is not the one that" in answer
                is_released = "run slow upload has released" in answer
                assert is_other or is_released
                assert app.store._staged == {}


def test_a_resumed_trainer_finds_its_versions_and_lost_steps_are_dropped_only_when_it_says_so(
    app: RunningApp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with trainer_of(app, "resumed") as first:
        first.push(50, adapters_of(0.5))
    with trainer_of(app, "resumed", version=50) as second:
        assert second.identity()["versions"] == both_at(50)
        loads = len(app.engine.loaded)
        second.push(50, adapters_of(0.5))
        assert len(app.engine.loaded) == loads, "the same bytes are not loaded again"
        second.push(57, adapters_of(0.57))
    third = RolloutClient(app.url)
    with pytest.raises(
        ServerError,
        match="409: this server holds player_0@57, player_1@57 of this run; the trainer re",
    ):
        open_session(third, app, run_id="resumed", version=50)
    with third:
        answer = open_session(third, app, run_id="resumed", version=50, replaces=both_at(57))
        assert answer["versions"] == {}
        assert app.engine.loaded == {}
        assert "session: dropping player_0@57, player_1@57" in caplog.messages
        third.push(51, adapters_of(0.51))
        assert third.identity()["versions"] == both_at(51)


def test_a_beating_trainer_keeps_the_server_far_beyond_its_patience() -> None:
    with (
        running_app(session_timeout=1.0) as app,
        RolloutClient(app.url) as client,
        RolloutClient(app.url) as other,
    ):
        open_session(client, app, run_id="long step")
        beat = Heartbeat.from_client(client)
        beat.start()
        time.sleep(2.0)
        with pytest.raises(ServerError, match="409: this server serves run long step"):
            open_session(other, app, run_id="other")
        beat.stop()
        assert beat.beats >= 4
        assert (beat.lost, beat.missed) == ("", "")


def test_a_trainer_that_was_replaced_learns_it_and_beats_no_more() -> None:
    with running_app(session_timeout=0.2) as app, RolloutClient(app.url) as other:
        client = RolloutClient(app.url)
        open_session(client, app, run_id="slow")
        time.sleep(0.3)
        open_session(other, app, run_id="fast")
        beat = Heartbeat(client.url, client.headers, every=0.02)
        beat.start()
        assert wait_until(lambda: not beat._thread.is_alive())
        assert "run slow is not the one that this server works for (fast)" in beat.lost
        assert app.url in beat.lost
        client.close()


def test_a_server_that_is_gone_or_new_is_counted_and_is_no_takeover() -> None:
    with running_app() as app:
        client = RolloutClient(app.url)
        open_session(client, app, run_id="run")
        port = app.port
        beat = Heartbeat(client.url, client.headers, every=0.05)
        beat.start()
        assert wait_until(lambda: beat.beats)
    assert wait_until(lambda: "ConnectError" in beat.missed)
    with running_app(port=port) as app:
        assert wait_until(lambda: "404" in beat.missed)
        assert beat.lost == ""
        again = RolloutClient(app.url)
        again.trainer_id = client.trainer_id
        beats = beat.beats
        with again:
            open_session(again, app, run_id="run")
            assert wait_until(lambda: beat.beats > beats)
            beat.stop()
        client.close()
