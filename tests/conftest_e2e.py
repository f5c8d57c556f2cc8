"""The shipped tiny model, one real rollout server and one training run for the whole session."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from hanabi_grpo.rollout.wire import episode_from_json
from hanabi_grpo.settings.defaults import TINY_MODEL
from hanabi_grpo.types import Episode
from ports import free_port
from trainer_host import Request, next_host

ROOT = Path(__file__).resolve().parents[1]
SERVER_COMMAND = ("bash", str(ROOT / "tools/rollout/rollout_hanabi_gym.sh"))
COMMAND_LINE = ROOT / "tests/command_line.py"
"""What a forked trainer runs."""
SERVER_SECONDS = 600.0
"""Longest start of a server on a busy machine."""
TRAINER_SECONDS = 900.0
"""Longest run of a trainer on a busy machine."""
VARIABLES = {
    "HANABI_TASKS_PER_STEP": "2",
    "NUM_GENERATIONS": "8",
    "PER_DEVICE_TRAIN_BATCH_SIZE": "8",
    "LORA_RANK": "8",
    "LORA_ALPHA": "16",
    "LEARNING_RATE": "0.01",
    "HANABI_EPISODES_EVERY": "1",
    "SAVE_STEPS": "1",
    "SAVE_TOTAL_LIMIT": "10",
    "REPORT_TO": "none",
}
"""A run that takes seconds a step and moves the adapters far enough to tell versions apart."""


@dataclass(frozen=True)
class Server:
    """A running rollout server, as the launch script started it."""

    process: subprocess.Popen[bytes]
    """The launch script, whose children are the serving process and the engine's."""
    port: int
    """The port at which it listens on 127.0.0.1."""
    log: Path
    """The file with its output."""
    model: Path
    """The folder of the base model."""

    @property
    def url(self) -> str:
        """The address for a client."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self, **variables: object) -> dict[str, str]:
        """Return the variables of the other terminal: a trainer or an evaluation on this server."""
        environment = clean_environment()
        environment.update(VARIABLES)
        environment["MODEL"] = str(self.model)
        environment["VLLM_SERVER_PORT"] = str(self.port)
        for name, value in variables.items():
            environment[name] = str(value)
        return environment


def run_cli(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of hanabi-grpo to its end, with exactly these variables."""
    return subprocess.run(
        [sys.executable, "-m", "hanabi_grpo.cli", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TRAINER_SECONDS,
        check=False,
    )


def clean_environment() -> dict[str, str]:
    """Return this process's variables without those of the project and of W&B."""
    environment = {}
    for name, value in os.environ.items():
        if not name.startswith(("HANABI_", "WANDB_")):
            environment[name] = value
    return environment


def reset_signals() -> None:
    """Give a child the signals of a terminal.

    A test run in the background would hand down an ignored Ctrl-C.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the recorded rows of a run, one per step."""
    return read_json_lines(run / "metrics.jsonl")


def read_episodes(run: Path, version: int) -> list[Episode]:
    """Return the recorded episodes that a version of the adapters played."""
    rows = read_json_lines(run / "episodes" / f"step_{version:06d}.jsonl")
    return [episode_from_json(row) for row in rows]


def start_server(
    model: Path,
    log: Path,
    *,
    port: int | None = None,
    command: Sequence[str] = SERVER_COMMAND,
    **variables: object,
) -> Server:
    """Start a server and wait until it is healthy; the test fails if it does not become so.

    Args:
        model: The folder of the base model.
        log: The file for its output. Processes of the engine report their death signals beside it.
        port: The port to listen at; a free one when none is given.
        command: What starts the server.
        variables: Environment variables for the server, in addition to `VARIABLES`.
    """
    port = port or free_port()
    environment = clean_environment()
    environment.update(VARIABLES)
    environment["MODEL"] = str(model)
    environment["PORT"] = str(port)
    environment["HANABI_DIE_WITH_PARENT"] = "true"
    environment["PYTHONPATH"] = str(ROOT / "tests/e2e/reporting")
    environment["DEATH_SIGNALS"] = str(log.parent)
    for name, value in variables.items():
        environment[name] = str(value)
    # An engine has the threads that it has for a user.
    environment.pop("OMP_NUM_THREADS", None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=reset_signals,
        )
    server = Server(process, port, log, model)
    deadline = time.monotonic() + SERVER_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the server ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        if _is_healthy(server):
            return server
        time.sleep(0.5)
    stop(process, signal.SIGKILL)
    pytest.fail(f"no server after {SERVER_SECONDS} s:\n{log.read_text()[-3000:]}")


def _is_healthy(server: Server) -> bool:
    with contextlib.suppress(httpx.TransportError):
        answer = httpx.get(f"{server.url}/health/", timeout=2.0, trust_env=False)
        return answer.status_code == 200
    return False


def death_signals(server: Server) -> dict[str, int]:
    """Return the signal that the kernel sends each process of the engine when its parent ends.

    Titles of processes, e.g. "VLLM::EngineCore", are mapped to signals; 0 means none.
    """
    answers = {}
    for process in psutil.Process(server.process.pid).children(recursive=True):
        title = " ".join(process.cmdline())
        if title.startswith("VLLM::"):
            answers[title] = _ask_death_signal(server, process, title)
    return answers


def _ask_death_signal(server: Server, process: psutil.Process, title: str) -> int:
    """Ask one process, which answers in a file: see tests/e2e/reporting/sitecustomize.py."""
    answer = server.log.with_name(str(process.pid))
    deadline = time.monotonic() + 60
    process.send_signal(signal.SIGUSR2)
    while not answer.exists():
        assert time.monotonic() < deadline, f"{title} does not answer"
        time.sleep(0.05)
    return int(answer.read_text())


def stop(
    process: subprocess.Popen[bytes], signum: signal.Signals = signal.SIGTERM
) -> list[psutil.Process]:
    """Signal one process; return those of its children that are still alive 20 s later."""
    family = []
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signum)
    process.wait(timeout=60)
    _, alive = psutil.wait_procs(family, timeout=20)
    return alive


