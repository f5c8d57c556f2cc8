"""The end-to-end fixtures, for every file of this folder."""

from conftest_e2e import server, tiny_model

__all__ = ["server", "tiny_model"]
