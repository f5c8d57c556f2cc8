"""HANABI_OVERLAP=1: the server plays the next step's games while the trainer learns.

| step | the trainer syncs | takes games of | asks for games of step, with version | learns to |
|---|---|---|---|---|
| 0 | 0 | version 0, played now | 1, with 0 | version 1 |
| 1 | 1 | version 0 | 2, with 1 | version 2 |
| 2 | 2 | version 1 | 3, with 2 | version 3 |

From the second step on games are one version old, never more: a step's request is sent after the
weight sync before it. The server holds on to the version that a request uses until its games have
ended, also while a newer one is committed. Games in flight at a kill are nobody's: nothing of them
was trained on, and a resumed run plays their tasks again.
"""

import threading
import time
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

    With `ask`, of games that it has asked for a step ahead. A request that the server did not
    answer with games (it died, was replaced, or the next sync overtook it) is made again in the
    plain way, with the version that is served then. What else goes wrong in the thread, `take`
    raises.
    """

    def __init__(self, link: Link, adapter_names: tuple[str, ...]) -> None:
        """Prepare for the run's adapters; nothing is asked yet."""
        self._link = link
        self._adapter_names = adapter_names
        self._flight: _Flight | None = None

    def take(self, tasks: list[TaskRow], version: int) -> StepGames:
        """Return the games of a step's tasks: asked for ahead, or played now.

        Args:
            tasks: The step's.
            version: That is served now.

        Raises:
            ServerError: As in `ServerLink.play`, or games by others than those who were asked for.
        """
        start = time.perf_counter()
        flight = self._flight
        self._flight = None
        if flight is not None:
            games = self._land(flight, tasks, start)
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

    def ask(self, tasks: list[TaskRow], version: int) -> None:
        """Ask for the games of the next step, and return at once.

        Args:
            tasks: Those of the next step.
            version: That is served now and plays them.
        """
        try:
            request = self._link.prepare(tasks, self._adapter_names, version)
        except ServerError as error:
            # Uploading a partner failed; the next step waits for the server and uploads again.
            self._record_repetition(version, error)
            return
        answer: Future[tuple[Any, float]] = Future()
        self._flight = _Flight(tasks=tasks, request=request, answer=answer)

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

    def _land(self, flight: _Flight, tasks: list[TaskRow], start: float) -> StepGames | None:
        """Return games that were asked for ahead; None where they have to be played now."""
        version = flight.request.version
        try:
            with remind_while_waiting(
                f"the games of version {version}, which were asked for a step ahead"
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
