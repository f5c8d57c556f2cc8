"""Teachers: what a script would say on the turns of a player that learns (HANABI_TEACHER).

A teacher has a seat of its own in the same game, behind the player's: it is asked on each of the
player's turns, from the first on, and sees what the player may see and nothing else. What it says
travels with the turn as a `Lesson`.

That changes nothing in the game, unless the teacher plays a share of the turns
(HANABI_TEACHER_PLAYS): then the player's conversation has the teacher's reply in the place of one
that is sampled. Which turns these are follows from task, game, seat and turn alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from hanabi_grpo.agents.script import ScriptedPlayer, make_script
from hanabi_grpo.envs.base import Observation, Seat, Setup, Task, draw
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.loop import Player, PlayerSeat
from hanabi_grpo.settings.teachers import SeatTeacher
from hanabi_grpo.types import Episode, Lesson, Reply

_CHANCES = 2**32
"""Equally likely draws that decide whether a teacher plays."""


@runtime_checkable
class SayingSeat(Protocol):
    """A seat that can be told what it says."""

    async def say(self, seen: Observation, text: str) -> Reply:
        """Take a turn by a given reply.

        Args:
            seen: What the player may look at.
            text: The reply.

        Returns:
            It without `reply_ids`, since nobody samples it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaughtPlayer:
    """A player whose turns a script labels."""

    player: Player
    teacher: ScriptedPlayer
    plays: float = 0.0
    """Share of the turns that the teacher plays."""

    @property
    def name(self) -> str:
        """Name of the player."""
        return self.player.name

    def seat(self, player: int, *, task: Task[Any], game: int) -> "TaughtSeat":
        """Return a fresh seat of both, see `rollout.loop.Player.seat`."""
        return TaughtSeat(
            player=self.player.seat(player, task=task, game=game),
            teacher=self.teacher.policy.seat(player, task=task, game=game),
            plays=self.plays,
            key=(task.environment.name, task.split, task.seed, game, player),
        )


@dataclass(slots=True, kw_only=True)
class TaughtSeat:
    """A player of one game, with its teacher."""

    player: PlayerSeat
    teacher: Seat
    plays: float
    key: tuple[str | int, ...]
    """Of the game and the seat, for what is drawn."""
    turn: int = 0
    """Turns so far."""

    async def reply(self, seen: Observation) -> Reply:
        """Return the player's reply with what the teacher says to the same observation."""
        # The teacher is asked first: its view is of the moment of the question.
        lesson = _lesson(self.teacher.act(seen), seen)
        teacher_plays = self._draw()
        if teacher_plays and lesson is not None and isinstance(self.player, SayingSeat):
            reply = await self.player.say(seen, lesson.action)
            return replace(reply, lesson=replace(lesson, plays=True))
        reply = await self.player.reply(seen)
        return replace(reply, lesson=lesson)

    def _draw(self) -> bool:
        """Return whether the teacher plays on this turn."""
        number = draw("teacher plays", *self.key, self.turn, below=_CHANCES)
        self.turn += 1
        return number < self.plays * _CHANCES


def _lesson(text: str, seen: Observation) -> Lesson | None:
    """Return what a teacher's reply teaches; None where the rules do not allow it."""
    if seen.is_call(text):
        return Lesson(action=text)
    action = seen.parse(text)
    legal = seen.legal()
    if action is None or (legal is not None and action not in legal):
        return None
    return Lesson(action=action)


def with_teachers(
    players: Sequence[Player], teachers: Sequence[SeatTeacher | None], setup: Setup[Any]
) -> list[Player]:
    """Return the players of a game, those with a teacher as `TaughtPlayer`.

    Args:
        players: One per seat.
        teachers: Per seat its teacher, None where there is none; empty: nobody is taught.
        setup: The game, which has these scripts.
    """
    if not teachers:
        return list(players)
    seated: list[Player] = []
    for player, teacher in zip(players, teachers, strict=True):
        if teacher is None or not teacher.is_script:
            # Those of models come with the player, see `scored`.
            seated.append(player)
            continue
        script = make_script(setup, teacher.policy)
        seated.append(TaughtPlayer(player=player, teacher=script, plays=teacher.plays))
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
        if turn.lesson is not None and turn.lesson.action and chat is not None:
            turn = replace(turn, lesson=_encoded(turn.lesson, chat, max_tokens))
        turns.append(turn)
    return replace(episode, turns=tuple(turns))


def _encoded(lesson: Lesson, chat: ChatFormat, max_tokens: int) -> Lesson:
    ids = chat.said(lesson.action)
    if len(ids) > max_tokens:
        raise SettingsError(
            f"MAX_COMPLETION_LENGTH={max_tokens}: the teacher's reply {lesson.action!r} has "
            f"{len(ids)} tokens with its end, so no player could generate it; set {len(ids)} "
            "or more."
        )
    return replace(lesson, reply_ids=ids)
