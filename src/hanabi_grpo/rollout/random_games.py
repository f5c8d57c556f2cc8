"""Random games before a run, which show how long games are and which words they use.

They are played in the calling process. An environment may have games that never end: a server plays
those in separate processes, while here they are abandoned after a time limit.
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
"""Time limit of one game."""
MAX_LATE = 3
"""Number of abandoned games after which the environment is rejected."""

_Played = TypeVar("_Played")


class _LateError(BaseException):
    """The time limit of a game is exceeded; a BaseException, so environments do not catch it."""


def play_random_games(
    setup: Setup[Any], play: Callable[[int], _Played], num_games: int
) -> Iterator[_Played]:
    """Yield the result of each game that ended in time.

    Args:
        setup: The game, for messages.
        play: Plays the game of a seed to its end and returns a result.
        num_games: Number of games, with seeds 0, 1, 2, …

    Raises:
        SettingsError: `MAX_LATE` games, or all of them, did not end in time.
    """
    num_late = 0
    for seed in range(num_games):
        try:
            with _limit(SECONDS):
                played = play(seed)
        except _LateError:
            num_late += 1
            logger.warning(
                "%s: random game %d was abandoned: not finished after %g s",
                setup.environment.name,
                seed,
                SECONDS,
            )
            if num_late == min(MAX_LATE, num_games):
                raise SettingsError(
                    f"HANABI_ENV={setup.environment.name}: {num_late} of {seed + 1} random games "
                    f"did not finish within {SECONDS:g} s, so their length and vocabulary are "
                    "unknown. Check what its step() waits for, or choose a smaller preset."
                ) from None
            continue
        yield played


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise a `_LateError` if the block takes longer; works only in the main thread.

    In other threads nothing can interrupt an environment's code, so there is no limit.
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
