"""The games that people play on the page: who may start one, its players, and when it ends.

Each reply of a model is sampled separately, as for `/reply/`, so a person who is thinking holds
neither a place of `pacing.Places` nor a version of an adapter. A trainer pushes and commits as
usual, and the person's partner continues with the newest version.
"""

import asyncio
import functools
import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from hanabi_grpo.agents.memory import past_turn, remembered_requests
from hanabi_grpo.agents.script import ScriptedPlayer, make_script
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.access import GameAccess
from hanabi_grpo.envs.base import Observation, Seat, Setup, Task
from hanabi_grpo.errors import BusyError, SettingsError, VersionError, shown
from hanabi_grpo.rollout.loop import Player
from hanabi_grpo.rollout.messages import EarlierTurn, ReplyRequest
from hanabi_grpo.rollout.person_messages import SUITE, NewGameRequest
from hanabi_grpo.server.adapter_store import AdapterStore
from hanabi_grpo.server.person_game import PersonGame, public_row
from hanabi_grpo.server.scheduler import Scheduler
from hanabi_grpo.server.threads import Thread
from hanabi_grpo.settings.refs import (
    BASE,
    SERVED,
    AdapterRef,
    Role,
    find_seat,
)
from hanabi_grpo.types import HUMAN, Reply, adapter_of, player_name

MAX_GAMES = 16
"""Games of people that may be open at once; finished games make room for new ones."""
IDLE_SECONDS = 1800.0
"""Idle time after which a game is ended."""
_REPLACEABLE_SECONDS = 120.0
"""Idle time after which the longest idle game may be ended for a new one."""
_MAX_RANDOM_SEED = 2**31
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonSettings:
    """The server's settings for games of people."""

    setups: tuple[Setup[Any], ...] = ()
    """The games that the server was started with, which its models know."""
    max_tokens: int = 256
    """Longest reply of a model, in tokens."""
    temperature: float = 1.0
    """Default sampling temperature of models."""


NOBODY_SET = PersonSettings()
"""Default settings for games of people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A parsed request: the task, and the seat assignment."""

    task: Task[Any]
    seat: int
    players: tuple[Player | None, ...]
    names: tuple[str, ...]


