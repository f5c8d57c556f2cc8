"""A Gymnasium environment with text observations as a one-player game.

For example HANABI_ENV=gymnasium:MyText-v0.
"""

from collections.abc import Mapping, Sequence
from importlib import metadata
from types import FunctionType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Discrete, Text

from hanabi_grpo.envs.interop.foreign import Foreign, ForeignConfig, ForeignGame, Package
from hanabi_grpo.envs.replies import last_choice
from hanabi_grpo.errors import SettingsError

_UNKNOWN = "?"
"""Package, or its version, of an environment that no installed package contains."""


class GymnasiumGame(ForeignGame):
    """One episode. An action is a text if the action space holds texts; otherwise, a number."""

    env_id: str
    choices: tuple[str, ...] | None = None
    """Numbers of a Discrete action space; None: any text in a Text space."""

    def begin(self) -> None:
        self._env: Any = gymnasium.make(self.env_id, disable_env_checker=True)
        self.messages[0], _ = self._env.reset(seed=self.seed)

    def advance(self, action: str) -> Sequence[float]:
        value = action if self.choices is None else int(action)
        self.messages[0], reward, terminated, truncated, _ = self._env.step(value)
        if terminated or truncated:
            self.actor = None
            self._env.close()
        return [float(reward)]

    def legal(self, player: int) -> tuple[str, ...] | None:
        """Return the numbers of a Discrete space."""
        return self.choices if self.actor == player else ()

    def parse(self, player: int, reply: str) -> str | None:
        """Return the last number that is an action, or a text in the action space."""
        if self.choices is not None:
            return last_choice(reply, self.choices)
        text = super().parse(player, reply)
        if text is None or text not in self._env.action_space:
            return None
        return text


def gymnasium_game(name: str) -> Foreign:
    """Return the environment of e.g. "gymnasium:MyText-v0".

    Raises:
        SettingsError: Gymnasium has no such environment, or its spaces are not supported.
    """
    _, _, env_id = name.partition(":")
    try:
        env = gymnasium.make(env_id, disable_env_checker=True)
    # Its packages may raise anything, e.g. an ImportError for a simulator that is not installed.
    except Exception as error:
        raise SettingsError(
            f"env={name!r}: {error} Packages register environments with an entry point in the "
            "group gymnasium.envs."
        ) from error
    observations = env.observation_space
    actions = env.action_space
    if not isinstance(observations, Text) or not isinstance(actions, Text | Discrete):
        raise SettingsError(
            f"env={name!r}: observations are {observations!s:.60}, actions {actions!s:.60}; "
            "observations must be a Text space, actions a Text or Discrete space. Wrap it in an "
            "environment with text observations and register that."
        )
    choices = None
    if isinstance(actions, Discrete):
        choices = tuple(str(actions.start + number) for number in range(actions.n))
    registered = env.spec
    assert registered is not None, "gymnasium.make has set it"
    values = {}
    if registered.max_episode_steps:
        values["max_turns"] = registered.max_episode_steps
    env.close()
    entry_point = _entry_point(registered)
    package = _package_of(entry_point)
    # Different packages may register environments of the same name.
    key = (
        str(observations),
        str(actions),
        entry_point,
        _plain(registered.kwargs),
        package.name,
        package.version,
    )
    attributes = {
        "env_id": env_id,
        "choices": choices,
        "bad_reply": "forfeit" if choices is None else "random_legal",
    }
    game = type("GymnasiumGame", (GymnasiumGame,), attributes)
    return Foreign(
        name, game, ForeignConfig, gymnasium.__version__, package=package, key=key, **values
    )


def _entry_point(registered: EnvSpec) -> str:
    """Return the address of the class or function that makes an environment: "module:Name"."""
    maker: Any = registered.entry_point
    if maker is None or isinstance(maker, str):
        return maker or ""
    if not isinstance(maker, type | FunctionType):
        maker = type(maker)
    return f"{maker.__module__}:{maker.__qualname__}"


def _package_of(entry_point: str) -> Package:
    """Return the installed package that contains an entry point."""
    module, _, _ = entry_point.partition(":")
    top_module, _, _ = module.partition(".")
    names = sorted(set(metadata.packages_distributions().get(top_module, ())))
    if not names:
        return Package(_UNKNOWN, _UNKNOWN)
    versions = [metadata.version(name) for name in names]
    return Package(",".join(names), ",".join(versions))


def _plain(value: object) -> object:
    """Return a setting of an environment with a `repr` that is the same in every process.

    Objects are represented by their class, because their `repr` often contains an address.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return sorted((repr(_plain(key)), _plain(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return type(value).__qualname__
