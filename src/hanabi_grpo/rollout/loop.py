"""The single game loop, and its interface to agents: models, scripts and people.

Servers, evaluation, demos and people all use `play_episode`. The agents are in `agents`.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import Episode, Reply, Turn


class PlayerSeat(Protocol):
    """One player in one game, with its private state, e.g. a conversation."""

    async def reply(self, seen: Observation) -> Reply:
        """Reply on this player's turn, or to the tool result if the last reply was a tool call.

        The texts of `seen` are built on demand, so that games of scripts stay fast.
        """
        ...


class Player(Protocol):
    """An agent that can be shared by any number of games."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def seat(self, player: int, *, task: Task[Any], game: int) -> PlayerSeat:
        """Return a fresh seat.

        Args:
            player: Number of the seat, from 0.
            task: The task that is played.
            game: Number of the game within the task's group.
        """
        ...


@dataclass(slots=True, kw_only=True)
class Progress:
    """Progress of an episode, for callers that may have to end it early."""

    num_turns: int = 0
    """Turns taken so far."""
    rewards: list[float] = field(default_factory=list)
    """Rewards of each player so far; empty before the first turn."""

    def add(self, turns: Sequence[Turn]) -> None:
        """Count the turns of one step."""
        for turn in turns:
            self.num_turns += not turn.is_call
            if not self.rewards:
                self.rewards = [0.0] * len(turn.rewards)
            for player in range(len(turn.rewards)):
                self.rewards[player] += turn.reward(player)


async def play_episode(
    task: Task[Any],
    players: Sequence[Player],
    *,
    game: int = 0,
    names: Sequence[str] = (),
    instance_id: str = "",
    progress: Progress | None = None,
) -> Episode:
    """Play one game to its end.

    A bad reply is data: the referee penalizes and replaces it. An exception raised by a seat ends
    the game. Players who act simultaneously are asked concurrently. A player that calls a tool is
    asked again, with the result as its message, until it acts.

    Args:
        task: The task that is played.
        players: One per seat, in turn order.
        game: Number of this game within the task's group; seeds the randomness of scripts and of
            the actions that replace bad replies.
        names: The policy of each seat, for the record; by default the players' own names.
        instance_id: Identifier of the server process, for the record.
        progress: Updated after every step.

    Raises:
        SettingsError: The number of players differs from the number of seats.
    """
    referee = Referee(task, number=game)
    if len(players) != referee.spec.num_players:
        raise SettingsError(
            f"{len(players)} players for an environment with {referee.spec.num_players} seats: "
            "give one for every seat."
        )
    seats = [player.seat(seat, task=task, game=game) for seat, player in enumerate(players)]
    while referee.status is None:
        acting = referee.to_act()
        if len(acting) == 1:
            replies = [await reply_of(referee, acting[0], seats[acting[0]])]
        else:
            replies = await reply_together(reply_of(referee, seat, seats[seat]) for seat in acting)
        full = [seat for seat, reply in zip(acting, replies, strict=True) if reply.out_of_tokens]
        if full:
            referee.out_of_tokens(full[0])
        else:
            turns = referee.step(dict(zip(acting, replies, strict=True)))
            if progress is not None:
                progress.add(turns)
    return referee.episode(
        seats=names or [player.name for player in players], instance_id=instance_id
    )


async def reply_of(referee: Referee, player: int, seat: PlayerSeat) -> Reply:
    """Return the reply with which a player acts, after its tool calls."""
    while True:
        reply = await seat.reply(referee.see(player))
        if reply.out_of_tokens:
            return referee.take_back_call(player) or reply
        wanted = referee.wanted_call(player, reply)
        if wanted is None:
            return reply
        outcome = await referee.tools_of(player).run_beside(wanted)
        referee.add_call(player, reply, wanted, outcome)


async def reply_together(replies: Iterable[Coroutine[Any, Any, Reply]]) -> list[Reply]:
    """Return all replies; if one raises, the others are first cancelled and awaited."""
    tasks = [asyncio.ensure_future(reply) for reply in replies]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
