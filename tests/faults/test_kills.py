"""kill -9 of server, serving process, engine core and trainer; a run goes on every time.

The moments are drawn at random.
"""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from running import Training, engine_core, serving_process

from conftest_e2e import SERVER_SECONDS, Server, death_signals, start_server, stop
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.runs.checkpoints import find_checkpoint
from waiting import wait_until

pytestmark = pytest.mark.e2e


class KillableServer:
    """A server of its own that a test may replace."""

    def __init__(self, model: Path, folder: Path) -> None:
        """Start it."""
        self._model = model
        self._folder = folder
        log = folder / "server.log"
        self.server = start_server(model, log, HANABI_ENGINE_RESTARTS=100, HANABI_ENGINE_TIMEOUT=20)

    def replace(self, number: int) -> None:
        """Start a server on the port of the one that was killed."""
        self.server = start_server(
            self._model,
            self._folder / f"server-{number}.log",
            port=self.server.port,
            HANABI_ENGINE_RESTARTS=100,
        )


@pytest.fixture
def killable(tiny_model: Path, tmp_path: Path) -> Iterator[KillableServer]:
    """A server that this test alone uses."""
    killable = KillableServer(tiny_model, tmp_path)
    yield killable
    assert stop(killable.server.process) == []


def assert_every_step_once(training: Training) -> None:
    expected = list(range(1, training.last_step() + 1))
    assert training.steps() == expected, "each step's games are consumed exactly once"


def finish(training: Training, replaced: int) -> None:
    """Make two more steps, stop, and check the records of a run whose server was replaced."""
    training.more_steps(2)
    assert training.interrupt() == 130, training.text[-3000:]
    assert_every_step_once(training)
    assert training.incidents("server_replaced") == replaced
    assert find_checkpoint(training.folder).manifest.step == training.last_step()


def test_a_run_goes_on_after_kill_9_of_the_server(
    killable: KillableServer, tmp_path: Path, injection: Callable[..., object]
) -> None:
    training = Training(killable.server, tmp_path / "train")
    training.wait_for_step(2)
    row = injection(
        "kill -9 of the server at a random moment",
        short=2,
        long=20,
        lost="the games in flight, played again",
    )
    for number in row:
        time.sleep(row.rng.uniform(0.0, 3.0))
        if number % 2 == 0:
            # Its parent starts it again, on the same port.
            serving_process(killable.server).kill()
            training.more_steps(2)
            assert killable.server.process.poll() is None
        else:
            alive = stop(killable.server.process, signal.SIGKILL)
            assert alive == [], "the engine outlived its server"
            killable.replace(number)
            training.more_steps(2)
    finish(training, replaced=row.times)


def test_a_run_goes_on_after_an_engine_that_dies_or_hangs(
    killable: KillableServer, tmp_path: Path, injection: Callable[..., object]
) -> None:
    server = killable.server
    training = Training(server, tmp_path / "train")
    training.wait_for_step(2)
    row = injection(
        "kill -9 or SIGSTOP of the engine at a random moment",
        short=2,
        long=24,
        lost="the games in flight",
    )
    num_hangs = 0
    for number in row:
        time.sleep(row.rng.uniform(0.0, 3.0))
        core = engine_core(server)
        workers = core.children(recursive=True) or [core]
        if number % 3 == 0:
            core.kill()
        elif number % 3 == 1:
            workers[0].suspend()
            num_hangs += 1
        else:
            core.suspend()
            num_hangs += 1
        training.more_steps(2)
        log = server.log.read_text()
        assert log.count("engine hung: it has not answered for 20 s") >= num_hangs
    assert server.process.poll() is None, "the server's parent starts it again and stays"
    finish(training, replaced=row.times)


def test_tensor_parallel_workers_end_with_their_engine_core_and_with_the_server(
    tiny_model: Path, tmp_path: Path
) -> None:
    server = start_server(
        tiny_model,
        tmp_path / "server.log",
        VLLM_TENSOR_PARALLEL_SIZE=2,
        # A core for each worker.
        VLLM_CPU_OMP_THREADS_BIND="0|1",
        HANABI_ENGINE_RESTARTS=1,
    )
    signals = death_signals(server)
    assert len(signals) == 3, signals
    assert set(signals.values()) == {signal.SIGKILL}, signals
    core = engine_core(server)
    workers = core.children(recursive=True)
    core.kill()
    deadline = time.monotonic() + SERVER_SECONDS
    while server.log.read_text().count("ready on http") < 2:
        assert time.monotonic() < deadline, server.log.read_text()[-3000:]
        assert server.process.poll() is None, server.log.read_text()[-3000:]
        time.sleep(0.5)
    for worker in workers:
        assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert len(death_signals(server)) == 3
    alive = stop(server.process, signal.SIGKILL)
    assert alive == [], "the engine outlived its server"


def test_a_run_is_resumable_after_kill_9_of_the_trainer(
    server: Server, tmp_path: Path, injection: Callable[..., object]
) -> None:
    folder = tmp_path / "train"
    client = RolloutClient(server.url)
    row = injection(
        "kill -9 of the trainer at a random moment",
        short=2,
        long=20,
        lost="the step that was being made",
    )
    newest = 0
    for number in row:
        training = Training(server, folder, RESUME="latest")
        if number % 4 != 0:
            training.more_steps(1)
            time.sleep(row.rng.uniform(0.0, 2.0))
        else:
            # Also while it starts, resumes and saves for the first time.
            time.sleep(row.rng.uniform(1.0, 30.0))
        training.kill()
        if training.steps():
            step = find_checkpoint(folder).manifest.step
            assert step >= newest, "a checkpoint that was complete is lost"
            newest = step
        is_idle = wait_until(lambda: not client.health()["games_in_flight"], 30)
        assert is_idle, "games of a client that is gone are not cancelled"
    last = Training(server, folder, RESUME="latest")
    last.more_steps(2)
    assert last.interrupt() == 130
    assert_every_step_once(last)


def test_the_second_of_two_trainers_is_refused_and_the_first_goes_on(
    server: Server, tmp_path: Path, injection: Callable[..., object]
) -> None:
    first = Training(server, tmp_path / "first")
    first.wait_for_step(1)
    row = injection("two trainers on one server", short=1, long=3, lost="the second one's start")
    for number in row:
        second = Training(server, tmp_path / f"second-{number}")
        assert second.process.wait(timeout=300) == 2
        assert "409" in second.text, second.text[-3000:]
        assert str(tmp_path / "first") in second.text, second.text[-3000:]
        first.more_steps(1)
    assert first.interrupt() == 130
    again = Training(server, tmp_path / "again", MAX_STEPS=1)
    assert again.process.wait(timeout=300) == 0, again.text[-3000:]


def test_a_run_goes_on_after_a_server_that_stood_still(
    server: Server, tmp_path: Path, injection: Callable[..., object]
) -> None:
    training = Training(server, tmp_path / "train")
    training.wait_for_step(2)
    row = injection(
        "the server stands still (SIGSTOP) and goes on", short=1, long=5, lost="the time"
    )
    for _ in row:
        serving_process(server).suspend()
        time.sleep(row.rng.uniform(3.0, 12.0))
        serving_process(server).resume()
        training.more_steps(2)
    assert training.interrupt() == 130
    assert training.incidents("server_replaced") == 0
