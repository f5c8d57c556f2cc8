"""What vLLM loads in each of its processes (entry point `vllm.general_plugins`), where no other code of ours runs."""

import multiprocessing
import os
import signal

from hanabi_grpo.processes import die_with_parent

PLUGIN_NAME = "hanabi_grpo"


def register() -> None:
    """Tie this process to its parent and install what is ours on a CPU. vLLM may call it more than once."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with_parent(signal.SIGKILL)
        try:
            os.kill(parent.pid, 0)
        except ProcessLookupError:
            # It died before the kernel was asked: nobody will ever send the signal.
            os._exit(1)
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from hanabi_grpo.server import vllm_cpu

        vllm_cpu.install()
