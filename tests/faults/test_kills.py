"""kill -9 of server, serving process, engine core and trainer, at random moments; a run goes on
every time.
"""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from running import Training, engine_core, serving_process

from conftest_e2e import Server, death_signals, start_server, stop
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.runs.checkpoints import find_checkpoint
from waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def killable(tiny_model: Path, tmp_path: Path) -> Iterator[dict[str, Server]]:
    """A server of its own that the test may replace under the key "server"."""
    given = {"HANABI_ENGINE_RESTARTS": 100, "HANABI_ENGINE_TIMEOUT": 20}
    held = {"server": start_server(tiny_model, tmp_path / "server.log", **given)}
    yield held
    assert stop(held["server"].process) == []


def _finish(training: Training, replaced: int) -> None:
    training.more_steps(2)
    assert training.interrupt() == 130, training.text[-3000:]
    steps = training.steps()
    assert steps == list(range(1, steps[-1] + 1)), "each step's games are consumed exactly once"
    assert training.incidents("server_replaced") == replaced
    assert find_checkpoint(training.folder).manifest.step == steps[-1]


def test_a_run_goes_on_after_kill_9_of_the_server(
    killable: dict[str, Server], tiny_model: Path, tmp_path: Path, injection: Callable[..., object]
) -> None:
    training = Training(killable["server"], tmp_path / "train")
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
            serving_process(killable["server"]).kill()
            training.more_steps(2)
            assert killable["server"].process.poll() is None
            continue
        assert stop(killable["server"].process, signal.SIGKILL) == [], (
            "the engine outlived its server"
        )
        killable["server"] = start_server(
            tiny_model,
            tmp_path / f"server-{number}.log",
            port=killable["server"].port,
            HANABI_ENGINE_RESTARTS=100,
        )
        training.more_steps(2)
    _finish(training, replaced=row.times)


def test_a_run_goes_on_after_an_engine_that_dies_or_hangs(
    killable: dict[str, Server], tmp_path: Path, injection: Callable[..., object]
) -> None:
    server = killable["server"]
    training = Training(server, tmp_path / "train")
    training.wait_for_step(2)
    row = injection(
        "kill -9 or SIGSTOP of the engine at a random moment",
        short=2,
        long=24,
        lost="the games in flight",
    )
    for number in row:
        time.sleep(row.rng.uniform(0.0, 3.0))
        core = engine_core(server)
        workers = core.children(recursive=True) or [core]
        (core.kill, workers[0].suspend, core.suspend)[number % 3]()
        training.more_steps(3)
        if number % 3:
            assert (
                server.log.read_text().count("engine hung: it has not answered for 20 s")
                >= number - number // 3
            )
    assert server.process.poll() is None, "the server's parent starts it again and stays"
    _finish(training, replaced=row.times)


def test_tensor_parallel_workers_end_with_their_engine_core_and_with_the_server(
    tiny_model: Path, tmp_path: Path
) -> None:
    # `0|1`: a core for each worker.
    given = {
        "VLLM_TENSOR_PARALLEL_SIZE": 2,
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "HANABI_ENGINE_RESTARTS": 1,
    }
    server = start_server(tiny_model, tmp_path / "server.log", **given)
    first = death_signals(server)
    assert len(first) == 3 and set(first.values()) == {signal.SIGKILL}, first
    core = engine_core(server)
    workers = core.children(recursive=True)
    core.kill()
    deadline = time.monotonic() + 300
    while server.log.read_text().count("ready on http") < 2:
        assert time.monotonic() < deadline and server.process.poll() is None, (
            server.log.read_text()[-3000:]
        )
        time.sleep(0.5)
    assert not any(
        worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers
    )
    assert len(death_signals(server)) == 3
    assert stop(server.process, signal.SIGKILL) == [], "the engine outlived its server"


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
        if number % 4:
            training.more_steps(1)
            time.sleep(row.rng.uniform(0.0, 2.0))
        else:
            # Also while it starts, resumes and saves for the first time.
            time.sleep(row.rng.uniform(1.0, 30.0))
        training.kill()
        if training.steps():
            found = find_checkpoint(folder)
            assert found.manifest.step >= newest, "a checkpoint that was complete is lost"
            newest = found.manifest.step
        idle = wait_until(lambda: not client.health()["games_in_flight"], 30)
        assert idle, "games of a client that is gone are not cancelled"
    last = Training(server, folder, RESUME="latest")
    last.more_steps(2)
    assert last.interrupt() == 130
    steps = last.steps()
    assert steps == list(range(1, steps[-1] + 1))


def test_the_second_of_two_trainers_is_refused_and_the_first_goes_on(
    server: Server, tmp_path: Path, injection: Callable[..., object]
) -> None:
    first = Training(server, tmp_path / "first")
    first.wait_for_step(1)
    row = injection("two trainers on one server", short=1, long=3, lost="the second one's start")
    for number in row:
        second = Training(server, tmp_path / f"second-{number}")
        assert second.process.wait(timeout=120) == 2
        assert "409" in second.text and str(tmp_path / "first") in second.text, second.text[-3000:]
        first.more_steps(1)
    assert first.interrupt() == 130
    again = Training(server, tmp_path / "again", MAX_STEPS=1)
    assert again.process.wait(timeout=120) == 0, again.text[-3000:]


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
