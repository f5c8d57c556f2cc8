"""On CUDA too, vLLM's processes load our plugin and go when the server goes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

PATIENCE = 60.0
SCRIPT = Path(__file__).parents[1] / "engine_family.py"


@pytest.mark.rest
def test_engine_core_and_worker_die_with_the_process_above_them(
    start_process: Callable[..., "subprocess.Popen[str]"],
) -> None:
    # The CPU build forces spawn only once an engine's arguments are complete, so this is what CUDA gets.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    server = start_process([sys.executable, str(SCRIPT)], env=kept, stdout=subprocess.PIPE)
    assert server.stdout is not None
    told = {one["name"]: one for one in (json.loads(server.stdout.readline()) for _ in range(3))}
    signals = {name: one["signal"] for name, one in told.items()}
    assert signals == {"server": 0, "engine core": signal.SIGKILL, "worker": signal.SIGKILL}
    below = [psutil.Process(told[name]["pid"]) for name in ("engine core", "worker")]
    server.kill()
    assert psutil.wait_procs(below, timeout=PATIENCE)[1] == []
