"""R14: both processes, started at once, until the first games have been played, against vLLM alone
in one process.
"""

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
    "serve and train, started at once, until two games are over",
    "vLLM in one process, until its first token",
)
_PAIRS, _PATIENCE, _LOOK_SECONDS = 3, 600.0, 0.02
SERVE, TRAIN = ((sys.executable, "-m", "hanabi_grpo.cli", word) for word in ("serve", "train"))
_FLOOR = Path(__file__).with_name("engine_floor.py")


async def start(bench: Bench) -> list[Row]:
    """R14: seconds; files are in the system's cache, as one start of both is thrown away."""
    if bench.quick:
        why = f"left out of --quick: it starts {2 * _PAIRS + 1} engines"
        return [not_measured("R14", TITLE, _ARMS, TARGET, why)]

    async def both() -> Measure:
        return await asyncio.to_thread(start_both, bench)

    async def floor() -> Measure:
        return await asyncio.to_thread(start_floor, bench)

    # Only one, as it reads all that the floor reads too.
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
            how="warm file cache, the scripts' look at their set-up left out; in the floor the "
            "engine has the same "
            "model and settings and no process of its own",
            if_missed="server and engine core are processes that import torch and vLLM, one after "
            "the other, and the "
            "trainer imports torch and ms-swift beside them",
            details={"seconds": [[pair.first.seconds, pair.second.seconds] for pair in pairs]},
        )
    ]


def start_both(bench: Bench) -> Measure:
    """Start server and trainer until the server tells of the first task's games; ends them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        given = {
            "HANABI_HOST": "127.0.0.1",
            "PORT": port,
            "VLLM_SERVER_HOST": "127.0.0.1",
            "VLLM_SERVER_PORT": port,
        }
        given |= {
            "MODEL": bench.settings.model,
            "OUTPUT_DIR": str(folder / "run"),
            "REPORT_TO": "none",
        }
        # The first task of a step of two games.
        given |= {
            "HANABI_TASKS_PER_STEP": "1",
            "NUM_GENERATIONS": "2",
            "HANABI_DIE_WITH_PARENT": "true",
        }
        logs: dict[tuple[str, ...], Path] = {
            SERVE: folder / "serve.log",
            TRAIN: folder / "train.log",
        }
        return _until(lambda: "tok/s, returns" in _said(logs[SERVE]), logs, given)


def start_floor(bench: Bench) -> Measure:
    """Start vLLM in one process, with our server's model and settings, until its first token."""
    from hanabi_grpo.runs.fingerprint import resolve_model
    from hanabi_grpo.server.adapter_files import linear_shapes
    from hanabi_grpo.server.engine import BLOCK_SIZE, engine_options

    model = resolve_model(bench.settings.model)
    options = engine_options(bench.settings, str(model), linear_shapes(model))
    if bench.settings.device == "cpu":
        options |= {"block_size": BLOCK_SIZE, "enforce_eager": True}
    given = {
        "VLLM_PLUGINS": "",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    given |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        log = Path(name) / "floor.log"
        command = (sys.executable, str(_FLOOR), json.dumps(options))
        return _until(lambda: "first token" in _said(log), {command: log}, given)


def _until(
    is_done: Callable[[], bool], commands: Mapping[tuple[str, ...], Path], given: Mapping[str, str]
) -> Measure:
    """Start commands, each with its log, and end them once it `is_done`, which is not measured."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        with Stopwatch(children=True) as watch:
            started += [start_process(command, given, log) for command, log in commands.items()]
            end = time.monotonic() + _PATIENCE
            while not is_done():
                if time.monotonic() > end or any(one.poll() not in (None, 0) for one in started):
                    said = " ... ".join(_said(log)[-300:] for log in commands.values())
                    raise ServerError(f"the start failed or took {_PATIENCE:.0f} s: {said}")
                time.sleep(_LOOK_SECONDS)
        return watch.measure(1)
    finally:
        _end(started)


def start_process(
    command: Sequence[str], given: Mapping[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    """Start a command with some variables of its own; what it says goes to a file."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env={**os.environ, **given},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _said(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _end(started: list["subprocess.Popen[bytes]"]) -> None:
    """End processes and all that they started."""
    family = [psutil.Process(one.pid) for one in started if one.poll() is None]
    family += [child for one in family for child in one.children(recursive=True)]
    for one in started:
        one.terminate()
    for process in psutil.wait_procs(family, timeout=20.0)[1]:
        process.kill()
    for one in started:
        one.wait()
