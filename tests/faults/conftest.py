"""The real server, for the drills that break it."""

from conftest_e2e import server, tiny_model

__all__ = ["server", "tiny_model"]
