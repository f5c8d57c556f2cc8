"""R14: the start of both processes until the first games, against vLLM alone in one process."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from bench.context import Bench
from bench.pairing import Measure, Stopwatch, measure_pairs, ratios_of
from bench.row import Row, at_most, not_measured
from hanabi_grpo.errors import ServerError

TARGET = at_most(1.5)
TITLE = "start of server and trainer until the first games ÷ vLLM's own start"
_ARMS = (
    "serve and train, started together, until two games are over",
    "vLLM in one process, until its first token",
)
_PAIRS = 3
_PATIENCE = 600.0
"""Time limit of a start in seconds."""
_LOOK_SECONDS = 0.02
"""Seconds between two looks at the logs."""
_SHOWN_LOG_CHARS = 300
SERVE = (sys.executable, "-m", "hanabi_grpo.cli", "serve")
TRAIN = (sys.executable, "-m", "hanabi_grpo.cli", "train")
_FLOOR = Path(__file__).with_name("engine_floor.py")


async def start(bench: Bench) -> list[Row]:
    """R14: seconds; files are in the system's cache, because one start of both is discarded."""
    if bench.quick:
        why = f"skipped with --quick: it starts {2 * _PAIRS + 1} engines"
        return [not_measured("R14", TITLE, _ARMS, TARGET, why)]

    async def both() -> Measure:
        return await asyncio.to_thread(start_both, bench)

    async def floor() -> Measure:
        return await asyncio.to_thread(start_floor, bench)

    # Only this arm, since it also reads everything that the floor reads.
    await both()
    pairs = await measure_pairs(both, floor, pairs=_PAIRS, warm_up=0)
    ratios, cpu = ratios_of(pairs, of_time=True)
    return [
        Row(
            id="R14",
            name=TITLE,
            arms=_ARMS,
            ratios=ratios,
            cpu_ratios=cpu,
            target=TARGET,
            how="warm file cache, without the scripts' check of their set-up; in the floor, the "
            "engine has the same model and settings but no separate process",
            if_missed="server and engine core are processes that import torch and vLLM, one after "
            "the other, while the trainer imports torch and ms-swift",
            details={"seconds": [[pair.first.seconds, pair.second.seconds] for pair in pairs]},
        )
    ]


def start_both(bench: Bench) -> Measure:
    """Start server and trainer until the server reports the first task's games, then end both."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        environ = {
            "HANABI_HOST": "127.0.0.1",
            "PORT": port,
            "VLLM_SERVER_HOST": "127.0.0.1",
            "VLLM_SERVER_PORT": port,
            "MODEL": bench.settings.model,
            "OUTPUT_DIR": str(folder / "run"),
            "REPORT_TO": "none",
            # A step of one task and two games.
            "HANABI_TASKS_PER_STEP": "1",
            "NUM_GENERATIONS": "2",
            "HANABI_DIE_WITH_PARENT": "true",
        }
        logs: dict[tuple[str, ...], Path] = {
            SERVE: folder / "serve.log",
            TRAIN: folder / "train.log",
        }
        return _run_until(lambda: "tok/s, returns" in _read_log(logs[SERVE]), logs, environ)


def start_floor(bench: Bench) -> Measure:
    """Start vLLM in one process, with our server's model and settings, until its first token."""
    from hanabi_grpo.runs.fingerprint import resolve_model
    from hanabi_grpo.server.adapter_files import linear_shapes
    from hanabi_grpo.server.engine import BLOCK_SIZE, engine_options

    model = resolve_model(bench.settings.model)
    options = engine_options(bench.settings, str(model), linear_shapes(model))
    if bench.settings.device == "cpu":
        options |= {"block_size": BLOCK_SIZE, "enforce_eager": True}
    environ = {
        "VLLM_PLUGINS": "",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        log = Path(name) / "floor.log"
        command = (sys.executable, str(_FLOOR), json.dumps(options))
        return _run_until(lambda: "first token" in _read_log(log), {command: log}, environ)


def _run_until(
    is_done: Callable[[], bool],
    commands: Mapping[tuple[str, ...], Path],
    environ: Mapping[str, str],
) -> Measure:
    """Start commands, and end them once `is_done`; ending them is not measured.

    Args:
        is_done: Looks at the logs.
        commands: The commands with their logs.
        environ: Variables in addition to this process's.

    Raises:
        ServerError: A command failed, or the time is up.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with Stopwatch(children=True) as watch:
            for command, log in commands.items():
                processes.append(start_process(command, environ, log))
            end = time.monotonic() + _PATIENCE
            while not is_done():
                if time.monotonic() > end or any(map(_has_failed, processes)):
                    logs = [_read_log(log)[-_SHOWN_LOG_CHARS:] for log in commands.values()]
                    raise ServerError(
                        f"the start failed or took {_PATIENCE:.0f} s: {' ... '.join(logs)}"
                    )
                time.sleep(_LOOK_SECONDS)
        return watch.measure(1)
    finally:
        _end(processes)


def _has_failed(process: "subprocess.Popen[bytes]") -> bool:
    return process.poll() not in (None, 0)


def start_process(
    command: Sequence[str], environ: Mapping[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    """Start a command whose output goes to a file.

    Args:
        command: Program and arguments.
        environ: Variables in addition to this process's.
        log: The file.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _read_log(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _end(processes: list["subprocess.Popen[bytes]"]) -> None:
    """End processes and all their descendants."""
    running = [psutil.Process(process.pid) for process in processes if process.poll() is None]
    family = list(running)
    for parent in running:
        family += parent.children(recursive=True)
    for process in processes:
        process.terminate()
    _, still_running = psutil.wait_procs(family, timeout=20.0)
    for survivor in still_running:
        survivor.kill()
    for process in processes:
        process.wait()
