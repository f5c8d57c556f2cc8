"""The stand-in for one GPU: how fast it samples, and when each reply is ready.

The same object is used behind a real server, with wall-clock time, and in the simulation, with
simulated time.
"""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_HALF_A_TOKEN = 0.5
"""A reply is ready when fewer tokens than this are missing, which rounding may leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """How long one pass of the engine takes, which gives each sequence in flight one token.

    The time is `pass_seconds + sequence_seconds * n` for n sequences.
    """

    pass_seconds: float
    sequence_seconds: float
    max_sequences: int = 256
    """HANABI_MAX_NUM_SEQS; further replies wait."""

    def seconds(self, num_sequences: int) -> float:
        """Return the time of a pass."""
        return self.pass_seconds + self.sequence_seconds * num_sequences

    @property
    def highest_rate(self) -> float:
        """Tokens per second with the maximum number of sequences."""
        return self.max_sequences / self.seconds(self.max_sequences)


@dataclass(order=True, slots=True)
class _Reply(Generic[_Item]):
    last_pass: float
    """Number of the pass that samples its last token."""
    number: int
    item: _Item = field(compare=False)


class Replica(Generic[_Item]):
    """One GPU with continuous batching: the replies in flight advance together."""

    def __init__(self, speed: EngineSpeed) -> None:
        """Begin idle, at time 0."""
        self._speed = speed
        self._passes = 0.0
        """Number of passes so far."""
        self._now = 0.0
        self._in_flight: list[_Reply[_Item]] = []
        self._waiting: deque[tuple[int, _Item]] = deque()
        self._numbers = itertools.count()
        self.busy_seconds = 0.0
        """Time with at least one reply in flight."""
        self.num_tokens = 0
        """Tokens of all requested replies."""

    def ask(self, now: float, num_tokens: int, item: _Item) -> None:
        """Begin a reply.

        Args:
            now: Seconds; in all methods, never less than in the previous call.
            num_tokens: Its length.
            item: What `ended` returns when it is ready.
        """
        self._advance(now)
        self.num_tokens += num_tokens
        if len(self._in_flight) < self._speed.max_sequences:
            self._begin(num_tokens, item)
        else:
            self._waiting.append((num_tokens, item))

    def next_end(self) -> float | None:
        """Return when the next reply will be ready if no other begins; None without replies."""
        if not self._in_flight:
            return None
        left = max(0.0, self._in_flight[0].last_pass - self._passes)
        return self._now + left * self._speed.seconds(len(self._in_flight))

    def ended(self, now: float) -> list[_Item]:
        """Return the replies that are ready; waiting replies take their places."""
        items: list[_Item] = []
        while True:
            end = self.next_end()
            if end is None or end > now:
                break
            self._advance(end)
            while self._in_flight and self._in_flight[0].last_pass - self._passes < _HALF_A_TOKEN:
                items.append(heapq.heappop(self._in_flight).item)
            while self._waiting and len(self._in_flight) < self._speed.max_sequences:
                self._begin(*self._waiting.popleft())
        self._advance(now)
        return items

    def _begin(self, num_tokens: int, item: _Item) -> None:
        reply = _Reply(self._passes + num_tokens, next(self._numbers), item)
        heapq.heappush(self._in_flight, reply)

    def _advance(self, now: float) -> None:
        """Make the passes between the last call and now."""
        seconds = now - self._now
        if seconds <= 0:
            return
        self._now = now
        if self._in_flight:
            self._passes += seconds / self._speed.seconds(len(self._in_flight))
            self.busy_seconds += seconds
