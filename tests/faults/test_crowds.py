"""A server that may open few files, among connections that say nothing."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_engine import task
from hanabi_grpo.client.rollout_client import RolloutClient
from server_app import PEFT_CONFIG, PLAYERS, adapter_bytes, make_identity, session_body

TESTS = Path(__file__).parents[1]
SPARE = 120
"""Descriptors of a crowded server beside those that it needs; 1024 are usual."""


class Crowded:
    """The running server."""

    identity = make_identity()

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self.process = process
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> str:
        """End it; returns what it wrote to its log."""
        _, log = self.process.communicate(timeout=20)
        return log


@pytest.fixture
def crowded(start_process: Callable[..., "subprocess.Popen[str]"]) -> Iterator[Crowded]:
    """A server of a process that may open few files."""
    process = start_process(
        [sys.executable, str(TESTS / "crowded_server.py"), str(SPARE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    yield Crowded(process, int(process.stdout.readline()))


def test_idle_connections_without_end_stop_neither_pushes_nor_games_and_flood_no_log(
    crowded: Crowded,
) -> None:
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", crowded.port)))
            for _ in range(SPARE + 10)
        ]
        client = stack.enter_context(RolloutClient(crowded.url))
        start = time.monotonic()
        fields = session_body(crowded.identity, run_id=client.trainer_id)
        del fields["protocol"], fields["trainer_id"]
        client.open_session(**fields)
        client.push(1, {name: (adapter_bytes(), PEFT_CONFIG) for name in PLAYERS})
        seats = [f"{name}@1" for name in PLAYERS]
        games = client.play([task(1)], num_games=8, max_tokens=4, temperature=1.0, seats=seats)
        assert len(games.groups[0]) == 8
        assert time.monotonic() - start < 10
        assert len(idle) == SPARE + 10
    lines = crowded.end().splitlines()
    assert len(lines) < 20, lines[:20]
    assert "Traceback" not in "\n".join(lines)
