"""Calls to an engine core that dies meanwhile come to an end."""

import asyncio
from typing import Any

import pytest

from hanabi_grpo.errors import ServerGoneError
from hanabi_grpo.server.engine import Engine


class _Core:
    """vLLM's client as it is when its core has died: a call that never answers."""

    errored = False

    async def add_lora(self, request: Any) -> bool:
        self.errored = True
        await asyncio.Event().wait()
        return True

    async def remove_lora(self, number: int) -> bool:
        await asyncio.sleep(0.7)
        return True


def _engine() -> Engine:
    engine = Engine.__new__(Engine)
    engine._engine = _Core()
    return engine


def test_a_call_that_the_core_never_answers_ends_when_the_core_is_dead() -> None:
    async def load() -> None:
        with pytest.raises(ServerGoneError, match="the engine died during the call"):
            await asyncio.wait_for(_engine().load_adapter("player_0@1", 1, "/nowhere"), timeout=20)

    asyncio.run(load())


def test_a_slow_call_to_a_living_core_is_waited_for() -> None:
    asyncio.run(_engine().unload_adapter(1))