def train(
    server: Server, folder: Path, *arguments: str, **variables: object
) -> subprocess.CompletedProcess[str]:
    """Run `hanabi-grpo train` to its end and return it with its output.

    It is forked from a process that has imported a trainer's libraries, see `trainer_host`. What a
    launch script adds is left out: `train_by_script` runs one.

    Args:
        server: The server that plays the games.
        folder: The run folder.
        arguments: Options of the command.
        variables: Environment variables for the trainer, in addition to `VARIABLES`.
    """
    request = Request(
        script=str(COMMAND_LINE),
        arguments=["train", *arguments],
        environment=server.environment(OUTPUT_DIR=folder, **variables),
        folder=str(ROOT),
    )
    exit_code, output = next_host().run(request, TRAINER_SECONDS)
    return subprocess.CompletedProcess(request.arguments, exit_code, stdout=output)


def train_by_script(
    server: Server,
    folder: Path,
    *arguments: str,
    script: str = "train_grpo_msswift.sh",
    **variables: object,
) -> subprocess.CompletedProcess[str]:
    """Run a train script, as users do, to its end and return it with its output.

    Args:
        server: The server that plays the games.
        folder: The run folder.
        arguments: Arguments of the script.
        script: File name of the script under tools/train.
        variables: Environment variables for the trainer, in addition to `VARIABLES`.
    """
    command = ["bash", str(ROOT / "tools/train" / script), *arguments]
    return subprocess.run(
        command,
        env=server.environment(OUTPUT_DIR=folder, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TRAINER_SECONDS,
        check=False,
    )


@pytest.fixture
def in_repository_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test works in the root of the repository, where the shipped data sets are."""
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The model that is shipped for the demo; nobody may write into it."""
    return ROOT / TINY_MODEL


@pytest.fixture(scope="session")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests share; each trainer opens a session of its own on it."""
    # A short name: paths of sockets are limited.
    temporary = Path(tempfile.mkdtemp(prefix="e2e-"))
    log = tmp_path_factory.mktemp("server") / "server.log"
    server = start_server(tiny_model, log, TMPDIR=temporary)
    yield server
    assert stop(server.process) == [], "engine processes outlived the server"
    sockets = [path for path in temporary.rglob("*") if path.is_socket()]
    assert sockets == [], "vLLM's sockets outlived the server"
    shutil.rmtree(temporary)


@pytest.fixture(scope="session")
def trained(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run folder and the output of three steps through the W&B wrapper, offline."""
    from hanabi_grpo.runs.fingerprint import model_fingerprint

    folder = tmp_path_factory.mktemp("run") / "train"
    fingerprint = model_fingerprint(server.model)
    trainer = train_by_script(
        server,
        folder,
        script="train_grpo_hanabi_server_wandb.sh",
        MAX_STEPS=3,
        WANDB_MODE="offline",
        REPORT_TO="wandb",
    )
    assert trainer.returncode == 0, trainer.stdout[-4000:]
    assert model_fingerprint(server.model) == fingerprint, "training changed the base model's files"
    return folder, trainer.stdout
