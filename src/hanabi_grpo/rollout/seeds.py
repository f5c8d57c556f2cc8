"""Seeds of sampled replies: one for each request, game, seat and turn.

A reply's seed depends on its game and turn, not on when, where or in which batch it is sampled. So
a game that is played again, after a failure or on another server, is the same game as long as the
same policies play it.
"""

from typing import Any

from hanabi_grpo.envs.base import Task, draw

SEED_LIMIT = 2**63
"""Exclusive upper bound of seeds: the largest that vLLM accepts is one less."""


def request_seed(seed: int, purpose: str, *when: int) -> int:
    """Return the seed of one request for games.

    Args:
        seed: Seed of the run or the evaluation.
        purpose: Purpose of the games, e.g. "training".
        *when: Numbers that distinguish it from other requests for the same purpose, such as the
            step's number, so that a repeated task gives different games.

    Example:
        request_seed(42, "training", 7, 0)
    """
    return draw("request", seed, purpose, *when, below=SEED_LIMIT)


def seat_seed(request: int, task: Task[Any], game: int, player: int) -> int:
    """Return the seed of one player in one game.

    Args:
        request: Seed of the request.
        task: The task that is played.
        game: Number of the game within the task's group.
        player: Number of the seat.
    """
    spec = task.setup.spec
    return draw(
        "seat",
        request,
        task.environment.name,
        spec.hash,
        task.split,
        task.seed,
        game,
        player,
        below=SEED_LIMIT,
    )


def reply_seed(seat: int, turn: int) -> int:
    """Return the seed of one reply.

    Args:
        seat: Seed of the player in the game, see `seat_seed`.
        turn: Number of the player's turn in the game, from 0.
    """
    return draw("reply", seat, turn, below=SEED_LIMIT)
