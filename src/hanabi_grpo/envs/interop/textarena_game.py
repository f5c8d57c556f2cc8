"""A game of TextArena, for one or several players.

Such as HANABI_ENV=textarena:TicTacToe-v0 (extra textarena).
"""

import random
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from pydantic import Field

from hanabi_grpo.envs.interop.foreign import Foreign, ForeignConfig, ForeignGame, import_module
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import MAX_PLAYERS

_LIBRARY = "textarena"
_LOCK = threading.RLock()
"""Held while Python's global generator is a game's own."""
_RAW = "-raw"
"""Suffix of a game without TextArena's wrappers, which show all messages each time."""
_TEMPLATE_TOKEN = re.compile(
    r"<(?=[|\uff5c/!\w])|\[(?=/?(?:INST|SYSTEM_PROMPT|[A-Z]+_TOOLS|TOOL_[A-Z]+)\])"
)
"""Where a tag begins that a chat template or a tokenizer might take for its own."""


class TextArenaConfig(ForeignConfig):
    """The settings."""

    players: int = Field(default=1, ge=1, le=MAX_PLAYERS)
    """Players of a game."""


class TextArenaGame(ForeignGame):
    """One episode.

    TextArena draws from Python's global generator: each game has a state of that generator of its
    own.
    """

    env_id: str
    bad_reply = "skip"

    @staticmethod
    def num_players(config: TextArenaConfig) -> int:
        return config.players

    def begin(self) -> None:
        """Start the game; TextArena's own texts hold the rules.

        Raises:
            SettingsError: The game cannot be played by so many players.
        """
        self._arena = import_module(_LIBRARY, self.env_id, _LIBRARY)
        self._random_state = random.Random(self.seed).getstate()
        self._all_messages = dict(self.messages)
        with self._own_random():
            try:
                self._env: Any = self._arena.make(self.env_id + _RAW)
                self._env.reset(num_players=self.config.players, seed=self.seed)
                self._observe()
            # Whatever its games raise; for a number of players it is an AssertionError.
            except Exception as error:
                raise SettingsError(
                    f"HANABI_PLAYERS={self.config.players}: {self.env_id} of TextArena does not "
                    f"start: {type(error).__name__}: {error}."
                ) from error

    def advance(self, action: str) -> Sequence[float]:
        num_players = len(self.messages)
        with self._own_random():
            done, _ = self._env.step(action=action)
            if not done:
                self._observe()
                return [0.0] * num_players
            rewards, _ = self._env.close()
        self.actor = None
        if not rewards:
            return [0.0] * num_players
        return [float(rewards.get(player, 0.0)) for player in range(num_players)]

    def parse(self, player: int, reply: str) -> str | None:
        """Return what a reply says, of which nothing is a special token.

        Others may be shown it as a part of their prompts. Only what looks like a token of a chat
        template is changed: "[CRANE]" is an action.
        """
        said = super().parse(player, reply)
        return None if said is None else _TEMPLATE_TOKEN.sub(r"\g<0> ", said)

    def state_message(self, player: int) -> str:
        """Return everything that the player was told."""
        return self._all_messages[player]

    def _observe(self) -> None:
        """Take from TextArena whose turn it is, and what is new for that player."""
        player, messages = self._env.get_observation()
        names = dict(self._env.state.role_mapping)
        names[self._arena.GAME_ID] = "GAME"
        lines = []
        for sender, text, _ in messages:
            name = names.get(sender, f"Player {sender}")
            lines.append(f"[{name}] {text}")
        news = "\n".join(lines)
        self.actor = player
        self.messages[player] = news
        self._all_messages[player] = f"{self._all_messages[player]}\n{news}".strip()

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """Let Python's global generator be this game's own meanwhile."""
        with _LOCK:
            outer_state = random.getstate()
            random.setstate(self._random_state)
            try:
                yield
            finally:
                self._random_state = random.getstate()
                random.setstate(outer_state)


def textarena_game(name: str) -> Foreign:
    """Return the environment of e.g. "textarena:Nim-v0".

    By default it has as few players as the game can be played with.

    Raises:
        SettingsError: TextArena is not installed, has no such game, or cannot start it.
    """
    arena = import_module(_LIBRARY, name, _LIBRARY)
    version = metadata.version(_LIBRARY)
    _, _, env_id = name.partition(":")
    if env_id + _RAW not in arena.envs.registration.ENV_REGISTRY:
        raise SettingsError(f"env={name!r}: TextArena {version} has no game {env_id!r}.")
    game: Any = type("TextArenaGame", (TextArenaGame,), {"env_id": env_id})
    players = _fewest_players(game, env_id)
    return Foreign(name, game, TextArenaConfig, version, players=players)


def _fewest_players(game: type[TextArenaGame], env_id: str) -> int:
    """Return the least number of players with which the game starts."""
    for players in range(1, MAX_PLAYERS):
        try:
            game(TextArenaConfig(preset=env_id, players=players), 0)
        except SettingsError:
            continue
        return players
    game(TextArenaConfig(preset=env_id, players=MAX_PLAYERS), 0)
    return MAX_PLAYERS
