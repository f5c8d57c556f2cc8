"""The vLLM plugin, which runs our code in each of vLLM's processes.

The entry point is `vllm.general_plugins`.
"""

import gc
import multiprocessing
import os
import signal
from typing import Any

from hanabi_grpo.processes import die_with_parent

PLUGIN_NAME = "hanabi_grpo"
"""Name of the entry point, for VLLM_PLUGINS."""


def register() -> None:
    """Tie this process to its parent, and install our replacements.

    vLLM may call it more than once.
    """
    _tie_to_parent()
    from vllm.platforms import current_platform

    from hanabi_grpo.server import vllm_filter

    vllm_filter.install()
    if current_platform.is_cpu():
        from hanabi_grpo.server import vllm_cpu

        vllm_cpu.install()


def tie_coordinator() -> None:
    """Tie the coordinator process to the server.

    vLLM (0.32) starts it if there are several copies of a model; it loads no plugins.
    """
    from vllm.v1.engine.coordinator import DPCoordinatorProc

    DPCoordinatorProc.run_coordinator = staticmethod(_coordinate)


def _coordinate(*args: Any, **options: Any) -> None:
    # Runs in the new process, where vLLM's own function is still in its place.
    _tie_to_parent()
    from vllm.v1.engine.coordinator import DPCoordinatorProc

    DPCoordinatorProc.run_coordinator(*args, **options)


def _tie_to_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    # `cli` disables the garbage collector during imports; vLLM's modules are imported by now.
    gc.enable()
    die_with_parent(signal.SIGKILL)
    try:
        os.kill(parent.pid, 0)
    except ProcessLookupError:
        # The parent died before `die_with_parent` took effect, so the signal will never be sent.
        os._exit(1)
