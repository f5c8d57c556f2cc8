"""Processes that go when the one that started them goes, also by kill -9."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: signal.Signals) -> None:
    """Ask the kernel to signal this process when the thread that started it ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
