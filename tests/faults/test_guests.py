"""A training run on a server full of guests: every step complete, every game counted once."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from running import Training, adapter_for, engine_core

from conftest_e2e import VARIABLES, Server, read_episodes
from fake_engine import BASE, task
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.errors import ServerError
from server_app import PEFT_CONFIG, PLAYERS

pytestmark = pytest.mark.e2e

NUM_GAMES = int(VARIABLES["HANABI_TASKS_PER_STEP"]) * int(VARIABLES["NUM_GENERATIONS"])
"""Games of a step."""
_PLAYING_GUESTS = 15
"""They play the base model."""
_EVALUATING_GUESTS = 2
"""They play the served version."""
_MAX_TOKENS = 4


class Guests:
    """Rollouts of the base model and of the versions that are served when they begin."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self.games = 0
        """Games that all guests played."""
        self.outlived = 0
        """Evaluations whose version was no longer the served one at their end."""
        self.problems: list[str] = []
        """Errors that no guest should meet."""
        self._threads = []
        for _ in range(_PLAYING_GUESTS):
            self._add_thread(self._play_base_model)
        for _ in range(_EVALUATING_GUESTS):
            self._add_thread(self._evaluate)

    def _add_thread(self, visit: Callable[[RolloutClient], None]) -> None:
        thread = threading.Thread(target=self._repeat, args=(visit,), daemon=True)
        self._threads.append(thread)

    def __enter__(self) -> "Guests":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def _repeat(self, visit: Callable[[RolloutClient], None]) -> None:
        with RolloutClient(self._server.url) as client:
            while not self._stop.is_set():
                try:
                    visit(client)
                except ServerError as error:
                    # An evaluation whose version was replaced between two requests gets this one.
                    if "push it first" not in str(error):
                        self.problems.append(str(error))
                        self._stop.wait(1.0)

    def _play_base_model(self, client: RolloutClient) -> None:
        self._play(client, BASE, num_games=8)

    def _evaluate(self, client: RolloutClient) -> None:
        versions = client.identity()["versions"]
        if not versions:
            return
        seats = [f"{player}@{versions[player]}" for player in PLAYERS]
        self._play(client, seats, num_games=64)
        if client.identity()["versions"] != versions:
            self.outlived += 1

    def _play(self, client: RolloutClient, seats: Sequence[str], *, num_games: int) -> None:
        result = client.play(
            [task(seed) for seed in range(4)],
            num_games=num_games,
            max_tokens=_MAX_TOKENS,
            temperature=1.0,
            seats=seats,
        )
        assert not result.dropped
        for group in result.groups:
            self.games += len(group)


@contextlib.contextmanager
def _frozen(server: Server) -> Iterator[None]:
    core = engine_core(server)
    family = [core, *core.children(recursive=True)]
    for process in family:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in family:
            process.send_signal(signal.SIGCONT)


def _upload_huge_adapter(server: Server) -> None:
    """Upload a guest adapter whose values are finite and whose product with alpha / r is not."""
    weights, target_modules = adapter_for(server.model, 0.0, 3e38)
    config = {**PEFT_CONFIG, "lora_alpha": 1e6, "target_modules": target_modules}
    message = r"422: .*lora_B.weight' times lora_alpha / r \(125000\) is not finite"
    refusal = pytest.raises(ServerError, match=message)
    with RolloutClient(server.url) as client, refusal:
        client.upload_guest(1, weights, config)


def test_a_run_among_guests_is_complete(
    server: Server, tmp_path: Path, injection: Callable[..., Any]
) -> None:
    row = injection(
        "a run among 17 guests, a huge adapter, a frozen engine", short=1, long=30, lost="the time"
    )
    is_long = row.times > 1
    freeze_seconds = 30.0 if is_long else 8.0
    least_seconds = 120.0 if is_long else 0.0
    num_steps = 2 if is_long else 1
    training = Training(server, tmp_path / "train", HANABI_EPISODES_EVERY=1)
    training.wait_for_step(1)
    with Guests(server) as guests:
        for _ in row:
            end = time.monotonic() + least_seconds
            _upload_huge_adapter(server)
            training.more_steps(num_steps, seconds=900)
            with _frozen(server), RolloutClient(server.url) as client:
                time.sleep(freeze_seconds)
                health = client.health()
                assert health["status"] == "ok", health
                assert health["engine_silence_s"] > 0, health
            training.more_steps(num_steps, seconds=900)
            while not guests.outlived or time.monotonic() < end:
                training.more_steps(1, seconds=900)
        assert guests.games > 0
        assert not guests.problems, guests.problems[:3]
    assert training.interrupt() == 130, training.text[-3000:]
    last_step = training.last_step()
    assert training.steps() == list(range(1, last_step + 1))
    for step in training.steps():
        # A step's games are recorded under their version, the number of steps before it.
        episodes = read_episodes(training.folder, version=step - 1)
        games = {(episode.suite, episode.seed, episode.game) for episode in episodes}
        assert len(games) == NUM_GAMES, step
        assert len(episodes) == NUM_GAMES, step
    for kind in ("server_gone", "server_replaced", "games_dropped", "groups_dropped"):
        assert training.incidents(kind) == 0, "the guests disturbed the run"
    row.name += (
        f" ({last_step} steps, {guests.games} games of guests, {guests.outlived} evaluations "
        "outlived a version)"
    )
