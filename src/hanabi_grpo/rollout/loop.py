"""The only loop over a game. Servers, evaluation, demos and people all play through `play_episode`."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from hanabi_grpo.envs.base import Setup, Task
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.players import Player
from hanabi_grpo.types import Episode

T = TypeVar("T")


async def play_episode(
    task: Task[Any],
    players: Sequence[Player],
    *,
    game: int = 0,
    names: Sequence[str] = (),
    instance_id: str = "",
) -> Episode:
    """Play one game to its end.

    A bad reply is data: the referee penalises and replaces it. A seat that raises ends the game with that error.
    Players who are to act at the same time are asked at the same time.

    Args:
        task: What is played.
        players: One per seat, in turn order.
        game: Number of this game within the task's group; feeds the randomness of scripts and replacing actions.
        names: Who sits in each seat, for the record; the players' own names when left out.
        instance_id: Which server process plays, for the record.

    Raises:
        SettingsError: The number of players is not that of the environment.
    """
    referee = Referee(task, number=game)
    if len(players) != referee.spec.num_players:
        raise SettingsError(
            f"{len(players)} players for an environment of {referee.spec.num_players}: give one for every seat."
        )
    seats = [player.seat(seat, task=task, game=game) for seat, player in enumerate(players)]
    while referee.status is None:
        acting = referee.to_act()
        if len(acting) == 1:
            replies = [await seats[acting[0]].reply(referee.see(acting[0]))]
        else:
            replies = await _all_of([seats[seat].reply(referee.see(seat)) for seat in acting])
        full = [seat for seat, reply in zip(acting, replies, strict=True) if reply.out_of_tokens]
        if full:
            referee.out_of_tokens(full[0])
        else:
            referee.step(dict(zip(acting, replies, strict=True)))
    return referee.episode(seats=names or [player.name for player in players], instance_id=instance_id)


async def play_group(
    task: Task[Any], players: Sequence[Player], *, num_games: int, first_game: int = 0, instance_id: str = ""
) -> list[Episode]:
    """Play `num_games` games of one task concurrently and return them in order of their numbers.

    When one game raises, the others are cancelled and awaited, and the error of the first is raised.
    """
    games = range(first_game, first_game + num_games)
    return await _all_of([play_episode(task, players, game=game, instance_id=instance_id) for game in games])


def play_episodes_sync(setup: Setup[Any], players: Sequence[Player], suite: str, seeds: Iterable[int]) -> list[Episode]:
    """Play one game of each start, one after the other; for scripts, outside a running event loop."""

    async def play_all() -> list[Episode]:
        return [await play_episode(setup.task(suite, seed), players) for seed in seeds]

    return asyncio.run(play_all())


async def _all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    tasks = [asyncio.create_task(one) for one in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
