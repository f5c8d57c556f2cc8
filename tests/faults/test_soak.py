"""Everything at once for a long time: a run among hostile guests, hanging games, a partner that
dies, a full disk and killed engines loses no step and counts no game twice.
"""

import contextlib
import json
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from running import Training, can_mount, engine_core, serving_process

from conftest_e2e import ROOT, VARIABLES, Server, read_episodes, start_server, stop
from hanabi_grpo.settings.defaults import TINY_MODEL
from local_service import LocalService, QuietHandler, served

pytestmark = [pytest.mark.e2e, pytest.mark.rest]

NUM_GAMES = int(VARIABLES["HANABI_TASKS_PER_STEP"]) * int(VARIABLES["NUM_GENERATIONS"])
"""Games of a step."""
ENV = "hanging_hanabi"
"""Hanabi of another package, see tools/bench/hanging_hanabi.py."""
HANGING_SHARE = 0.005
CALL_TIMEOUT = 2.0
DISK_MIB = 64
"""Of the run folder's disk: some checkpoints, and the games of a run."""
_LARGEST_GROWTH = 1.25
"""Memory at the end over memory at the beginning, of a process that leaks nothing. Python and
torch keep what they once had."""


class Partner(LocalService):
    """A model behind a URL that always makes the same move, and is sometimes gone."""

    def __init__(self) -> None:
        super().__init__(PartnerHandler)
        self.is_gone = threading.Event()
        self.num_calls = 0


class PartnerHandler(QuietHandler):
    """Chat completions."""

    server: Partner

    def do_POST(self) -> None:
        self.body()
        self.server.num_calls += 1
        if self.server.is_gone.is_set():
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        message = {"role": "assistant", "content": "Play 0"}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        self.give_json(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": usage,
            }
        )


