"""Whether the engine still answers. A process that stands still neither dies nor samples, and vLLM waits for it.

The question goes through engine core and workers and is answered between two steps. So a busy engine answers after each
step, also after those of a long prompt, which give no token; one that does not answer makes no steps any more.
"""

import asyncio
from collections.abc import Awaitable, Callable


class Pulse:
    """Asks again and again, and gives up after too long a silence."""

    def __init__(
        self, ask: Callable[[], Awaitable[object]], *, patience: float, every: float = 5.0, look: float = 0.5
    ) -> None:
        """Prepare; `watch` does the asking.

        Args:
            ask: Returns once the engine has answered; raises when it is dead.
            patience: Seconds of silence after which the engine is given up; a step must be shorter.
            every: Seconds between an answer and the next question.
            look: Seconds between two looks whether the answer is there.
        """
        self._ask, self._patience, self._every, self._look = ask, patience, every, look
        self.silence = 0.0
        """Seconds since a question that is not yet answered, or since the last reply that came meanwhile."""

    @property
    def is_lost(self) -> bool:
        """True once the silence was too long."""
        return self.silence >= self._patience

    def beat(self) -> None:
        """Note a sign of life; it comes too late for an engine that was given up."""
        if not self.is_lost:
            self.silence = 0.0

    async def watch(self) -> None:
        """Ask until the engine is lost.

        Raises:
            Exception: What asking raises.
        """
        while not self.is_lost:
            answer = asyncio.ensure_future(self._ask())
            try:
                while not (await asyncio.wait({answer}, timeout=self._look))[0]:
                    # A look counts the same however long ago the last one was: when this process stood still as well,
                    # it has learnt nothing of the engine.
                    self.silence += self._look
                    if self.is_lost:
                        return
                await answer
            finally:
                answer.cancel()
            self.beat()
            await asyncio.sleep(self._every)
