"""A game of TextArena, by itself or with several players: HANABI_ENV=textarena:TicTacToe-v0 (extra
textarena).
"""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from pydantic import Field

from hanabi_grpo.envs.interop.foreign import Foreign, ForeignConfig, ForeignGame, needed
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import MAX_PLAYERS

_LOCK = threading.RLock()


class TextArenaConfig(ForeignConfig):
    """The settings."""

    players: int = Field(default=1, ge=1, le=MAX_PLAYERS)
    """Players of a game."""


class TextArenaGame(ForeignGame):
    """One episode. TextArena draws from Python's global generator: each game has that generator's
    state of its own.
    """

    env_id: str
    bad_reply = "skip"

    @staticmethod
    def num_players(config: TextArenaConfig) -> int:
        return config.players

    def begin(self) -> None:
        """Start the game; TextArena's own texts hold the rules. A SettingsError: not with so many
        players.
        """
        self._arena, self._random = (
            needed("textarena", self.env_id, "textarena"),
            random.Random(self.seed).getstate(),
        )
        self._all = dict(self.told)
        with self._own_random():
            try:
                # Without its wrappers: they show all messages each time.
                self._env: Any = self._arena.make(f"{self.env_id}-raw")
                self._env.reset(num_players=self.config.players, seed=self.seed)
                self._listen()
            except (
                Exception
            ) as error:  # whatever its games raise, an AssertionError for a number of players
                raise SettingsError(
                    f"HANABI_PLAYERS={self.config.players}: {self.env_id} of TextArena does not "
                    "start: "
                    f"{type(error).__name__}: {error}."
                ) from error

    def advance(self, action: str) -> Sequence[float]:
        with self._own_random():
            done, _ = self._env.step(action=action)
            if not done:
                self._listen()
                return [0.0] * len(self.told)
            rewards, _ = self._env.close()
        self.actor = None
        return [float((rewards or {}).get(player, 0.0)) for player in self.told]

    def state_message(self, player: int) -> str:
        """Return everything that the player was told."""
        return self._all[player]

    def _listen(self) -> None:
        player, messages = self._env.get_observation()
        names = {**self._env.state.role_mapping, self._arena.GAME_ID: "GAME"}
        new = "\n".join(f"[{names.get(who, f'Player {who}')}] {text}" for who, text, _ in messages)
        self.actor, self.told[player] = player, new
        self._all[player] = f"{self._all[player]}\n{new}".strip()

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        with _LOCK:
            outer = random.getstate()
            random.setstate(self._random)
            try:
                yield
            finally:
                self._random = random.getstate()
                random.setstate(outer)


def textarena_game(name: str) -> Foreign:
    """Return the environment of e.g. "textarena:Nim-v0", by default with as few players as it
    takes.
    """
    arena, env_id = needed("textarena", name, "textarena"), name.partition(":")[2]
    if f"{env_id}-raw" not in arena.envs.registration.ENV_REGISTRY:
        raise SettingsError(
            f"env={name!r}: TextArena {metadata.version('textarena')} has no game {env_id!r}."
        )
    game: Any = type("TextArenaGame", (TextArenaGame,), {"env_id": env_id})
    for players in range(1, MAX_PLAYERS + 1):
        try:
            game(TextArenaConfig(preset=env_id, players=players), 0)
        except SettingsError:
            if players == MAX_PLAYERS:
                raise
        else:
            break
    return Foreign(name, game, TextArenaConfig, metadata.version("textarena"), players=players)
