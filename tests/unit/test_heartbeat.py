"""Signs of life beside the training."""

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from hanabi_grpo.client.heartbeat import Heartbeat
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.errors import ServerError
from server_app import RunningApp, running_app, session_body


def _open(client: RolloutClient, app: RunningApp, run_id: str) -> None:
    given = session_body(app.identity, run_id=run_id)
    client.open_session(**{name: value for name, value in given.items() if name not in ("protocol", "trainer_id")})


def _wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_beating_trainer_keeps_the_server_far_beyond_its_patience() -> None:
    with running_app(session_timeout=1.0) as app, RolloutClient(app.url) as client, RolloutClient(app.url) as other:
        _open(client, app, "long step")
        beat = Heartbeat.from_client(client)
        beat.start()
        time.sleep(2.0)
        with pytest.raises(ServerError, match="409: this server works for run long step"):
            _open(other, app, "other")
        beat.stop()
        assert beat.beats >= 4
        assert (beat.lost, beat.missed) == ("", "")


def test_a_trainer_that_was_replaced_learns_it_and_beats_no_more() -> None:
    with running_app(session_timeout=0.2) as app, RolloutClient(app.url) as other:
        client = RolloutClient(app.url)
        _open(client, app, "slow")
        time.sleep(0.3)
        _open(other, app, "fast")
        beat = Heartbeat(client.url, client.headers, every=0.02)
        beat.start()
        _wait_for(lambda: not beat._thread.is_alive())
        assert "run slow is not the one that this server works for (fast)" in beat.lost
        assert app.url in beat.lost
        client.close()


def test_a_server_that_is_gone_or_new_is_counted_and_is_no_takeover() -> None:
    with running_app() as app:
        client = RolloutClient(app.url)
        _open(client, app, "run")
        port = app.port
        beat = Heartbeat(client.url, client.headers, every=0.05)
        beat.start()
        _wait_for(lambda: beat.beats)
    _wait_for(lambda: "ConnectError" in beat.missed)
    with running_app(port=port) as app:
        _wait_for(lambda: "404" in beat.missed)
        assert beat.lost == ""
        again = RolloutClient(app.url)
        again.trainer_id = client.trainer_id
        beats = beat.beats
        with again:
            _open(again, app, "run")
            _wait_for(lambda: beat.beats > beats)
            beat.stop()
        client.close()


def test_stopping_waits_for_no_sign_of_life_even_when_the_server_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        waiting = Heartbeat(url, {}, every=30.0)
        waiting.start()
        beat = Heartbeat(url, {}, every=2.5)
        beat.start()
        connection, _ = listener.accept()
        start = time.monotonic()
        beat.stop()
        waiting.stop()
        assert time.monotonic() - start < 30.0
        assert beat._thread.is_alive(), "the sign that was on its way is left to itself"
        connection.close()
