"""The only loop over a game, and its interface to agents: models, scripts and people.

Servers, evaluation, demos and people all play through `play_episode`. The agents are in `agents`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import Episode, Reply

Run = Callable[..., Awaitable[Any]]
"""Calls a function with arguments, here or in a thread, and returns what it returns."""


async def run_here(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function at once."""
    return function(*args, **options)


class PlayerSeat(Protocol):
    """One player in one game, with its private state, e.g. a conversation."""

    async def reply(self, seen: Observation) -> Reply:
        """Answer on this player's turn.

        The texts of `seen` are built on demand, so that games of scripts stay fast.
        """
        ...


class Player(Protocol):
    """A way to play, shared by any number of games."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def seat(self, player: int, *, task: Task[Any], game: int) -> PlayerSeat:
        """Return a fresh seat.

        Args:
            player: Number of the seat, from 0.
            task: Start of the game.
            game: Number of the game within the task's group.
        """
        ...


async def play_episode(
    task: Task[Any],
    players: Sequence[Player],
    *,
    game: int = 0,
    names: Sequence[str] = (),
    instance_id: str = "",
    run: Run = run_here,
) -> Episode:
    """Play one game to its end.

    A bad reply is data: the referee penalises and replaces it. A seat that raises ends the game
    with that error. Players who act simultaneously are asked concurrently.

    Args:
        task: Start of the game.
        players: One per seat, in turn order.
        game: Number of this game within the task's group; it feeds the randomness of scripts and
            of the actions that replace bad replies.
        names: The policy of each seat, for the record; the players' own names when left out.
        instance_id: Identifier of the server process, for the record.
        run: How the start and the steps of the environment are made.

    Raises:
        SettingsError: The number of players is not the number of seats.
    """
    referee = await run(Referee, task, number=game)
    if len(players) != referee.spec.num_players:
        raise SettingsError(
            f"{len(players)} players for an environment of {referee.spec.num_players}: give one "
            "for every seat."
        )
    seats = [player.seat(seat, task=task, game=game) for seat, player in enumerate(players)]
    while referee.status is None:
        acting = referee.to_act()
        if len(acting) == 1:
            replies = [await seats[acting[0]].reply(referee.see(acting[0]))]
        else:
            replies = await reply_together([(seats[seat], referee.see(seat)) for seat in acting])
        full = [seat for seat, reply in zip(acting, replies, strict=True) if reply.out_of_tokens]
        if full:
            referee.out_of_tokens(full[0])
        else:
            await run(referee.step, dict(zip(acting, replies, strict=True)))
    return referee.episode(
        seats=names or [player.name for player in players], instance_id=instance_id
    )


async def reply_together(asked: Iterable[tuple[PlayerSeat, Observation]]) -> list[Reply]:
    """Return all replies; when one raises, the others are cancelled and awaited first."""
    tasks = [asyncio.ensure_future(seat.reply(seen)) for seat, seen in asked]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
