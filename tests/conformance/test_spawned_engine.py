"""On CUDA too, vLLM's processes load our plugin and go when the server goes.

`python test_spawned_engine.py` makes server, engine core and worker as vLLM makes them on CUDA,
without a model. Each prints a line of JSON: its name, pid and the signal that the kernel will send
it at its parent's death. Then all wait."""

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
_PR_GET_PDEATHSIG = 2


@pytest.mark.rest
def test_engine_core_and_worker_die_with_the_process_above_them(
    start_process: Callable[..., "subprocess.Popen[str]"],
) -> None:
    # The CPU build forces spawn only once an engine's arguments are complete, so this is what CUDA
    # gets.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    server = start_process([sys.executable, __file__], env=kept, stdout=subprocess.PIPE)
    assert server.stdout is not None
    told = {one["name"]: one for one in (json.loads(server.stdout.readline()) for _ in range(3))}
    signals = {name: one["signal"] for name, one in told.items()}
    assert signals == {"server": 0, "engine core": signal.SIGKILL, "worker": signal.SIGKILL}
    below = [psutil.Process(told[name]["pid"]) for name in ("engine core", "worker")]
    server.kill()
    assert psutil.wait_procs(below, timeout=PATIENCE)[1] == []


@pytest.mark.rest
def test_what_coordinates_copies_of_the_model_dies_with_the_server(
    start_process: Callable[..., "subprocess.Popen[str]"],
) -> None:
    server = start_process([sys.executable, __file__, "copies"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    coordinator = psutil.Process(int(server.stdout.readline()))
    server.kill()
    assert psutil.wait_procs([coordinator], timeout=PATIENCE)[1] == []


def _coordinated() -> None:
    from vllm.config import ParallelConfig
    from vllm.v1.engine.coordinator import DPCoordinator

    tie_coordinator()
    coordinator = DPCoordinator(ParallelConfig(data_parallel_size=2))
    print(coordinator.proc.pid, flush=True)
    time.sleep(600)


def death_signal() -> int:
    """Return the signal that the kernel sends this thread's process when its parent ends; 0:
    none.
    """
    number = ctypes.c_int(-1)
    assert (
        ctypes.CDLL(None, use_errno=True).prctl(_PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
        == 0
    )
    return number.value


def _run(name: str, *below: str) -> None:
    from vllm.plugins import load_general_plugins
    from vllm.utils.system_utils import get_mp_context

    # The server's process loads them with the engine's arguments, the others first of all.
    load_general_plugins()
    print(json.dumps({"name": name, "pid": os.getpid(), "signal": death_signal()}), flush=True)
    if below:
        get_mp_context().Process(target=_run, args=below).start()
    time.sleep(600)


if __name__ == "__main__":
    prepare_environment(on_cpu=False)
    if sys.argv[1:]:
        _coordinated()
    else:
        _run("server", "engine core", "worker")
