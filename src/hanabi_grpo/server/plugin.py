"""What vLLM loads in each of its processes (entry point `vllm.general_plugins`), where no other
code of ours runs.
"""

import gc
import multiprocessing
import os
import signal
from typing import Any

from hanabi_grpo.processes import die_with_parent

PLUGIN_NAME = "hanabi_grpo"


def register() -> None:
    """Tie this process to its parent and install what is ours on a CPU. vLLM may call it more than
    once.
    """
    _tie_to_parent()
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from hanabi_grpo.server import vllm_cpu

        vllm_cpu.install()


def tie_coordinator() -> None:
    """Tie the process to the server that vLLM (0.32) starts beside several copies of a model; it
    loads no plugins.
    """
    from vllm.v1.engine.coordinator import DPCoordinatorProc

    DPCoordinatorProc.run_coordinator = staticmethod(_coordinate)


def _coordinate(*args: Any, **options: Any) -> None:
    # In the new process, where vLLM's own function is still in its place.
    _tie_to_parent()
    from vllm.v1.engine.coordinator import DPCoordinatorProc

    DPCoordinatorProc.run_coordinator(*args, **options)


def _tie_to_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        # Off since `cli` was imported: what is vLLM's has been imported by now, too.
        gc.enable()
        die_with_parent(signal.SIGKILL)
        try:
            os.kill(parent.pid, 0)
        except ProcessLookupError:
            # It died before the kernel was asked: nobody will ever send the signal.
            os._exit(1)
