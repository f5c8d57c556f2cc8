"""The shipped tiny model, one real rollout server and one training run for the whole session."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from hanabi_grpo.settings.defaults import TINY_MODEL

ROOT = Path(__file__).resolve().parents[1]
SERVER_COMMAND = ("bash", str(ROOT / "tools/rollout/rollout_hanabi_gym.sh"))
SERVER_SECONDS = 300.0
TRAINER_SECONDS = 420.0
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
    port: int
    log: Path
    model: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, **variables: object) -> dict[str, str]:
        """Return the variables of the other terminal."""
        given = {"MODEL": self.model, "VLLM_SERVER_PORT": self.port, **VARIABLES, **variables}
        return {**clean_environment(), **{name: str(value) for name, value in given.items()}}


def clean_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HANABI_", "WANDB_"))
    }


def reset_signals() -> None:
    """Give a child the signals of a terminal: a test run in the background would hand down an
    ignored Ctrl-C.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(
    model: Path,
    log: Path,
    *,
    port: int | None = None,
    command: Sequence[str] = SERVER_COMMAND,
    **variables: object,
) -> Server:
    """Start a server with these variables, on a free port when none is given, and wait until it is
    healthy.
    """
    port = port or free_port()
    environment = {**clean_environment(), **VARIABLES, "MODEL": str(model), "PORT": str(port)}
    environment |= {"HANABI_DIE_WITH_PARENT": "true"}
    environment |= {
        "PYTHONPATH": str(ROOT / "tests/e2e/reporting"),
        "DEATH_SIGNALS": str(log.parent),
    }
    environment |= {name: str(value) for name, value in variables.items()}
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
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{server.url}/health/", timeout=2.0, trust_env=False).status_code == 200:
                return server
        time.sleep(0.5)
    stop(process, signal.SIGKILL)
    pytest.fail(f"no server after {SERVER_SECONDS} s:\n{log.read_text()[-3000:]}")


def death_signals(server: Server) -> dict[str, int]:
    """Ask the engine's processes which signal the kernel sends them when their parent ends; title
    to signal, or 0.
    """
    answers = {}
    for process in psutil.Process(server.process.pid).children(recursive=True):
        title = " ".join(process.cmdline())
        if not title.startswith("VLLM::"):
            continue
        told, deadline = server.log.with_name(str(process.pid)), time.monotonic() + 60
        process.send_signal(signal.SIGUSR2)
        while not told.exists():
            assert time.monotonic() < deadline, f"{title} does not answer"
            time.sleep(0.05)
        answers[title] = int(told.read_text())
    return answers


def stop(
    process: subprocess.Popen[bytes], signum: signal.Signals = signal.SIGTERM
) -> list[psutil.Process]:
    """Signal one process; return those of its children that are still alive 20 s later."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    if process.poll() is None:
        process.send_signal(signum)
    process.wait(timeout=60)
    _, alive = psutil.wait_procs(family, timeout=20)
    return alive


def train(
    server: Server,
    folder: Path,
    *arguments: str,
    script: str = "train_grpo_msswift.sh",
    **variables: object,
) -> subprocess.CompletedProcess[str]:
    """Run a train script to its end and return it with its output."""
    command = ["bash", str(ROOT / "tools/train" / script), *arguments]
    environment = server.environment(OUTPUT_DIR=folder, **variables)
    together = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(
        command, env=environment, timeout=TRAINER_SECONDS, check=False, **together
    )  # type: ignore[call-overload]


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The model that is shipped for the demo; nobody may write into it."""
    return ROOT / TINY_MODEL


@pytest.fixture(scope="session")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests share; each trainer opens a session of its own on it."""
    # A short name: paths of sockets are limited.
    temporary = Path(tempfile.mkdtemp(prefix="e2e-"))
    server = start_server(
        tiny_model, tmp_path_factory.mktemp("server") / "server.log", TMPDIR=temporary
    )
    yield server
    assert stop(server.process) == [], "engine processes outlived the server"
    assert [path for path in temporary.rglob("*") if path.is_socket()] == [], (
        "vLLM's sockets outlived the server"
    )
    shutil.rmtree(temporary)


@pytest.fixture(scope="session")
def trained(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run folder and the output of three steps through the W&B wrapper, offline."""
    from hanabi_grpo.runs.fingerprint import model_fingerprint

    folder = tmp_path_factory.mktemp("run") / "train"
    before = model_fingerprint(server.model)
    script = "train_grpo_hanabi_server_wandb.sh"
    done = train(
        server, folder, script=script, MAX_STEPS=3, WANDB_MODE="offline", REPORT_TO="wandb"
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert model_fingerprint(server.model) == before, "training changed the base model's files"
    return folder, done.stdout
