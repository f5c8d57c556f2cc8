"""An OpenEnv server of this machine as a game of one player.

Such as HANABI_ENV=openenv:localhost:8100 (extra openenv). Only this machine's ports: a name may
come from a request, and none may make a server connect anywhere. For another machine forward a
port. A game waits for its server and holds up whoever plays it meanwhile, and it cannot be copied.
"""

import json
import urllib.error
import urllib.request
import weakref
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Self

from hanabi_grpo.envs.interop.foreign import Foreign, ForeignConfig, ForeignGame, import_module
from hanabi_grpo.errors import ServerError, SettingsError

_CLIENT = "openenv.core.generic_client"
_EXTRA = "openenv"
_TIMEOUT = 30.0
"""Seconds that an answer may take."""
_ABANDONED: "SimpleQueue[Any]" = SimpleQueue()
"""Sessions of games that were dropped before their end.

The next game closes them, since the garbage collector must not wait."""


class OpenEnvConfig(ForeignConfig):
    """The settings."""

    observation_field: str = ""
    """Field of an observation that is the message; empty: all fields, a line each."""


class OpenEnvGame(ForeignGame):
    """One episode, a session of its own; a text is the one field of an action."""

    url: str
    action_field: str

    def begin(self) -> None:
        _close_abandoned_sessions()
        client = import_module(_CLIENT, self.url, _EXTRA)
        connection = client.GenericEnvClient(base_url=self.url, message_timeout_s=_TIMEOUT)
        self._session: Any = connection.sync()
        self._abandon = weakref.finalize(self, _ABANDONED.put, self._session)
        try:
            result = self._session.reset(seed=self.seed)
        except Exception as error:  # of sockets, websockets or the server
            raise ServerError(
                f"{self.url}: no episode of OpenEnv: {error}. Is the server up, with a free "
                "session?"
            ) from error
        self._observe(result)

    def advance(self, action: str) -> Sequence[float]:
        result = self._session.step({self.action_field: action})
        self._observe(result)
        return [float(result.reward or 0.0)]

    def copy(self) -> Self:
        """Refuse: the game lies in another process."""
        raise NotImplementedError(f"{self.url}: a game of OpenEnv cannot be copied.")

    def _observe(self, result: Any) -> None:
        """Take the message from OpenEnv's answer, and close the session at the end."""
        observation: Mapping[str, Any] = result.observation
        field = self.config.observation_field
        if not field:
            lines = [f"{name}: {value}" for name, value in observation.items()]
            self.messages[0] = "\n".join(lines)
        elif field in observation:
            self.messages[0] = str(observation[field])
        else:
            raise SettingsError(
                f"HANABI_OBSERVATION_FIELD={field}: {self.url} observes {', '.join(observation)}."
            )
        if result.done:
            self.actor = None
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
    """Return the environment of e.g. "openenv:localhost:8100"; the server has to be up.

    Raises:
        SettingsError: There is no OpenEnv server, or its actions are not one text.
    """
    import_module(_CLIENT, name, _EXTRA)
    _, _, address = name.partition(":")
    url = f"http://{address}"
    try:
        with urllib.request.urlopen(f"{url}/schema", timeout=_TIMEOUT) as answer:
            fields = json.load(answer)["action"]["properties"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"env={name!r}: {url}/schema is no OpenEnv server ({error}); start it first."
        ) from error
    texts = [field for field, kind in fields.items() if kind.get("type") == "string"]
    if len(texts) != 1:
        raise SettingsError(
            f"env={name!r}: its action has the texts {', '.join(texts) or 'none'}; an action of "
            "one text is needed."
        )
    [action_field] = texts
    game = type("OpenEnvGame", (OpenEnvGame,), {"url": url, "action_field": action_field})
    return Foreign(name, game, OpenEnvConfig, "openenv")
