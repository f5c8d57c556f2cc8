"""vLLM's processes without a model: server, engine core and worker, each made as vLLM makes it on CUDA.

`python engine_family.py` prints a line of JSON of each process: its name, pid and the signal that the kernel will send
it at its parent's death. Then all of them wait.
"""

import ctypes
import json
import os
import time

from hanabi_grpo.server.assembly import prepare_environment

_PR_GET_PDEATHSIG = 2


def death_signal() -> int:
    """Return the signal that the kernel sends this thread's process when its parent ends; 0: none."""
    number = ctypes.c_int(-1)
    assert ctypes.CDLL(None, use_errno=True).prctl(_PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0) == 0
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
    _run("server", "engine core", "worker")
