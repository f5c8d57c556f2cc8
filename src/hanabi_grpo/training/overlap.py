"""HANABI_OVERLAP=K: the server plays the games of the next K steps while the trainer learns.

With K = 1:

| step | pushes version | takes games of | requests games of step, with version | trains to |
|---|---|---|---|---|
| 0 | 0 | version 0, played now | 1, with 0 | version 1 |
| 1 | 1 | version 0 | 2, with 1 | version 2 |
| 2 | 2 | version 1 | 3, with 2 | version 3 |

With K = 3, step 0 requests the games of steps 1, 2 and 3 at once, and each later step s those of
step s + 3. From step K on, games are exactly K versions old: a step's request is sent after the
weight sync K steps before it. The server keeps the version that a request uses until its games have
ended, even after newer versions are committed. Games in flight when the trainer is killed are
lost: none of them was trained on, and a resumed run plays their tasks again.
"""

import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.training.fleet_link import Link
from hanabi_grpo.training.link import GamesRequest, remind_while_waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGames:
    """One step's games as they came from the servers."""

    result: RolloutResult
    version: int
    """Version of the adapters that sampled them."""
    rollout_seconds: float
    """How long the servers took."""
    wait_seconds: float
    """How long the trainer waited; less than `rollout_seconds` if the games were prefetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flight:
    """Games that were requested and not taken yet."""

    tasks: list[TaskRow]
    request: GamesRequest
    answer: "Future[tuple[Any, float]]"
    """The servers' answer, and how many seconds it took."""


class PlayAhead:
    """Gives each step exactly the games of its own tasks, in the main process.

    `ask` prefetches games, in the order of the steps. If the server did not answer such a request
    with games (it died, was replaced, or the next sync overtook it), `take` plays them with the
    version that is served by then. `take` raises all other errors of the prefetching thread.
    """

    def __init__(self, link: Link, adapter_names: tuple[str, ...]) -> None:
        """Prepare for the run's adapters; nothing is requested yet."""
        self._link = link
        self._adapter_names = adapter_names
        self._flights: deque[_Flight] = deque()

    @property
    def num_asked(self) -> int:
        """Number of steps whose games were requested and not taken yet."""
        return len(self._flights)

    def take(self, tasks: list[TaskRow], version: int) -> StepGames:
        """Return the games of a step's tasks: prefetched, or played now.

        Args:
            tasks: The step's tasks.
            version: The version that is served now.

        Raises:
            ServerError: As in `ServerLink.play`, or other players than the requested ones played.
        """
        start = time.perf_counter()
        if self._flights:
            games = self._land(self._flights.popleft(), tasks, start)
            if games is not None:
                return games
        asked_at = time.perf_counter()
        result = self._link.play(tasks, self._adapter_names, version)
        end = time.perf_counter()
        return StepGames(
            result=result,
            version=version,
            rollout_seconds=end - asked_at,
            wait_seconds=end - start,
        )

    def ask(self, tasks: list[TaskRow], version: int) -> bool:
        """Request the games of the next step that is not requested yet, without waiting.

        Args:
            tasks: The tasks of that step.
            version: The version that is served now, which plays them.

        Returns:
            Whether the request was sent; otherwise the step plays its games itself.
        """
        try:
            request = self._link.prepare(tasks, self._adapter_names, version)
        except ServerError as error:
            # Uploading a partner failed; the next step waits for the server and uploads again.
            self._record_repetition(version, error)
            return False
        answer: Future[tuple[Any, float]] = Future()
        self._flights.append(_Flight(tasks=tasks, request=request, answer=answer))

        def fly() -> None:
            start = time.perf_counter()
            try:
                games = self._link.fetch(request)
            except BaseException as error:
                # Raised again by `take`, in the trainer's own thread.
                answer.set_exception(error)
            else:
                answer.set_result((games, time.perf_counter() - start))

        # A daemon thread ends with the process, so it need not be joined.
        threading.Thread(target=fly, daemon=True).start()
        return True

    def discard(self) -> None:
        """Forget the requested games, because other weights play their steps."""
        self._flights.clear()

    def _land(self, flight: _Flight, tasks: list[TaskRow], start: float) -> StepGames | None:
        """Return prefetched games; None if they have to be played now."""
        version = flight.request.version
        try:
            with remind_while_waiting(f"the prefetched games of version {version}"):
                games, seconds = flight.answer.result()
        except ServerError as error:
            self._record_repetition(version, error)
            return None
        if flight.tasks != tasks:
            self._record_repetition(version, "their tasks are not this step's tasks")
            return None
        result = self._link.accept(flight.request, games)
        return StepGames(
            result=result,
            version=version,
            rollout_seconds=seconds,
            wait_seconds=time.perf_counter() - start,
        )

    def _record_repetition(self, version: int, reason: object) -> None:
        self._link.incidents.record(
            "games_asked_again",
            f"the prefetched games of version {version} are discarded: {reason}. The step "
            "requests its games again",
            version=version,
        )
