"""Ports of this machine for tests."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


def free_port() -> int:
    """Return a port that nothing listens on now; a server of the test can have it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port that refuses connections.

    It stays reserved, so no test that runs at the same time starts a server there.
    """
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
