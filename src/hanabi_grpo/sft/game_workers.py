"""Games of scripts on all cores, in the same order and with the same samples as on one.

A warm start needs thousands of games, and a script that searches may take seconds for each. This
process plays the first games itself. If that takes long, worker processes play the remaining ones.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.processes import worker_pool
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.samples import Sample

if TYPE_CHECKING:
    from hanabi_grpo.sft.sources import Sources

logger = logging.getLogger(__name__)

_SECONDS_ALONE = 5.0
"""Time after which workers play the remaining games; starting them takes about as long."""
_GAMES_OF_A_JOB = 4
"""Few, so that an interrupt loses few games of a slow script."""
_JOBS_PER_WORKER = 4
"""Jobs per worker that are submitted ahead; a finished one may have to wait for an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What a worker needs to know, in a form that can be sent to another process."""

    sources: "Sources"
    lineup: str
    seed: int
    env: str
    """The environment, which the worker looks up by its name."""
    env_config: Mapping[str, Any]
    chat: ChatFormat
    max_model_len: int
    max_completion_length: int
    belief_shares: tuple[float, ...]

    @classmethod
    def of(cls, sources: "Sources", lineup: str, encoder: Encoder, seed: int) -> "_Order":
        """Return an order of the games of a lineup, see `samples_of_lineup`."""
        return cls(
            sources=sources,
            lineup=lineup,
            seed=seed,
            env=encoder.setup.env,
            env_config=encoder.setup.config.model_dump(mode="json"),
            chat=encoder.chat,
            max_model_len=encoder.max_model_len,
            max_completion_length=encoder.max_completion_length,
            belief_shares=encoder.belief_shares,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """A game that a worker has played."""

    samples: list[Sample]
    counts: Counter[str]
    """`Encoder.counts` of this game."""


def samples_of_lineup(
    sources: "Sources", lineup: str, encoder: Encoder, *, seed: int, tasks: range, num_workers: int
) -> Generator[list[Sample], None, None]:
    """Yield the samples of each game of a lineup of scripts.

    Args:
        sources: Which replies are learned, and the share of random actions.
        lineup: The lineup.
        encoder: Encodes games as samples.
        seed: Seed of the games.
        tasks: Numbers of the games.
        num_workers: Most processes that play at once; 1: only this one.

    Raises:
        SettingsError: The lineup cannot be used.
    """
    may_use_workers = num_workers > 1 and _fits_workers(encoder)
    games = sources.lineup_games(lineup, encoder.setup, seed)
    started_at = time.monotonic()
    num_played = 0
    for task in tasks:
        yield sources.samples_of(*games.play(task), encoder)
        num_played += 1
        if may_use_workers and time.monotonic() - started_at >= _SECONDS_ALONE:
            break
    if num_played == len(tasks):
        return
    order = _Order.of(sources, lineup, encoder, seed)
    # Closing ends the workers, also if an error or an interrupt ends the games early.
    with closing(_played_by_workers(order, tasks[num_played:], num_workers)) as rest:
        for game in rest:
            encoder.counts.update(game.counts)
            yield game.samples


def _fits_workers(encoder: Encoder) -> bool:
    """Return whether several processes can play a game, each with an environment of its own.

    They look it up by its name. A game that a server plays may not have room for all of them.
    """
    setup = encoder.setup
    try:
        is_known = registry.get(setup.env) is setup.environment
    except SettingsError:
        return False
    return is_known and not registry.reaches_out(setup.env)


def _played_by_workers(
    order: _Order, tasks: range, num_workers: int
) -> Generator[_Played, None, None]:
    """Yield games that worker processes play, in order."""
    jobs = [
        tasks[first : first + _GAMES_OF_A_JOB] for first in range(0, len(tasks), _GAMES_OF_A_JOB)
    ]
    num_workers = min(num_workers, len(jobs))
    logger.info("%d processes play the remaining %d games", num_workers, len(tasks))
    num_ahead = num_workers * _JOBS_PER_WORKER
    submitted: deque[Future[list[_Played]]] = deque()
    with worker_pool(num_workers, _prepare, order) as pool:
        for job in jobs:
            submitted.append(pool.submit(_play, job))
            if len(submitted) == num_ahead:
                yield from submitted.popleft().result()
        while submitted:
            yield from submitted.popleft().result()


class _Worker:
    """What a worker process keeps between its jobs."""

    def __init__(self, order: _Order) -> None:
        """Look up the environment and make the scripts."""
        setup = registry.setup(order.env, order.env_config)
        self._sources = order.sources
        self._games = order.sources.lineup_games(order.lineup, setup, order.seed)
        self._encoder = Encoder(
            setup=setup,
            chat=order.chat,
            max_model_len=order.max_model_len,
            max_completion_length=order.max_completion_length,
            belief_shares=order.belief_shares,
        )

    def play(self, task: int) -> _Played:
        """Play a game.

        Args:
            task: Its number.
        """
        self._encoder.counts.clear()
        samples = self._sources.samples_of(*self._games.play(task), self._encoder)
        return _Played(samples=samples, counts=Counter(self._encoder.counts))


_workers: list[_Worker] = []
"""The worker of this process, if it is one; empty otherwise."""


def _prepare(order: _Order) -> None:
    """Prepare a worker process."""
    _workers.append(_Worker(order))


def _play(tasks: range) -> list[_Played]:
    """Play games, in a worker process."""
    [worker] = _workers
    return [worker.play(task) for task in tasks]
