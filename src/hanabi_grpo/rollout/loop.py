"""The only loop over a game, and who plays in it: the contract with a model, a script or a person.

Servers, evaluation, demos and people all play through `play_episode`.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hanabi_grpo.envs.base import Observation, Policy, Seat, Setup, Task
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.errors import SettingsError, shown
from hanabi_grpo.types import Episode, Reply


class PlayerSeat(Protocol):
    """One player in one game, with its private state, e.g. a conversation."""

    async def reply(self, seen: Observation) -> Reply:
        """Answer on this player's turn; the texts of `seen` are built when asked, so games of
        scripts stay fast.
        """
        ...


class Player(Protocol):
    """A way to play, shared by any number of games."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def seat(self, player: int, *, task: Task[Any], game: int) -> PlayerSeat:
        """Return a fresh seat for `player` (from 0) in game number `game` of the task."""
        ...


@dataclass(frozen=True, slots=True)
class ScriptedPlayer:
    """A script of an environment as a player."""

    policy: Policy

    @property
    def name(self) -> str:
        """Name of the script."""
        return self.policy.name

    def seat(self, player: int, *, task: Task[Any], game: int) -> "ScriptedSeat":
        """Return a fresh seat."""
        return ScriptedSeat(self.policy.seat(player, task=task, game=game))


@dataclass(frozen=True, slots=True)
class ScriptedSeat:
    """A script as one player of one game."""

    inner: Seat

    async def reply(self, seen: Observation) -> Reply:
        """Return the script's action as text; no message is built."""
        return Reply(text=self.inner.act(seen))


def make_script(setup: Setup[Any], name: str) -> ScriptedPlayer:
    """Return a script by its name; SettingsError where the environment has no such script."""
    check_script(setup, name)
    return ScriptedPlayer(setup.environment.policies[name]())


def check_script(setup: Setup[Any], name: str) -> None:
    """Refuse a script that the environment does not have, by a SettingsError."""
    if name not in setup.environment.policies:
        known = ", ".join(setup.environment.policies) or "none"
        raise SettingsError(
            f"{shown(name)}: the environment {setup.env} has no such script; its scripts: {known}."
        )


async def play_episode(
    task: Task[Any],
    players: Sequence[Player],
    *,
    game: int = 0,
    names: Sequence[str] = (),
    instance_id: str = "",
) -> Episode:
    """Play one game to its end.

    A bad reply is data: the referee penalises and replaces it. A seat that raises ends the game
    with that error. Players who are to act at the same time are asked at the same time.

    `players` are one per seat, in turn order; another number is a SettingsError. `game` is the
    number of this game within the task's group and feeds the randomness of scripts and replacing
    actions. The record has `names`, who sits in each seat (the players' own when left out), and
    `instance_id`, which server process plays."""
    referee = Referee(task, number=game)
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
            referee.step(dict(zip(acting, replies, strict=True)))
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
