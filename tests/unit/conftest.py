"""What tests of this folder share: an adapter store with an open session, on an engine that notes
what it is asked.
"""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from hanabi_grpo.server.adapter_store import AdapterStore
from store_parts import SHAPES, Loads, wanted


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture
def engine() -> Loads:
    return Loads()


@pytest.fixture
def store(engine: Loads, tmp_path: Path) -> Iterator[AdapterStore]:
    """A store for `store_parts.wanted()`; whatever a test does, its folder is gone afterwards."""
    home = tmp_path / "adapters"
    home.mkdir()
    store = AdapterStore(engine, max_rank=16, shapes=SHAPES, home=home)
    anyio.run(store.open_session, wanted())
    yield store
    store.close()
    assert list(home.iterdir()) == []


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of caches, in the place of the user's own."""
    home = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home
