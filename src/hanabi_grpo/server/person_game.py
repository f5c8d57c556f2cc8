"""The server's side of one game that a person plays on the page.

The person's seat waits for moves in requests; scripts and the server's models have the other seats.
The browser gets only `PersonGame.state`: the scenes of the person's own seat, and the outcome once
the game is over.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hanabi_grpo.agents.person import is_numbered, read_reply, refusal
from hanabi_grpo.envs.base import Observation, Setup, Task
from hanabi_grpo.envs.endings import outcome
from hanabi_grpo.envs.people import Scene
from hanabi_grpo.errors import BusyError, HanabiGrpoError, SettingsError, shown
from hanabi_grpo.rollout.loop import Player, play_episode
from hanabi_grpo.rollout.person_messages import NewGameRequest, PersonStatus
from hanabi_grpo.settings.refs import is_frozen
from hanabi_grpo.texts import visible
from hanabi_grpo.types import HUMAN, Episode, Reply, player_name

logger = logging.getLogger(__name__)


_GUEST = "an adapter of another run"
"""What the page says instead of the name of a guest adapter, which is a digest."""


class AbandonedError(HanabiGrpoError):
    """The person has not played for too long."""


@dataclass(slots=True, kw_only=True, eq=False)
class PersonGame:
    """A game in progress, or a finished one whose record may still be fetched."""

    task: Task[Any]
    """The task that is played."""
    seat: int
    """The person's seat."""
    idle_seconds: float
    """The game ends after this long without a request from the person."""
    names: list[str]
    """The policy of each seat, for records; a model's version may rise during the game."""
    wanted: NewGameRequest | None = None
    """The request that started the game, for another game of the same players."""
    status: PersonStatus = PersonStatus.WAITING
    number: int = 0
    """Number of the state; it increases with every change."""
    episode: Episode | None = None
    """The episode, once the game is over."""
    problem: str = ""
    """Why the game failed."""
    heard: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """Time of the person's last request."""
    _seen: Observation | None = None
    """The person's observation; it keeps following the game as it continues."""
    _move: asyncio.Future[str] | None = None
    """The move that the game waits for."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def play(self, players: Sequence[Player], *, instance_id: str) -> None:
        """Play the game to its end; an error ends it as well.

        Args:
            players: The players by seat; the person's entry is ignored.
            instance_id: Identifier of the server process, for the record.
        """
        seated = [*players]
        seated[self.seat] = _Person(game=self)
        try:
            self.episode = await play_episode(
                self.task, seated, names=self.names, instance_id=instance_id
            )
        except HanabiGrpoError as error:
            self.fail(str(error))
        except Exception as error:
            logger.exception("a person's game failed")
            self.fail(f"the server failed: {type(error).__name__}; see its log.")
        else:
            self._change(PersonStatus.OVER)

    def hear(self) -> None:
        """Note a sign of life from the person."""
        self.heard = asyncio.get_running_loop().time()

    async def changed(self, after: int | None, seconds: float) -> None:
        """Wait for a newer state than `after`, at most this many seconds."""
        if after != self.number or self.status.is_end:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    def move(self, text: str, number: int) -> None:
        """Accept a move from the person.

        Raises:
            BusyError: It is not the person's turn, or the person saw a different state.
            SettingsError: The text names no legal action.
        """
        is_asked = self._move is not None and not self._move.done()
        if self._seen is None or not is_asked or self._move is None:
            raise BusyError(f"status={self.status}: it is not your turn. Request the state.")
        if number != self.number:
            raise BusyError(f"number={number}: the game is at {self.number}. Request the state.")
        scene = self._seen.scene()
        reply = read_reply(text.strip(), self._seen, scene)
        if reply is None:
            raise SettingsError(f"move={shown(text)}: {refusal(text.strip(), self._seen, scene)}")
        self._move.set_result(reply)

    async def ask(self, seen: Observation) -> Reply:
        """Wait for the person's reply.

        Raises:
            AbandonedError: The person sent no request for too long.
        """
        message = seen.message()
        self._seen = seen
        loop = asyncio.get_running_loop()
        self._move = loop.create_future()
        self._change(PersonStatus.YOUR_TURN)
        while not self._move.done():
            left = self.heard + self.idle_seconds - loop.time()
            if left <= 0:
                raise AbandonedError(
                    f"no move for {self.idle_seconds / 60:g} minutes, so the game was ended. Start "
                    "a new one."
                )
            await asyncio.wait({self._move}, timeout=left)
        reply = self._move.result()
        # The game advances as soon as this returns, so the status is updated after that.
        asyncio.get_running_loop().call_soon(self._waits)
        return Reply(text=reply, prompt=message)

    def state(self) -> dict[str, Any]:
        """Return the state for the person's browser, as JSON.

        Whoever knows the task can deal its cards, so it is only named once the game is over.
        """
        spec = self.task.setup.spec
        task = f"{self.task.split}/{self.task.seed}" if self.status.is_end else ""
        scene = None if self._seen is None else _scene_json(self._seen.scene())
        players = []
        for seat, name in enumerate(self.names):
            players.append(
                {
                    "name": player_name(seat),
                    "who": "you" if seat == self.seat else _partner(name),
                    "role": spec.roles[seat],
                }
            )
        return {
            "number": self.number,
            "status": self.status.value,
            "env": spec.env,
            "preset": visible(spec.preset),
            "task": task,
            "you": player_name(self.seat),
            "players": players,
            "rules": visible(self._rules()),
            "scene": scene,
            "outcome": outcome(spec, self.episode, self.seat) if self.episode else "",
            "problem": visible(self.problem),
        }

    def _rules(self) -> str:
        """Return the rules for the person, with the instruction of the seat."""
        return self.task.environment.person_message(self.task.config, self.seat)

    def _waits(self) -> None:
        if self.status is PersonStatus.YOUR_TURN:
            is_asked = self._move is not None and not self._move.done()
            if not is_asked:
                self._change(PersonStatus.WAITING)

    def fail(self, problem: str) -> None:
        """End the game without a result, unless it is already over."""
        if self.status.is_end:
            return
        self.problem = problem
        self._change(PersonStatus.FAILED)

    def _change(self, status: PersonStatus) -> None:
        self.status = status
        self.number += 1
        self._changed.set()
        self._changed = asyncio.Event()


def public_row(setup: Setup[Any]) -> dict[str, Any]:
    """Return a game as JSON for requests, with files by their digests and without instructions.

    Neither file paths nor the instructions of other seats may be disclosed.
    """
    row = setup.row()
    row["env_config"].pop("instruction", None)
    for name, outside in setup.environment.outside(setup.config).items():
        row["env_config"][name] = outside.digest
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class _Person:
    """The person of a game, as a player and as its only seat."""

    game: PersonGame
    name: str = HUMAN

    def seat(self, player: int, *, task: Task[Any], game: int) -> "_Person":
        return self

    async def reply(self, seen: Observation) -> Reply:
        return await self.game.ask(seen)


def _partner(name: str) -> str:
    """Return what the page says of the policy in another seat."""
    if is_frozen(name):
        return _GUEST
    return visible(name)


def _scene_json(scene: Scene) -> dict[str, Any]:
    """Return a scene as JSON; the page shows its texts unchanged."""
    choices = None
    numbered = False
    if scene.choices is not None:
        numbered = is_numbered(scene.choices)
        choices = []
        for choice in scene.choices:
            choices.append(
                {
                    "reply": choice.reply,
                    "label": visible(choice.label),
                    "group": visible(choice.group),
                }
            )
    return {
        "table": visible(scene.table),
        "news": [visible(sentence) for sentence in scene.news],
        "legend": visible(scene.legend),
        "choices": choices,
        "numbered": numbered,
        "drawn": scene.drawn,
    }
