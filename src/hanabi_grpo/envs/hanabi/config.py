"""Which board is played and how it is rewarded."""

from typing import Literal, Self

from pydantic import Field, model_validator

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, make_spec


class EnvConfig(base.EnvConfig):
    """The settings of one game. Building one checks the board too, before OpenSpiel sees it.

    Example:
        EnvConfig(preset="laptop", players=2, observation="compact", legal_moves=False)
    """

    players: int = 2
    observation: Literal["full", "compact"] = "full"
    legal_moves: bool = True
    """Whether an observation lists the legal moves."""
    reward_score: float = 1.0
    bomb_rule: Literal["zero", "keep"] = "zero"
    """What losing the last life does to the points scored so far."""
    max_turns: int = Field(default=0, ge=0)
    """Moves of all players after which a game is truncated; 0: only the rules end it."""

    @model_validator(mode="after")
    def _check_board(self) -> Self:
        self.spec()
        return self

    def spec(self) -> GameSpec:
        """Return the board.

        Raises:
            GameParameterError: The preset is unknown or not for this number of players.
        """
        return make_spec(self.preset, self.players)
