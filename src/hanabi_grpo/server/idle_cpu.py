"""Waiting without a busy core, on vLLM's CPU build.

vLLM's engine core and its workers hand each other messages through shared memory, and each spins for a second after
the last one before it waits to be woken. On a CPU they spin on the cores that compute. Here they wait to be woken at
once. A notification that follows another one within a millisecond or so may be lost (ZeroMQ drops what a socket of one
message has no room for), so in that second they also look by themselves, a few hundred times.

Installed over `SpinCondition.wait` (vLLM 0.32); `tests/conformance/test_idle_cpu.py` fails when a new vLLM waits in
another way.
"""

import time

from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

stock_wait = SpinCondition.wait
_LOOK_MS = 2


def install() -> None:
    """Let readers wait for a notification instead of spinning."""
    SpinCondition.wait = _wait


def _wait(self: SpinCondition, timeout_ms: int | None = None) -> None:
    last_read = self.last_read
    if time.monotonic() <= last_read + self.busy_loop_s:
        timeout_ms = _LOOK_MS
    # The stock method waits at once when the last read was long ago.
    self.last_read = float("-inf")
    try:
        stock_wait(self, timeout_ms=timeout_ms)
    finally:
        self.last_read = last_read
