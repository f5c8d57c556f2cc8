"""A Gymnasium environment with texts as observations as a game of one player:
HANABI_ENV=gymnasium:MyText-v0.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.spaces import Discrete, Text

from hanabi_grpo.envs.interop.foreign import Foreign, ForeignConfig, ForeignGame
from hanabi_grpo.envs.replies import last_choice
from hanabi_grpo.errors import SettingsError


class GymnasiumGame(ForeignGame):
    """One episode. A text is an action where the action space is of texts, else a number."""

    env_id: str
    choices: tuple[str, ...] | None = None

    def begin(self) -> None:
        self._env: Any = gymnasium.make(self.env_id, disable_env_checker=True)
        self.told[0], _ = self._env.reset(seed=self.seed)

    def advance(self, action: str) -> Sequence[float]:
        given = action if self.choices is None else int(action)
        self.told[0], reward, terminated, truncated, _ = self._env.step(given)
        if terminated or truncated:
            self.actor = None
            self._env.close()
        return [float(reward)]

    def legal(self, player: int) -> tuple[str, ...] | None:
        """Return the numbers of a Discrete space."""
        return self.choices if self.actor == player else ()

    def parse(self, player: int, reply: str) -> str | None:
        """Return the last number that is an action, or a text that the space holds."""
        if self.choices is not None:
            return last_choice(reply, self.choices)
        text = super().parse(player, reply)
        return text if text is not None and text in self._env.action_space else None


def gymnasium_game(name: str) -> Foreign:
    """Return the environment of e.g. "gymnasium:MyText-v0"; a SettingsError where its spaces are of
    another kind.
    """
    env_id = name.partition(":")[2]
    try:
        env = gymnasium.make(env_id, disable_env_checker=True)
    except gymnasium.error.Error as error:
        raise SettingsError(
            f"env={name!r}: {error} A package registers one by an entry point of the group "
            "gymnasium.envs."
        ) from error
    seen, acts = env.observation_space, env.action_space
    if not isinstance(seen, Text) or not isinstance(acts, Text | Discrete):
        raise SettingsError(
            f"env={name!r}: observations are {seen!s:.60}, actions {acts!s:.60}; observations "
            "must be a Text space, "
            "actions a Text or Discrete one. Wrap it in an environment of texts and register that."
        )
    choices = (
        tuple(str(acts.start + number) for number in range(acts.n))
        if isinstance(acts, Discrete)
        else None
    )
    values = (
        {"max_turns": env.spec.max_episode_steps} if env.spec and env.spec.max_episode_steps else {}
    )
    env.close()
    bad_reply = "forfeit" if choices is None else "random_legal"
    game = type(
        "GymnasiumGame",
        (GymnasiumGame,),
        {"env_id": env_id, "choices": choices, "bad_reply": bad_reply},
    )
    return Foreign(name, game, ForeignConfig, gymnasium.__version__, **values)
