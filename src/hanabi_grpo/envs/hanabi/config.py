"""Which game is played and how it is rewarded: one dataset row's `env_config`, or one request's."""

import difflib
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hanabi_grpo.envs.hanabi.rewards import RewardWeights
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, make_spec
from hanabi_grpo.errors import SettingsError, shown


class EnvConfig(BaseModel):
    """The settings of one game. Building one checks the board too, before OpenSpiel sees it.

    Example:
        EnvConfig(preset="laptop", players=2, observation="compact", legal_moves=False)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    preset: str
    players: int = 2
    observation: Literal["full", "compact"] = "full"
    legal_moves: bool = True
    """Whether an observation lists the legal moves."""
    reward_score: float = 1.0
    reward_illegal: float = -0.5
    reward_unparsable: float = -0.5
    reward_out_of_tokens: float = -0.5
    bomb_rule: Literal["zero", "keep"] = "zero"
    """What losing the last life does to the points scored so far."""
    max_turns: int = Field(default=0, ge=0)
    """Moves of all players after which a game is truncated; 0: only the rules end it."""

    @model_validator(mode="after")
    def _check_board(self) -> Self:
        self.spec()
        return self

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> "EnvConfig":
        """Build from a mapping that a person or a client wrote.

        Raises:
            SettingsError: A key is missing, unknown or has a value that is not allowed; names all of them.
        """
        try:
            return cls.model_validate(dict(row))
        except ValidationError as error:
            problems = "; ".join(_problem(dict(item)) for item in error.errors())
            raise SettingsError(f"env_config: {problems}.") from error

    def spec(self) -> GameSpec:
        """Return the board.

        Raises:
            GameParameterError: The preset is unknown or not for this number of players.
        """
        return make_spec(self.preset, self.players)

    @property
    def weights(self) -> RewardWeights:
        """The reward weights."""
        return RewardWeights(
            score=self.reward_score,
            illegal=self.reward_illegal,
            unparsable=self.reward_unparsable,
            out_of_tokens=self.reward_out_of_tokens,
            bomb_rule=self.bomb_rule,
        )


def _problem(item: dict[str, Any]) -> str:
    message = str(item["msg"]).removeprefix("Value error, ").rstrip(".")
    if not item["loc"]:
        return message
    key = str(item["loc"][0])
    if item["type"] == "extra_forbidden":
        allowed = list(EnvConfig.model_fields)
        close = difflib.get_close_matches(key, allowed, n=1)
        hint = f", did you mean {close[0]!r}?" if close else ";"
        return f"unknown key {key!r}{hint} allowed: {', '.join(allowed)}"
    if item["type"] == "missing":
        return f"key {key!r} is missing"
    return f"{key}={shown(item['input'])}: {message}"
