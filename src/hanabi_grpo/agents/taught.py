"""Teachers: what a script would say on the turns of a player that learns (HANABI_TEACHER).

A teacher has a seat of its own in the same game, behind the player's: it is asked on each of the
player's turns, from the first on, and sees what the player may see and nothing else. What it says
travels with the turn as a `Lesson`, and changes nothing in the game.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hanabi_grpo.agents.script import ScriptedPlayer, make_script
from hanabi_grpo.envs.base import Observation, Seat, Setup, Task
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.loop import Player, PlayerSeat
from hanabi_grpo.types import Episode, Lesson, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class TaughtPlayer:
    """A player whose turns a script labels."""

    player: Player
    teacher: ScriptedPlayer

    @property
    def name(self) -> str:
        """Name of the player."""
        return self.player.name

    def seat(self, player: int, *, task: Task[Any], game: int) -> "TaughtSeat":
        """Return a fresh seat of both, see `rollout.loop.Player.seat`."""
        return TaughtSeat(
            player=self.player.seat(player, task=task, game=game),
            teacher=self.teacher.policy.seat(player, task=task, game=game),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaughtSeat:
    """A player of one game, with its teacher."""

    player: PlayerSeat
    teacher: Seat

    async def reply(self, seen: Observation) -> Reply:
        """Return the player's reply with what the teacher says to the same observation."""
        # The teacher is asked first: its view is of the moment of the question.
        lesson = _lesson(self.teacher.act(seen), seen)
        reply = await self.player.reply(seen)
        return replace(reply, lesson=lesson)


def _lesson(text: str, seen: Observation) -> Lesson | None:
    """Return what a teacher's reply teaches; None where the rules do not allow it."""
    action = seen.parse(text)
    legal = seen.legal()
    if action is None or (legal is not None and action not in legal):
        return None
    return Lesson(action=action)


def with_teachers(
    players: Sequence[Player], teachers: Sequence[str], setup: Setup[Any]
) -> list[Player]:
    """Return the players of a game, those with a teacher as `TaughtPlayer`.

    Args:
        players: One per seat.
        teachers: Per seat the name of its teacher, "" for none; empty: nobody is taught.
        setup: The game, which has these scripts.
    """
    if not teachers:
        return list(players)
    seated: list[Player] = []
    for player, teacher in zip(players, teachers, strict=True):
        if teacher:
            seated.append(TaughtPlayer(player=player, teacher=make_script(setup, teacher)))
        else:
            seated.append(player)
    return seated


def with_lesson_ids(
    episode: Episode, chats: Sequence[ChatFormat | None], max_tokens: int
) -> Episode:
    """Return a game whose lessons have the tokens of the players that they are for.

    Args:
        episode: The game, as it was played here or in a worker, which has no tokenizer.
        chats: Per seat the chat format of its model; None: it has none, and no teacher.
        max_tokens: Longest reply, in tokens.

    Raises:
        SettingsError: A lesson is longer than the player's replies may be.
    """
    if all(turn.lesson is None for turn in episode.turns):
        return episode
    turns = []
    for turn in episode.turns:
        chat = chats[turn.player]
        if turn.lesson is not None and chat is not None:
            turn = replace(turn, lesson=_encoded(turn.lesson, chat, max_tokens))
        turns.append(turn)
    return replace(episode, turns=tuple(turns))


def _encoded(lesson: Lesson, chat: ChatFormat, max_tokens: int) -> Lesson:
    ids = chat.said(lesson.action)
    if len(ids) > max_tokens:
        raise SettingsError(
            f"MAX_COMPLETION_LENGTH={max_tokens}: the teacher's reply {lesson.action!r} has "
            f"{len(ids)} tokens with its end, so no player could say it; set {len(ids)} or more."
        )
    return replace(lesson, reply_ids=ids)
