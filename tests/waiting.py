"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable


def wait_until(done: Callable[[], object], seconds: float = 20.0) -> bool:
    """Return whether something came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(0.02)
    return bool(done())
