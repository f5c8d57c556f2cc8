"""Wait for what other threads and processes do."""

import time
from collections.abc import Callable

_PAUSE_SECONDS = 0.02
"""Between two looks."""


def wait_until(is_done: Callable[[], object], seconds: float = 20.0) -> bool:
    """Return whether a condition became true within a number of seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_done():
            return True
        time.sleep(_PAUSE_SECONDS)
    return bool(is_done())
