"""A training run on a server full of guests: every step complete, every game counted once."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from running import Training, adapter_for, engine_core

from conftest_e2e import VARIABLES, Server
from fake_engine import BASE, task
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.errors import ServerError
from server_app import PEFT_CONFIG, PLAYERS

pytestmark = pytest.mark.e2e

NUM_GAMES = int(VARIABLES["HANABI_TASKS_PER_STEP"]) * int(VARIABLES["NUM_GENERATIONS"])
_GUESTS = 17
"""Two of them evaluate."""


class Guests:
    """Rollouts of the base model and of the versions that are served when they begin."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self.games = 0
        self.versions: set[int] = set()
        """Versions that evaluations finished with."""
        self.older = 0
        """Evaluations whose version was no longer the served one at their end."""
        self.problems: list[str] = []
        visits = [self._visit] * (_GUESTS - 2) + [self._evaluate] * 2
        self._threads = [
            threading.Thread(target=self._again, args=(visit,), daemon=True) for visit in visits
        ]

    def __enter__(self) -> "Guests":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def _again(self, visit: Callable[[RolloutClient], None]) -> None:
        with RolloutClient(self._server.url) as client:
            while not self._stop.is_set():
                try:
                    visit(client)
                except ServerError as error:
                    # The version was replaced between two requests, which an evaluation is told.
                    if "push it first" not in str(error):
                        self.problems.append(str(error))
                        self._stop.wait(1.0)

    def _visit(self, client: RolloutClient) -> None:
        self._play(client, BASE, num_games=8)

    def _evaluate(self, client: RolloutClient) -> None:
        versions = client.identity()["versions"]
        if versions:
            self._play(client, [f"{player}@{versions[player]}" for player in PLAYERS], num_games=64)
            self.versions.add(versions["player_0"])
            self.older += client.identity()["versions"] != versions

    def _play(self, client: RolloutClient, seats: Sequence[str], *, num_games: int) -> None:
        result = client.play(
            [task(seed) for seed in range(4)],
            num_games=num_games,
            max_tokens=4,
            temperature=1.0,
            seats=seats,
        )
        assert not result.dropped
        self.games += sum(map(len, result.groups))


@contextlib.contextmanager
def _frozen(server: Server) -> Iterator[None]:
    core = engine_core(server)
    family = [core, *core.children(recursive=True)]
    for one in family:
        one.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for one in family:
            one.send_signal(signal.SIGCONT)


def _lend_huge(server: Server) -> None:
    """Lend an adapter whose values are finite and whose product with alpha / r is not."""
    body, targets = adapter_for(server.model, 0.0, 3e38)
    refusal = pytest.raises(
        ServerError, match=r"422: .*lora_B.weight' times lora_alpha / r \(125000\) is not finite"
    )
    with RolloutClient(server.url) as client, refusal:
        client.upload_guest(1, body, {**PEFT_CONFIG, "lora_alpha": 1e6, "target_modules": targets})


def test_a_run_among_guests_is_complete(
    server: Server, tmp_path: Any, injection: Callable[..., Any]
) -> None:
    row = injection(
        "a run among 17 guests, a huge adapter, a frozen engine", short=1, long=30, lost="the time"
    )
    is_long = row.times > 1
    freeze, least = (30.0, 120.0) if is_long else (8.0, 0.0)
    training = Training(server, tmp_path / "train", HANABI_EPISODES_EVERY=1)
    training.wait_for_step(1)
    with Guests(server) as guests:
        for _ in row:
            end = time.monotonic() + least
            _lend_huge(server)
            training.more_steps(2, seconds=900)
            with _frozen(server), RolloutClient(server.url) as client:
                time.sleep(freeze)
                health = client.health()
                assert health["status"] == "ok" and health["engine_silence_s"] > 0, health
            training.more_steps(2, seconds=900)
            while not guests.older or time.monotonic() < end:
                training.more_steps(1, seconds=900)
        assert guests.games > 0 and not guests.problems, guests.problems[:3]
    assert training.interrupt() == 130, training.text[-3000:]
    steps = training.steps()
    assert steps == list(range(1, steps[-1] + 1))
    for step in steps:
        # A step's games have the number of the steps before it.
        lines = (
            (training.folder / "episodes" / f"step_{step - 1:06d}.jsonl").read_text().splitlines()
        )
        games = [json.loads(line) for line in lines]
        assert (
            len({(game["suite"], game["seed"], game["game"]) for game in games})
            == len(games)
            == NUM_GAMES
        ), step
    kinds = ("server_gone", "server_replaced", "games_dropped", "groups_dropped")
    assert {kind: training.incidents(kind) for kind in kinds} == dict.fromkeys(kinds, 0), (
        "the run noticed nothing"
    )
    row.name += (
        f" ({steps[-1]} steps, {guests.games} games of guests, {guests.older} evaluations "
        "outlived a version)"
    )
