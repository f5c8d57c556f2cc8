"""A Gymnasium environment with text observations as a one-player game.

For example HANABI_ENV=gymnasium:MyText-v0.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.spaces import Discrete, Text

from hanabi_grpo.envs.interop.foreign import Foreign, ForeignConfig, ForeignGame
from hanabi_grpo.envs.replies import last_choice
from hanabi_grpo.errors import SettingsError


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
    values = {}
    if env.spec and env.spec.max_episode_steps:
        values["max_turns"] = env.spec.max_episode_steps
    env.close()
    attributes = {
        "env_id": env_id,
        "choices": choices,
        "bad_reply": "forfeit" if choices is None else "random_legal",
    }
    game = type("GymnasiumGame", (GymnasiumGame,), attributes)
    return Foreign(name, game, ForeignConfig, gymnasium.__version__, **values)
