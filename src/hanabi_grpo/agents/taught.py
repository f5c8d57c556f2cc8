"""Script teachers: what a script would reply on a learning player's turns (HANABI_TEACHER).

A teacher has its own seat in the same game, behind the player's: it is asked on every turn of the
player, and sees exactly what the player may see. Its reply is stored with the turn as a `Lesson`.

The lesson does not affect the game, unless the teacher plays a share of the turns
(HANABI_TEACHER_PLAYS): on those, the player's conversation has the teacher's reply instead of a
sampled one. Task, game, seat and turn alone determine which turns these are.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from hanabi_grpo.agents.script import ScriptedPlayer, make_script
from hanabi_grpo.envs.base import MixingPolicy, Observation, Seat, Setup, Task, draw
from hanabi_grpo.envs.texts import before_answer
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.loop import Player, PlayerSeat
from hanabi_grpo.rollout.vocabulary import check_taught_reply
from hanabi_grpo.settings.teachers import SeatTeacher
from hanabi_grpo.types import (
    CHANCES_TOLERANCE,
    MAX_WEIGHTED_REPLIES,
    Episode,
    Lesson,
    Reply,
    WeightedReply,
)

_CHANCES = 2**32
"""Number of equally likely draws that decide whether a teacher plays."""
_CERTAIN = 1 - 1e-12
"""A reply with a higher probability counts as certain: the rest is rounding."""


@runtime_checkable
class SayingSeat(Protocol):
    """A seat that can be given its reply."""

    async def say(self, seen: Observation, text: str) -> Reply:
        """Take a turn with a given reply.

        Args:
            seen: The player's observation.
            text: The reply.

        Returns:
            The reply, without `reply_ids` since it was not sampled.
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
        """Return a fresh seat of the player and its teacher, see `rollout.loop.Player.seat`."""
        policy = self.teacher.policy
        return TaughtSeat(
            player=self.player.seat(player, task=task, game=game),
            teacher=policy.seat(player, task=task, game=game),
            chances=policy.chances if isinstance(policy, MixingPolicy) else None,
            plays=self.plays,
            key=(task.environment.name, task.split, task.seed, game, player),
        )


@dataclass(slots=True, kw_only=True)
class TaughtSeat:
    """A player of one game, with its teacher."""

    player: PlayerSeat
    teacher: Seat
    chances: Callable[[Observation], Mapping[str, float]] | None
    """Probabilities of the teacher's replies, see `MixingPolicy`; None: unknown."""
    plays: float
    key: tuple[str | int, ...]
    """Identifies the game and the seat in random draws."""
    turn: int = 0
    """Turns so far."""

    async def reply(self, seen: Observation) -> Reply:
        """Return the player's reply with the teacher's reply to the same observation."""
        # The teacher is asked first, so that it sees the state before the player's move.
        chances = {} if self.chances is None else self.chances(seen)
        lesson = _lesson(self.teacher.act(seen), seen, chances)
        teacher_plays = self._draw()
        if teacher_plays and lesson is not None and isinstance(self.player, SayingSeat):
            reply = await self.player.say(seen, lesson.text)
            return replace(reply, lesson=replace(lesson, plays=True))
        reply = await self.player.reply(seen)
        return replace(reply, lesson=lesson)

    def _draw(self) -> bool:
        """Return whether the teacher plays on this turn."""
        number = draw("teacher plays", *self.key, self.turn, below=_CHANCES)
        self.turn += 1
        return number < self.plays * _CHANCES


def _lesson(text: str, seen: Observation, chances: Mapping[str, float]) -> Lesson | None:
    """Return the lesson of a teacher's reply; None if the reply is not legal.

    Args:
        text: The reply.
        seen: The teacher's observation.
        chances: The probability of each reply; {}: unknown.
    """
    allowed = _allowed(text, seen)
    if allowed is None:
        return None
    thought, action = allowed
    return Lesson(action=action, thought=thought, replies=_weighted(chances, seen))


