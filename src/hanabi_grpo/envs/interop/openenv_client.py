"""An OpenEnv server of this machine as a game of one player: HANABI_ENV=openenv:localhost:8100
(extra openenv).

Only this machine's ports: a name may come from a request, and none may make a server connect
anywhere. For another machine forward a port. A game waits for its server and holds up whoever plays
it meanwhile, and it cannot be copied."""

import contextlib
import json
import urllib.error
import urllib.request
import weakref
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Self

from hanabi_grpo.envs.interop.foreign import Foreign, ForeignConfig, ForeignGame, needed
from hanabi_grpo.errors import ServerError, SettingsError

_SECONDS = 30.0
_ABANDONED: "SimpleQueue[Any]" = SimpleQueue()
"""Sessions of games that nobody holds any more; the next game closes them, since the collector must
not wait.
"""


class OpenEnvConfig(ForeignConfig):
    """The settings."""

    observation_field: str = ""
    """Field of an observation that is the message; empty: all fields, a line each."""


class OpenEnvGame(ForeignGame):
    """One episode, a session of its own; a text is the one field of an action."""

    url: str
    action_field: str

    def begin(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                _ABANDONED.get_nowait().close()
        client = needed("openenv.core.generic_client", self.url, "openenv")
        self._session: Any = client.GenericEnvClient(
            base_url=self.url, message_timeout_s=_SECONDS
        ).sync()
        self._abandon = weakref.finalize(self, _ABANDONED.put, self._session)
        try:
            told = self._session.reset(seed=self.seed)
        except Exception as error:  # of sockets, websockets or the server
            raise ServerError(
                f"{self.url}: no episode of OpenEnv: {error}. Is the server up, with a free "
                "session?"
            ) from error
        self._hear(told)

    def advance(self, action: str) -> Sequence[float]:
        return [self._hear(self._session.step({self.action_field: action}))]

    def copy(self) -> Self:
        """Refuse: the game lies in another process."""
        raise NotImplementedError(f"{self.url}: a game of OpenEnv cannot be copied.")

    def _hear(self, told: Any) -> float:
        seen: Mapping[str, Any] = told.observation
        field = self.config.observation_field
        if field and field not in seen:
            raise SettingsError(
                f"HANABI_OBSERVATION_FIELD={field}: {self.url} observes {', '.join(seen)}."
            )
        self.told[0] = (
            str(seen[field])
            if field
            else "\n".join(f"{name}: {value}" for name, value in seen.items())
        )
        if told.done:
            self.actor = None
            self._abandon.detach()
            self._session.close()
        return float(told.reward or 0.0)


def openenv_game(name: str) -> Foreign:
    """Return the environment of e.g. "openenv:localhost:8100"; the server has to be up."""
    needed("openenv.core.generic_client", name, "openenv")
    url = f"http://{name.partition(':')[2]}"
    try:
        with urllib.request.urlopen(f"{url}/schema", timeout=_SECONDS) as answer:
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
    game = type("OpenEnvGame", (OpenEnvGame,), {"url": url, "action_field": texts[0]})
    return Foreign(name, game, OpenEnvConfig, "openenv")