class HostileGuests:
    """Guests who ask for as much as they may, and more, until the end of a block."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self.num_requests = 0
        attacks = (
            self._ask_for_scores,
            self._play_without_end,
            self._play_slow_scripts,
            self._hold_connections,
            self._send_rubbish,
        )
        self._threads = []
        for attack in attacks:
            thread = threading.Thread(target=self._repeat, args=(attack,), daemon=True)
            self._threads.append(thread)

    def __enter__(self) -> "HostileGuests":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def _repeat(self, attack: Callable[[], object]) -> None:
        while not self._stop.is_set():
            self.num_requests += 1
            # The server is killed now and then.
            with contextlib.suppress(httpx.HTTPError, OSError):
                attack()
            self._stop.wait(0.5)

    def _post(self, path: str, body: Any, timeout: float = 10.0) -> None:
        url = f"{self._server.url}{path}"
        httpx.post(url, json=body, timeout=timeout, trust_env=False)

    def _ask_for_scores(self) -> None:
        prompt = {"system": "", "prompt": "Play 0", "replies": ["Play 1"] * 64}
        self._post("/score/", {"seat": "base", "prompts": [prompt] * 1024})

    def _play_without_end(self) -> None:
        task = {"env_config": {"preset": "laptop"}, "suite": "train", "seed": 1}
        request = {"max_tokens": 4, "temperature": 1.0, "seats": ["base", "base"]}
        self._post("/rollout/", {"tasks": [task] * 1024, "num_games": 32, **request})

    def _play_slow_scripts(self) -> None:
        config = {"preset": "connect_four"}
        task = {"env": "connect_four", "env_config": config, "suite": "train", "seed": 1}
        request = {"max_tokens": 4, "temperature": 1.0, "seats": ["mcts-1000", "mcts-1000"]}
        self._post("/rollout/", {"tasks": [task], "num_games": 64, **request})

    def _hold_connections(self) -> None:
        connections = []
        try:
            for _ in range(64):
                connections.append(socket.create_connection(("127.0.0.1", self._server.port), 5))
            self._stop.wait(5)
        finally:
            for connection in connections:
                connection.close()

    def _send_rubbish(self) -> None:
        self._post("/rollout/", {"tasks": [[[[]]]], "num_games": 10**18})
        self._post("/session/", {"protocol": 1})
        httpx.put(
            f"{self._server.url}/frozen/?version=1",
            content=os.urandom(1 << 16),
            headers={"x-sha256": "0" * 64, "x-peft-config": "{}"},
            timeout=10.0,
            trust_env=False,
        )


class Memory:
    """Resident memory of the serving process and of the trainer, in MiB, over time."""

    def __init__(self, server: Server, training: Training) -> None:
        self._server = server
        self._training = training
        self.server: list[float] = []
        self.trainer: list[float] = []

    def measure(self) -> None:
        """Note the memory of now; a server that is starting again has none to note."""
        with contextlib.suppress(psutil.Error, ValueError):
            self.server.append(serving_process(self._server).memory_info().rss / 2**20)
        trainer = psutil.Process(self._training.process.pid)
        family = [trainer, *trainer.children(recursive=True)]
        self.trainer.append(max(process.memory_info().rss for process in family) / 2**20)

    @staticmethod
    def growth(readings: list[float]) -> float:
        """Return the median of the last quarter over that of the second."""
        quarter = max(1, len(readings) // 4)
        return statistics.median(readings[-quarter:]) / statistics.median(
            readings[quarter : 2 * quarter]
        )


@pytest.fixture
def python_path(tmp_path: Path) -> str:
    """PYTHONPATH with an environment of another package in which some games never end."""
    info = tmp_path / "installed" / "hanging-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hanging\nVersion: 1.0\n")
    entry = f"{ENV} = bench.hanging_hanabi:HANGING_HANABI"
    (info / "entry_points.txt").write_text(f"[hanabi_grpo.environments]\n{entry}\n")
    folders = [info.parent, ROOT / "tools", ROOT / "tests/e2e/reporting"]
    return os.pathsep.join(str(path) for path in folders)


@pytest.fixture
def partner() -> Iterator[Partner]:
    with served(Partner()) as service:
        yield service


def fill_disk(training: Training, seconds: float) -> None:
    """Leave no room on the disk of the run folder for a while."""
    ballast = training.folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    time.sleep(seconds)
    ballast.unlink()


def test_a_run_survives_all_of_it_at_once(
    python_path: str, partner: Partner, tmp_path: Path, injection: Callable[..., Any]
) -> None:
    if not can_mount(tmp_path):
        pytest.skip("a small file system of one's own cannot be mounted here (unshare -rm)")
    row = injection("a soak: guests, hanging games, a partner, a disk, engines", short=1, long=20)
    is_long = row.times > 1
    outage = 60.0 if is_long else 5.0
    num_steps = 2 if is_long else 1
    variables = {
        "PYTHONPATH": python_path,
        "HANABI_ENV": ENV,
        "HANABI_PRESET": "laptop",
        "HANABI_PARTNER_URLS": f"big={partner.url}/v1#m",
        "BENCH_HANGING_SHARE": HANGING_SHARE,
        "HANABI_CALL_TIMEOUT": CALL_TIMEOUT,
        "HANABI_ENGINE_RESTARTS": 100,
    }
    server = start_server(ROOT / TINY_MODEL, tmp_path / "server.log", **variables)
    training = None
    try:
        training = Training(
            server,
            tmp_path / "train",
            disk_mib=DISK_MIB,
            HANABI_EPISODES_EVERY=1,
            SAVE_STEPS=3,
            HANABI_PARTNERS="url:big",
            HANABI_PARTNER_SHARE=0.25,
            **variables,
        )
        training.wait_for_step(1)
        memory = Memory(server, training)
        with HostileGuests(server) as guests:
            for _ in row:
                training.more_steps(num_steps, seconds=600)
                memory.measure()
                partner.is_gone.set()
                time.sleep(3.0)
                partner.is_gone.clear()
                training.more_steps(1, seconds=600)
                fill_disk(training, outage)
                training.more_steps(num_steps, seconds=600)
                engine_core(server).kill()
                training.more_steps(num_steps, seconds=900)
                if is_long:
                    time.sleep(60.0)
                memory.measure()
        check_run(training)
        last_step = training.last_step()
        assert partner.num_calls > 0
        assert training.interrupt() == 130, training.text[-3000:]
    finally:
        if training is not None and training.process.poll() is None:
            training.kill()
        left = stop(server.process)
    assert left == [], "processes outlived the server"
    growths = [Memory.growth(memory.server), Memory.growth(memory.trainer)]
    if is_long:
        assert max(growths) < _LARGEST_GROWTH, (memory.server, memory.trainer)
    row.lost = "late games, and records while the disk was full"
    row.name += (
        f" ({last_step} steps, {guests.num_requests} hostile requests, memory × "
        f"{growths[0]:.2f} of the server and × {growths[1]:.2f} of the trainer)"
    )


def check_run(training: Training) -> None:
    """Check that every step is there, with every game once, played or dropped."""
    rows = []
    for line in (training.folder / "metrics.jsonl").read_text().split("\n")[:-1]:
        rows.append(json.loads(line))
    steps = [row["step"] for row in rows]
    assert steps == list(range(1, len(steps) + 1)), steps
    assert [row["step"] for row in rows if row["games"] + row["games_dropped"] != NUM_GAMES] == []
    assert any(row.get("late/share") for row in rows) or len(rows) < 50
    for step in steps:
        # A full disk loses records of games; what there is holds each game once.
        with contextlib.suppress(FileNotFoundError):
            episodes = read_episodes(training.folder, version=step - 1)
            games = {(episode.suite, episode.seed, episode.game) for episode in episodes}
            assert len(games) == len(episodes), step