def _allowed(text: str, seen: Observation) -> tuple[str, str] | None:
    """Return the thought of a reply and its action or tool call; None if that is not legal.

    A call is the whole reply, so its thought is "".
    """
    if seen.is_call(text):
        return "", text
    action = seen.parse(text)
    legal = seen.legal()
    if action is None or (legal is not None and action not in legal):
        return None
    return before_answer(text), action


def _weighted(chances: Mapping[str, float], seen: Observation) -> tuple[WeightedReply, ...]:
    """Return the legal replies among which a teacher draws; () if there is no choice.

    The result is also () if there are more than `MAX_WEIGHTED_REPLIES`: a subset would be a
    different distribution, while the single drawn reply is unbiased.

    Raises:
        ValueError: The chances are not a probability distribution.
    """
    if not chances:
        return ()
    total = math.fsum(chances.values())
    if not (min(chances.values()) >= 0 and abs(total - 1) <= CHANCES_TOLERANCE):
        raise ValueError(
            f"a teacher's chances are {dict(chances)}; each must be at least 0, and their sum "
            "must be 1."
        )
    by_reply: dict[tuple[str, str], float] = {}
    for text, chance in chances.items():
        reply = _allowed(text, seen)
        if reply is not None and chance > 0:
            by_reply[reply] = by_reply.get(reply, 0.0) + chance
    legal_total = math.fsum(by_reply.values())
    if len(by_reply) > MAX_WEIGHTED_REPLIES or not legal_total:
        return ()
    if max(by_reply.values()) >= _CERTAIN * legal_total:
        return ()
    replies = []
    for (thought, action), chance in sorted(by_reply.items(), key=lambda item: -item[1]):
        replies.append(WeightedReply(action=action, thought=thought, chance=chance / legal_total))
    return tuple(replies)


def with_teachers(
    players: Sequence[Player], teachers: Sequence[SeatTeacher | None], setup: Setup[Any]
) -> list[Player]:
    """Return the players of a game, those with a script teacher as `TaughtPlayer`.

    Args:
        players: One per seat.
        teachers: The teacher of each seat, None for none; empty: no seat has a teacher.
        setup: The game, whose environment has the scripts.
    """
    if not teachers:
        return list(players)
    seated: list[Player] = []
    for player, teacher in zip(players, teachers, strict=True):
        if teacher is None or not teacher.is_script:
            # Model teachers are part of the player, see `scored`.
            seated.append(player)
            continue
        script = make_script(setup, teacher.policy)
        seated.append(TaughtPlayer(player=player, teacher=script, plays=teacher.plays))
    return seated


def with_lesson_ids(
    episode: Episode, chats: Sequence[ChatFormat | None], max_tokens: int
) -> Episode:
    """Return a game whose lessons are encoded with the tokenizers of their players.

    Args:
        episode: The game, as it was played here or in a worker, which has no tokenizer.
        chats: The chat format of each seat's model; None: the seat has no model and no teacher.
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
    replies = []
    for reply in lesson.replies:
        replies.append(replace(reply, reply_ids=_ids_of(reply.text, chat, max_tokens)))
    ids = _ids_of(lesson.text, chat, max_tokens)
    return replace(lesson, reply_ids=ids, replies=tuple(replies))


def _ids_of(text: str, chat: ChatFormat, max_tokens: int) -> tuple[int, ...]:
    """Return the tokens of a teacher's reply as its player would generate it."""
    ids = chat.said(text)
    if len(ids) > max_tokens:
        raise SettingsError(
            f"MAX_COMPLETION_LENGTH={max_tokens}: the teacher's reply {text!r} has "
            f"{len(ids)} tokens including its end token, so no player could generate it; set "
            f"{len(ids)} or more."
        )
    check_taught_reply(text, ids, chat.tokenizer)
    return ids
