"""The board and its rewards."""

import operator
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.prompts.deductions import Deductions
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, make_spec


class EnvConfig(base.EnvConfig):
    """The settings of one game. Construction also checks the board, before OpenSpiel sees it."""

    preset: str
    """Preset of the environment; in Hanabi the board. Default with DATASET: its rows' board; for 3
    to 5 players without a GPU: mini.
    """
    players: int = 2
    """Number of players: 2 to 5."""
    colors: int | None = Field(default=None, json_schema_extra={"allowed": "1 to 5"})
    """Number of colours in the deck; overrides the preset."""
    ranks: int | None = Field(default=None, json_schema_extra={"allowed": "1 to 5"})
    """Number of ranks per colour; overrides the preset."""
    hand_size: int | None = Field(default=None, json_schema_extra={"allowed": "1 to 8"})
    """Cards per hand; overrides the preset."""
    information_tokens: int | None = Field(default=None, json_schema_extra={"allowed": "0 to 100"})
    """Hint tokens at the start, which is also the maximum; overrides the preset."""
    life_tokens: int | None = Field(default=None, json_schema_extra={"allowed": "1 to 100"})
    """Lives at the start; overrides the preset."""
    observation: Literal["full", "compact"] = "full"
    """Prompt style: readable sentences, or one line of words."""
    legal_moves: bool = True
    """List the legal moves in each prompt."""
    deductions: Deductions = "possible"
    """Deductions in the prompt: none, possible (from hints), counted (also from the visible cards),
    joined (counted; in compact observations, a card and its knowledge are one word), recalled
    (joined, with slots, and with three or more players the hands when the last hint was given)."""
    reward_score: float = 1.0
    """Reward of one point, for the whole team."""
    bomb_rule: Literal["zero", "keep"] = "zero"
    """What losing the last life does to the points scored so far."""
    other_play: bool = Field(default=False, exclude_if=operator.not_)
    """Show each player the colours in its own random order, drawn for each task (Other-Play)."""
    max_turns: int = Field(default=0, ge=0)
    """Total moves of all players after which a game is truncated; 0: the rules' own bound."""

    @classmethod
    def defaults(cls, device: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the full game in readable text on a GPU, else a small board for the tiny model.

        Args:
            device: Where models play: "cpu" or "gpu".
            given: The settings that the user has set.
        """
        if device == "gpu":
            return {"preset": "full"}
        has_two_players = given.get("players", 2) == 2
        return {
            "preset": "laptop" if has_two_players else "mini",
            "observation": "compact",
            "legal_moves": False,
        }

    @model_serializer(mode="wrap")
    def _without_unset(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit unset overrides, so that a preset is written as before overrides existed."""
        return {name: value for name, value in dump(self).items() if value is not None}

    @model_validator(mode="after")
    def _check_board(self) -> Self:
        self.spec()
        return self

    def spec(self) -> GameSpec:
        """Return the board.

        Raises:
            GameParameterError: See `make_spec`.
        """
        return make_spec(
            self.preset,
            self.players,
            num_colors=self.colors,
            num_ranks=self.ranks,
            hand_size=self.hand_size,
            max_hints=self.information_tokens,
            max_lives=self.life_tokens,
        )
