"""An OpenEnv server on this machine as a one-player game.

For example HANABI_ENV=openenv:localhost:8100 (extra openenv). Only ports on this machine are
allowed; to use a server on another machine, forward a port. A game blocks its caller while it waits
for its server, for at most `openenv_session.DEADLINE` seconds per call, and it cannot be copied.
"""

import weakref
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Self

from hanabi_grpo.envs.interop.foreign import Foreign, ForeignConfig, ForeignGame, import_module
from hanabi_grpo.errors import ServerError, SettingsError

_SESSIONS = "hanabi_grpo.envs.interop.openenv_session"
"""Needs the extra, which may not be installed."""
_EXTRA = "openenv"
_ABANDONED: "SimpleQueue[Any]" = SimpleQueue()
"""Sessions of games that were dropped before their end.

The next game closes them, because the garbage collector must not block."""


class OpenEnvConfig(ForeignConfig):
    """Settings of a game on an OpenEnv server."""

    observation_field: str = ""
    """Observation field that holds the message; empty: all fields, one per line."""


class OpenEnvGame(ForeignGame):
    """One episode in its own session; an action has one field, a text."""

    host: str
    port: int
    action_field: str

    def begin(self) -> None:
        _close_abandoned_sessions()
        sessions = import_module(_SESSIONS, self.url, _EXTRA)
        self._session: Any = sessions.OpenEnvSession(self.host, self.port)
        self._abandon = weakref.finalize(self, _ABANDONED.put, self._session)
        self._observe(self._session.reset(self.seed))

    @property
    def url(self) -> str:
        """URL of the server, for error messages."""
        return f"http://{self.host}:{self.port}"

    def advance(self, action: str) -> Sequence[float]:
        result = self._session.step({self.action_field: action})
        self._observe(result)
        return [float(result.reward or 0.0)]

    def copy(self) -> Self:
        """Raise an error: the game runs in another process."""
        raise NotImplementedError(f"{self.url}: OpenEnv games cannot be copied.")

    def _observe(self, result: Any) -> None:
        """Take the message from OpenEnv's response; the end or an error closes the session."""
        observation: Mapping[str, Any] = result.observation
        field = self.config.observation_field
        if not field:
            lines = [f"{name}: {value}" for name, value in observation.items()]
            self.messages[0] = "\n".join(lines)
        elif field in observation:
            self.messages[0] = str(observation[field])
        else:
            self._end_session()
            raise SettingsError(
                f"HANABI_OBSERVATION_FIELD={field}: observations of {self.url} have the fields "
                f"{', '.join(observation)}."
            )
        if result.done:
            self.actor = None
            self._end_session()

    def _end_session(self) -> None:
        self._abandon.detach()
        self._session.close()


def _close_abandoned_sessions() -> None:
    while True:
        try:
            session = _ABANDONED.get_nowait()
        except Empty:
            return
        session.close()


def openenv_game(name: str) -> Foreign:
    """Return the environment of e.g. "openenv:localhost:8100"; the server must be running.

    Raises:
        SettingsError: There is no OpenEnv server, or its actions do not have exactly one text.
    """
    sessions = import_module(_SESSIONS, name, _EXTRA)
    _, host, port = name.split(":")
    try:
        described = sessions.describe(f"http://{host}:{port}")
    except ServerError as error:
        raise SettingsError(f"env={name!r}: {error}; start it first.") from error
    texts = described.text_fields
    if len(texts) != 1:
        raise SettingsError(
            f"env={name!r}: the text fields of its actions are {', '.join(texts) or 'none'}; "
            "actions must have exactly one text field."
        )
    [action_field] = texts
    parts = {"host": host, "port": int(port), "action_field": action_field}
    metadata = described.metadata
    return Foreign(
        name,
        type("OpenEnvGame", (OpenEnvGame,), parts),
        OpenEnvConfig,
        _EXTRA,
        # The address says nothing about the game: another server may use the port tomorrow.
        key=(action_field, metadata.name, metadata.version, metadata.description),
    )
