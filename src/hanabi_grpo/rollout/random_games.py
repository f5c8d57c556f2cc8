"""Random games that are played before a run, to learn how long games are and which words they have.

They are played in the process that asks, and an environment may have games that never end. A server
plays those in processes of their own; here such a game is given up after a while.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError

logger = logging.getLogger(__name__)

SECONDS = 60.0
"""That one game may take."""
MAX_LATE = 3
"""Games that are given up before the environment is."""

_Played = TypeVar("_Played")


class _LateError(BaseException):
    """The time of a game is over; no environment's `except Exception` takes it for its own."""


def play_random_games(
    setup: Setup[Any], play: Callable[[int], _Played], num_games: int
) -> Iterator[_Played]:
    """Yield what came of each game that ended in time.

    Args:
        setup: What is played, for messages.
        play: Plays the game of a seed to its end.
        num_games: Games, of the seeds 0, 1, 2, …

    Raises:
        SettingsError: `MAX_LATE` games did not end in time, or none did.
    """
    num_late = 0
    for seed in range(num_games):
        try:
            with _limit(SECONDS):
                played = play(seed)
        except _LateError:
            num_late += 1
            logger.warning(
                "%s: random game %d was abandoned: not over after %g s",
                setup.environment.name,
                seed,
                SECONDS,
            )
            if num_late == min(MAX_LATE, num_games):
                raise SettingsError(
                    f"HANABI_ENV={setup.environment.name}: {num_late} of {seed + 1} random games "
                    f"were not over after {SECONDS:g} s, so their length and vocabulary are "
                    "unknown. Look at what its step() waits for, or choose a smaller preset."
                ) from None
            continue
        yield played


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise a `_LateError` in the main thread when the block takes longer.

    Elsewhere nothing can interrupt a call of somebody else's code, and there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _LateError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
