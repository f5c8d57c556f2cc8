"""HANABI_OVERLAP=K: the server plays the games of the next K steps while the trainer learns.

With K = 1:

| step | the trainer syncs | takes games of | asks for games of step, with version | learns to |
|---|---|---|---|---|
| 0 | 0 | version 0, played now | 1, with 0 | version 1 |
| 1 | 1 | version 0 | 2, with 1 | version 2 |
| 2 | 2 | version 1 | 3, with 2 | version 3 |

With K = 3 step 0 asks for the steps 1, 2 and 3 at once, and step s for step s + 3. From step K on
games are K versions old, never more: a step's request is sent after the weight sync K steps before
it. The server holds on to the version that a request uses until its games have ended, also while
newer ones are committed. Games in flight at a kill are nobody's: nothing of them was trained on,
and a resumed run plays their tasks again.
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
    """Of the adapters that sampled them."""
    rollout_seconds: float
    """How long the servers took."""
    wait_seconds: float
    """How long the trainer waited; less than `rollout_seconds` where games came ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flight:
    """Games that were asked for and are not taken yet."""

    tasks: list[TaskRow]
    request: GamesRequest
    answer: "Future[tuple[Any, float]]"
    """What the servers sent, and the seconds that it took."""


class PlayAhead:
    """Hands each step exactly its own tasks' games, in the main process.

    With `ask`, of games that it has asked for ahead, in the order of the steps. A request that the
    server did not answer with games (it died, was replaced, or the next sync overtook it) is made
    again in the plain way, with the version that is served then. What else goes wrong in the
    thread, `take` raises.
    """

    def __init__(self, link: Link, adapter_names: tuple[str, ...]) -> None:
        """Prepare for the run's adapters; nothing is asked yet."""
        self._link = link
        self._adapter_names = adapter_names
        self._flights: deque[_Flight] = deque()

    @property
    def num_asked(self) -> int:
        """The steps that were asked for and are not taken yet."""
        return len(self._flights)

    def take(self, tasks: list[TaskRow], version: int) -> StepGames:
        """Return the games of a step's tasks: asked for ahead, or played now.

        Args:
            tasks: The step's.
            version: That is served now.

        Raises:
            ServerError: As in `ServerLink.play`, or games by others than those who were asked for.
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
        """Ask for the games of the first step that nobody asked for, and return at once.

        Args:
            tasks: Those of the step.
            version: That is served now and plays them.

        Returns:
            Whether the request is under way; else the step plays them itself.
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
                # Raised again where the games are taken, in the trainer's own thread.
                answer.set_exception(error)
            else:
                answer.set_result((games, time.perf_counter() - start))

        # It ends with the process: nobody has to wait for it.
        threading.Thread(target=fly, daemon=True).start()
        return True

    def _land(self, flight: _Flight, tasks: list[TaskRow], start: float) -> StepGames | None:
        """Return games that were asked for ahead; None where they have to be played now."""
        version = flight.request.version
        try:
            with remind_while_waiting(
                f"the games of version {version}, which were asked for ahead"
            ):
                games, seconds = flight.answer.result()
        except ServerError as error:
            self._record_repetition(version, error)
            return None
        if flight.tasks != tasks:
            self._record_repetition(version, "they are of other tasks than this step's")
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
            f"the prefetched games of version {version} are discarded: {reason}. Their "
            "step plays them again",
            version=version,
        )
