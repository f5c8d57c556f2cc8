"""On CUDA too, vLLM's processes load our plugin and end when the server ends.

`python test_spawned_engine.py` makes server, engine core and worker as vLLM makes them on CUDA,
without a model. Each prints a line of JSON: its name, pid and the signal that the kernel will send
it at its parent's death. Then all wait.

`python test_spawned_engine.py copies` makes the process that coordinates copies of the model, and
prints its pid.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from hanabi_grpo.server.assembly import prepare_environment
from hanabi_grpo.server.plugin import tie_coordinator

PATIENCE = 60.0
"""Seconds in which a process must have ended."""
_PR_GET_PDEATHSIG = 2
_FOR_LONG = 600
"""Seconds that the processes wait for their end."""


@pytest.mark.rest
def test_engine_core_and_worker_die_with_the_process_above_them(
    start_process: Callable[..., "subprocess.Popen[str]"],
) -> None:
    # The CPU build forces spawn only once an engine's arguments are complete, so this is what CUDA
    # gets.
    environment = {}
    for name, value in os.environ.items():
        if not name.startswith("VLLM_"):
            environment[name] = value
    server = start_process([sys.executable, __file__], env=environment, stdout=subprocess.PIPE)
    assert server.stdout is not None
    pids = {}
    signals = {}
    for _ in range(3):
        report = json.loads(server.stdout.readline())
        pids[report["name"]] = report["pid"]
        signals[report["name"]] = report["signal"]
    assert signals == {"server": 0, "engine core": signal.SIGKILL, "worker": signal.SIGKILL}
    below = [psutil.Process(pids["engine core"]), psutil.Process(pids["worker"])]
    server.kill()
    _, alive = psutil.wait_procs(below, timeout=PATIENCE)
    assert alive == []


@pytest.mark.rest
def test_what_coordinates_copies_of_the_model_dies_with_the_server(
    start_process: Callable[..., "subprocess.Popen[str]"],
) -> None:
    server = start_process([sys.executable, __file__, "copies"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    coordinator = psutil.Process(int(server.stdout.readline()))
    server.kill()
    _, alive = psutil.wait_procs([coordinator], timeout=PATIENCE)
    assert alive == []


def run_with_a_coordinator() -> None:
    """Make the process that coordinates copies of the model, print its pid and wait."""
    from vllm.config import ParallelConfig
    from vllm.v1.engine.coordinator import DPCoordinator

    tie_coordinator()
    coordinator = DPCoordinator(ParallelConfig(data_parallel_size=2))
    print(coordinator.proc.pid, flush=True)
    time.sleep(_FOR_LONG)


def death_signal() -> int:
    """Return the signal that the kernel sends this process when its parent ends; 0 for none."""
    number = ctypes.c_int(-1)
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    assert result == 0
    return number.value


def run_process(name: str, *names_below: str) -> None:
    """Report this process, start those below it, each the child of the one before, and wait."""
    from vllm.plugins import load_general_plugins
    from vllm.utils.system_utils import get_mp_context

    # The server's process loads them with the engine's arguments, the others first of all.
    load_general_plugins()
    report = {"name": name, "pid": os.getpid(), "signal": death_signal()}
    print(json.dumps(report), flush=True)
    if names_below:
        get_mp_context().Process(target=run_process, args=names_below).start()
    time.sleep(_FOR_LONG)


if __name__ == "__main__":
    prepare_environment(on_cpu=False)
    if sys.argv[1:] == ["copies"]:
        run_with_a_coordinator()
    else:
        run_process("server", "engine core", "worker")
