"""A TextArena game for one or several players.

For example HANABI_ENV=textarena:TicTacToe-v0 (extra textarena).
"""

import random
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from numbers import Real
from typing import Any

import numpy as np
from pydantic import Field

from hanabi_grpo.envs.interop.foreign import (
    Foreign,
    ForeignConfig,
    ForeignGame,
    Package,
    import_module,
)
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import MAX_PLAYERS

_LIBRARY = "textarena"
_LOCK = threading.RLock()
"""Held while the global generators have the state of one game."""
_NUMPY_SEEDS = 1 << 32
"""Number of seeds of NumPy's global generator."""
_INVALID_MOVE = -1.0
"""TextArena's reward of a player whose invalid move ended the game."""
_RAW = "-raw"
"""Suffix of a game without TextArena's wrappers, which repeat all messages each time."""
_TEMPLATE_TOKEN = re.compile(
    r"<(?=[|\uff5c/!\w])|\[(?=/?(?:INST|SYSTEM_PROMPT|[A-Z]+_TOOLS|TOOL_[A-Z]+)\])"
)
"""Start of a tag that a chat template or a tokenizer might take for a special token."""


class TextArenaConfig(ForeignConfig):
    """Settings of a TextArena game."""

    players: int = Field(default=1, ge=1, le=MAX_PLAYERS)
    """Number of players."""


class TextArenaGame(ForeignGame):
    """One episode.

    TextArena draws from the global random generators of Python and NumPy, so each game keeps its
    own state of them.
    """

    env_id: str
    bad_reply = "skip"

    @staticmethod
    def num_players(config: TextArenaConfig) -> int:
        return config.players

    def begin(self) -> None:
        """Start the game; TextArena's own texts explain the rules.

        Raises:
            SettingsError: The game does not support this number of players.
        """
        self._arena = import_module(_LIBRARY, self.env_id, _LIBRARY)
        self._random_state = random.Random(self.seed).getstate()
        self._numpy_state = np.random.RandomState(self.seed % _NUMPY_SEEDS).get_state()
        self._all_messages = dict(self.messages)
        with self._own_random():
            try:
                self._env: Any = self._arena.make(self.env_id + _RAW)
                self._env.reset(num_players=self.config.players, seed=self.seed)
                self._check_players()
                self._observe()
            # Games may raise anything; a wrong number of players raises an AssertionError.
            except Exception as error:
                raise SettingsError(
                    f"HANABI_PLAYERS={self.config.players}: TextArena's {self.env_id} does not "
                    f"start: {type(error).__name__}: {error}."
                ) from error

    def _check_players(self) -> None:
        """Raise an error if the game has another number of players than it was asked for.

        Some games ignore the number, and always have two.
        """
        num_players = self._env.state.num_players
        if num_players != self.config.players:
            raise ValueError(f"it has {num_players} players")

    def advance(self, action: str) -> Sequence[float]:
        num_players = len(self.messages)
        with self._own_random():
            done, _ = self._env.step(action=action)
            if not done:
                self._observe()
                return [0.0] * num_players
            rewards, _ = self._env.close()
        mover, self.actor = self.actor, None
        if not rewards:
            return [0.0] * num_players
        paid = [rewards.get(player, 0.0) for player in range(num_players)]
        if not all(isinstance(reward, Real) for reward in paid):
            # Some games return the reason of an invalid move in place of the reward.
            return [_INVALID_MOVE if player == mover else 0.0 for player in range(num_players)]
        return [float(reward) for reward in paid]

    def parse(self, player: int, reply: str) -> str | None:
        """Return what a reply says, with special tokens broken up.

        Other players may read it as part of their prompts. Only text that looks like a token of a
        chat template is changed, because "[CRANE]" is an action.
        """
        said = super().parse(player, reply)
        return None if said is None else _TEMPLATE_TOKEN.sub(r"\g<0> ", said)

    def state_message(self, player: int) -> str:
        """Return everything that the player was told."""
        return self._all_messages[player]

    def _observe(self) -> None:
        """Get from TextArena whose turn it is, and what is new for that player."""
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
        """Give the global random generators this game's state within the block."""
        with _LOCK:
            outer_state = random.getstate()
            outer_numpy_state = np.random.get_state()
            random.setstate(self._random_state)
            np.random.set_state(self._numpy_state)
            try:
                yield
            finally:
                self._random_state = random.getstate()
                self._numpy_state = np.random.get_state()
                random.setstate(outer_state)
                np.random.set_state(outer_numpy_state)


def textarena_game(name: str) -> Foreign:
    """Return the environment of e.g. "textarena:Nim-v0".

    By default, it has the smallest number of players that the game supports.

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
    package = Package(_LIBRARY, version)
    return Foreign(name, game, TextArenaConfig, version, package=package, players=players)


def _fewest_players(game: type[TextArenaGame], env_id: str) -> int:
    """Return the smallest number of players with which the game starts."""
    for players in range(1, MAX_PLAYERS):
        try:
            game(TextArenaConfig(preset=env_id, players=players), 0)
        except SettingsError:
            continue
        return players
    game(TextArenaConfig(preset=env_id, players=MAX_PLAYERS), 0)
    return MAX_PLAYERS
