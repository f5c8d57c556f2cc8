"""HANABI_OVERLAP=1: the server plays the next step's games while the trainer learns from this
step's.

| step | the trainer syncs | takes games of version | asks for games of step, with version | learns to version |
|---|---|---|---|---|
| 0 | 0 | 0, played now | 1, with 0 | 1 |
| 1 | 1 | 0 | 2, with 1 | 2 |
| 2 | 2 | 1 | 3, with 2 | 3 |

From the second step on games are one version old, never more: a step's request is sent after the
weight sync before it. The server holds on to the version that a request uses until its games have
ended, also while a newer one is committed. Games in flight at a kill are nobody's: nothing of them
was trained on, and a resumed run plays their tasks again."""

import threading
import time
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.errors import ServerError, VersionError
from hanabi_grpo.rollout.dataset_rows import TaskRow
from hanabi_grpo.training.fleet_link import Link
from hanabi_grpo.training.link import GamesRequest, says_so
from hanabi_grpo.training.model.adapters import copied, holding


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGames:
    """One step's games, the version that sampled them, and how long that and the trainer's waiting
    took.
    """

    result: RolloutResult
    version: int
    rollout_seconds: float
    wait_seconds: float


class PlayAhead:
    """Hands each step exactly its own tasks' games, in the main process; with `ask`, of games that
    it has asked for.

    A request that the server did not answer with games (it died, was replaced, or the next sync
    overtook it) is made again in the plain way, with the version that is served then. What else
    goes wrong in the thread, `take` raises."""

    def __init__(self, link: Link, names: tuple[str, ...]) -> None:
        """Prepare for the adapters `names`; nothing is asked yet."""
        self._link, self._names = link, names
        self._flight: tuple[list[TaskRow], GamesRequest, Future[tuple[Any, float]]] | None = None

    def take(self, tasks: list[TaskRow], version: int) -> StepGames:
        """Return the games of a step's tasks: those that were asked for ahead, or played now with
        the served version.

        A ServerError as in `ServerLink.play`, or for stamps of others than those who were asked
        for."""
        start = time.perf_counter()
        flight, self._flight = self._flight, None
        if flight is not None:
            asked, request, answer = flight
            reason: object = "they are of other tasks than this step's"
            try:
                with says_so(
                    f"the games of version {request.version}, which were asked for a step ahead"
                ):
                    found, seconds = answer.result()
            except ServerError as error:
                reason = error
            else:
                if asked == tasks:
                    result = self._link.accept(request, found)
                    waited = time.perf_counter() - start
                    return StepGames(
                        result=result,
                        version=request.version,
                        rollout_seconds=seconds,
                        wait_seconds=waited,
                    )
            self._again(request.version, reason)
        again = time.perf_counter()
        result = self._link.play(tasks, self._names, version)
        end = time.perf_counter()
        return StepGames(
            result=result, version=version, rollout_seconds=end - again, wait_seconds=end - start
        )

    def ask(self, tasks: list[TaskRow], version: int) -> None:
        """Ask for the games of the next step with the version that is served now, and return at
        once.
        """
        try:
            request = self._link.prepare(tasks, self._names, version)
        except ServerError as error:
            # Lending a partner failed; the next step waits for the server and lends again.
            self._again(version, error)
            return
        answer: Future[tuple[Any, float]] = Future()
        self._flight = tasks, request, answer

        def fly() -> None:
            start = time.perf_counter()
            try:
                found = self._link.fetch(request)
            except BaseException as error:
                # Raised again where the games are taken, in the trainer's own thread.
                answer.set_exception(error)
            else:
                answer.set_result((found, time.perf_counter() - start))

        # It ends with the process: nobody has to wait for it.
        threading.Thread(target=fly, daemon=True).start()

    def _again(self, version: int, reason: object) -> None:
        self._link.incidents.record(
            "games_asked_again",
            f"the games that were asked for a step ahead, with version {version}: {reason}. Their "
            "step plays them anew",
            version=version,
        )


class KeptAdapters:
    """All adapters' weights as they were at the last weight syncs, on the CPU. Every rank keeps its
    own copy.

    Games are sampled with version v and learned from at v + 1, so π_old in the ratio of PPO
    (`loss`) is version v. Its logprobs are this trainer's own under the kept weights, so that the
    mismatch check and HANABI_SAMPLER_CORRECTION compare trainer and sampler at one version."""

    def __init__(self, behind: int = 1) -> None:
        """Begin with none; `behind` versions stay beside the newest."""
        self._behind = behind
        self.versions: dict[int, dict[str, torch.Tensor]] = {}
        """Oldest first."""

    def keep(self, model: torch.nn.Module, version: int) -> None:
        """Remember the weights of now under their version; only the versions right before it stay
        beside it.
        """
        before = {
            number: kept
            for number, kept in self.versions.items()
            if 0 < version - number <= self._behind
        }
        self.versions = {**before, version: copied(_adapters_of(model))}

    def using(self, model: torch.nn.Module, version: int) -> AbstractContextManager[None]:
        """Let forward passes use the weights of a version in a block."""
        if version not in self.versions:
            raise VersionError(
                f"the adapters of version {version} are not kept here (kept: "
                f"{list(self.versions)}), so its games "
                "cannot be learned from. Restart the trainer with RESUME=latest."
            )
        return holding(_adapters_of(model), self.versions[version])


def _adapters_of(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if "lora_" in name}