class PersonGames:
    """All games of people on one server. Used from one event loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        store: AdapterStore,
        access: GameAccess,
        settings: PersonSettings,
        *,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Begin without a game.

        Args:
            scheduler: Samples replies.
            store: Tells which adapters are served.
            access: The games and files that requests may name.
            settings: The server's settings for these games.
            idle_seconds: Idle time after which a game is ended.
        """
        self._scheduler = scheduler
        self._store = store
        self._access = access
        self._settings = settings
        self._idle_seconds = idle_seconds
        self._games: dict[bytes, PersonGame] = {}
        """By the digest of their token, so that look-ups take the same time for any wrong token."""
        self._running: dict[PersonGame, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        """Return the number of games that are open."""
        self._drop_idle()
        return len(self._games)

    async def begin(self, wanted: NewGameRequest) -> str:
        """Start a game and return its unguessable token.

        Raises:
            SettingsError: The request cannot be played; the message says what is allowed.
            VersionError: A requested adapter is not served.
            BusyError: The maximum number of games is open.
        """
        reading = self._scheduler.threads.requests(own=False)
        setup = await reading.run(self._setup, wanted)
        return self._start(setup, wanted)

    def again(self, token: str) -> str | None:
        """Start another game of the same rules and players, and return its token.

        The task is a random one, and the server's adapters play in their newest versions. The
        earlier game stays open.

        Args:
            token: The token of the earlier game; None is returned if there is no such game.

        Raises:
            SettingsError: A player is no longer available; the message says what is allowed.
            VersionError: An adapter is no longer served.
            BusyError: The maximum number of games is open.
        """
        game = self.find(token)
        if game is None or game.wanted is None:
            return None
        seats = tuple(map(_newest, game.wanted.seats))
        wanted = structs.replace(game.wanted, seats=seats, seed=None)
        return self._start(game.task.setup, wanted)

    def _setup(self, wanted: NewGameRequest) -> Setup[Any]:
        """Return the game of a request; raises as `GameAccess.setup`."""
        if wanted.rules is None:
            return self._access.setup(wanted.env, wanted.env_config)
        row = {"env": wanted.env, "env_config": wanted.env_config}
        for setup in self._settings.setups:
            if setup.spec.hash == wanted.rules and public_row(setup) == row:
                return setup
        raise SettingsError(
            f"rules={shown(wanted.rules)}: this server was not started with this game of "
            f"{shown(wanted.env)}. Reload the page to see its games, or omit the field."
        )

    def _start(self, setup: Setup[Any], wanted: NewGameRequest) -> str:
        """Start a game and return its token; raises as `begin`."""
        planned = self._plan(setup, wanted)
        self._make_room()
        game = PersonGame(
            task=planned.task,
            seat=planned.seat,
            idle_seconds=self._idle_seconds,
            names=list(planned.names),
            wanted=wanted,
        )
        players = []
        for seat, player in enumerate(planned.players):
            if isinstance(player, _Partner):
                player = replace(player, names=game.names, player=seat)
            players.append(player or _Nobody())
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._games[_digest(token)] = game
        playing = game.play(players, instance_id=self._scheduler.instance_id)
        self._running[game] = asyncio.create_task(playing)
        self._running[game].add_done_callback(lambda _: self._running.pop(game, None))
        return token

    def find(self, token: str, *, is_person: bool = True) -> PersonGame | None:
        """Return the game of a token; None if it does not exist, or no longer.

        Args:
            token: The token that `begin` returned.
            is_person: Whether this counts as a sign of life from the person.
        """
        self._drop_idle()
        game = self._games.get(_digest(token))
        if game is not None and is_person:
            game.hear()
        return game

    def leave(self, token: str) -> None:
        """End a game and forget it; unknown tokens are ignored."""
        game = self._games.pop(_digest(token), None)
        if game is not None:
            self._end(game)

    def _end(self, game: PersonGame) -> None:
        game.fail("the game was left.")
        playing = self._running.pop(game, None)
        if playing is not None:
            playing.cancel()

    def _drop_idle(self) -> None:
        """End and forget the games that have been idle for too long."""
        now = asyncio.get_running_loop().time()
        for digest, game in list(self._games.items()):
            if now - game.heard >= self._idle_seconds:
                del self._games[digest]
                self._end(game)

    def _make_room(self) -> None:
        self._drop_idle()
        if len(self._games) < MAX_GAMES:
            return
        # Finished games go first, then the one that has been idle longest.
        digest = min(
            self._games,
            key=lambda digest: (not self._games[digest].status.is_end, self._games[digest].heard),
        )
        if self._games[digest].status.is_end:
            del self._games[digest]
            return
        idle = asyncio.get_running_loop().time() - self._games[digest].heard
        if idle < _REPLACEABLE_SECONDS:
            raise BusyError(
                f"{MAX_GAMES} games with people are open, the maximum of this server, and all "
                "are active. Leave one, or try again in a few minutes."
            )
        self._end(self._games.pop(digest))

    def _plan(self, setup: Setup[Any], wanted: NewGameRequest) -> _Planned:
        if registry.may_block(setup):
            raise SettingsError(
                f"env={shown(wanted.env)}: its calls may block, so it cannot be played on this "
                f"page. Play it in the terminal: hanabi-grpo play --env {shown(wanted.env)}."
            )
        num_players = setup.spec.num_players
        if len(wanted.seats) != num_players or wanted.seats.count(HUMAN) != 1:
            raise SettingsError(
                f"seats={shown(wanted.seats)}: {setup.env} {setup.spec.preset} needs "
                f"{num_players} seats, one of them {HUMAN}."
            )
        temperature = wanted.temperature
        if temperature is None:
            temperature = self._settings.temperature
        players: list[Player | None] = []
        names = []
        for seat, spec in enumerate(wanted.seats):
            if spec == HUMAN:
                players.append(None)
                names.append(HUMAN)
                continue
            player = self._player(setup, spec, seat, temperature)
            players.append(player)
            names.append(player.name)
        seed = wanted.seed
        if seed is None:
            seed = secrets.randbelow(_MAX_RANDOM_SEED)
        return _Planned(
            task=setup.task(SUITE, seed),
            seat=wanted.seats.index(HUMAN),
            players=tuple(players),
            names=tuple(names),
        )

    def _player(self, setup: Setup[Any], spec: str, seat: int, temperature: float) -> Player:
        if spec in setup.environment.policies:
            script = make_script(setup, spec)
            if spec in setup.environment.slow_policies:
                return _SlowScript(script=script, thread=self._scheduler.threads.people)
            return script
        versions = self._store.versions()
        adapter = None
        version = None
        ref = find_seat(spec)
        if spec == SERVED:
            adapter = adapter_of(player_name(seat), versions)
        elif spec in versions:
            adapter = spec
        elif isinstance(ref, AdapterRef):
            adapter, version = ref.adapter, ref.version
        elif ref is not Role.BASE:
            held = [SERVED, *versions, *self._store.frozen.names()]
            allowed = ", ".join([*setup.environment.policies, BASE, *held])
            raise SettingsError(f"seats.{seat}={shown(spec)}: allowed besides {HUMAN}: {allowed}.")
        partner = _Partner(
            scheduler=self._scheduler,
            store=self._store,
            adapter=adapter,
            version=version,
            max_tokens=self._settings.max_tokens,
            temperature=temperature,
        )
        if version is not None and partner.name != f"{adapter}@{version}":
            raise VersionError(
                f"seats.{seat}={shown(spec)}: the server serves {partner.name} and keeps no other "
                f"version. Choose {partner.name}."
            )
        return partner


def _newest(spec: str) -> str:
    """Return the policy spec of a seat in another game: the server's adapters without a version."""
    ref = find_seat(spec)
    if isinstance(ref, AdapterRef) and not ref.is_guest:
        return ref.adapter
    return spec


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class _Nobody:
    """Placeholder for the person's seat in a list of players, see `PersonGame.play`."""

    name: str = HUMAN

    def seat(self, player: int, *, task: Task[Any], game: int) -> Any:
        raise AssertionError("the person has this seat")


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlowScript:
    """A script that may take seconds for a move, so it acts in a thread."""

    script: ScriptedPlayer
    thread: Thread

    @property
    def name(self) -> str:
        return self.script.name

    def seat(self, player: int, *, task: Task[Any], game: int) -> "_SlowSeat":
        take_seat = functools.partial(self.script.policy.seat, player, task=task, game=game)
        return _SlowSeat(take_seat=take_seat, thread=self.thread)


@dataclass(slots=True, kw_only=True)
class _SlowSeat:
    """A slow script as one player of one game."""

    take_seat: Callable[[], Seat]
    """Takes the script's seat, which may take minutes: a best response is computed then."""
    thread: Thread
    inner: Seat | None = None
    """The script's seat from its first turn on."""

    async def reply(self, seen: Observation) -> Reply:
        return Reply(text=await self.thread.run(self._act, seen))

    def _act(self, seen: Observation) -> str:
        if self.inner is None:
            self.inner = self.take_seat()
        return self.inner.act(seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partner:
    """A model of this server as a person's partner, in its newest version at each turn."""

    scheduler: Scheduler
    store: AdapterStore
    adapter: str | None
    """None: the base model."""
    version: int | None
    """The version of a guest, which has only one; otherwise ignored once the game has started."""
    max_tokens: int
    temperature: float
    names: list[str] = field(default_factory=list)
    """The names of the game's seats, updated when there is a newer version."""
    player: int = 0
    """Number of its seat."""

    @property
    def name(self) -> str:
        """Name of the model in requests and records.

        Raises:
            VersionError: The server does not hold it.
        """
        if self.adapter is None:
            return BASE
        guest = f"{self.adapter}@{self.version}"
        if guest in self.store.frozen.names():
            return guest
        versions = self.store.versions()
        if self.adapter not in versions:
            held = [f"{name}@{version}" for name, version in versions.items()]
            held += self.store.frozen.names()
            raise VersionError(
                f"{self.adapter}: this server serves no such adapter (held: "
                f"{', '.join(held) or 'none'}). Train first, or choose {BASE} or a script."
            )
        return f"{self.adapter}@{versions[self.adapter]}"

    def seat(self, player: int, *, task: Task[Any], game: int) -> "_PartnerSeat":
        return _PartnerSeat(
            partner=self, system=task.environment.system_message(task.config, player)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartnerSeat:
    """A model of this server as one player of one game."""

    partner: _Partner
    system: str
    past: list[EarlierTurn] = field(default_factory=list)
    """Past turns of the conversation."""

    async def reply(self, seen: Observation) -> Reply:
        partner = self.partner
        name = partner.name
        partner.names[partner.player] = name
        memory = seen.window
        request = ReplyRequest(
            seat=name,
            system=self.system,
            turns=remembered_requests(self.past, memory, is_continued=seen.follows_call),
            fresh=memory is not None,
            prompt=seen.message(),
            follows_call=seen.follows_call,
            max_tokens=partner.max_tokens,
            temperature=partner.temperature,
        )
        reply = await partner.scheduler.reply(request, player_name(partner.player))
        if not reply.out_of_tokens:
            self.past.append(past_turn(request, reply))
        return replace(reply, fresh=request.fresh and not request.follows_call)


def playable_games(settings: PersonSettings) -> list[Setup[Any]]:
    """Return the games that the page may offer: the server's own first, then this package's.

    Args:
        settings: The server's settings for these games.
    """
    chosen: dict[tuple[str, str], Setup[Any]] = {}
    for setup in settings.setups:
        chosen.setdefault((setup.env, setup.spec.preset), setup)
    for name in registry.OWN:
        environment = registry.get(name)
        for preset, config in environment.presets.items():
            chosen.setdefault((name, preset), Setup(environment, config))
    return [setup for setup in chosen.values() if not registry.may_block(setup)]
