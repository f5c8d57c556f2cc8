"""Which board is played and how it is rewarded."""

import operator
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.prompts.deductions import Deductions
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, make_spec


class EnvConfig(base.EnvConfig):
    """The settings of one game. Building one checks the board too, before OpenSpiel sees it."""

    preset: str
    """Board. Default with DATASET: that of its rows; for 3 to 5 players without a GPU: mini."""
    players: int = 2
    """Players of a game: 2 to 5."""
    colors: int | None = Field(default=None, json_schema_extra={"allowed": "1 to 5"})
    """Colours of the deck, where they are not the preset's."""
    ranks: int | None = Field(default=None, json_schema_extra={"allowed": "1 to 5"})
    """Ranks of each colour, where they are not the preset's."""
    hand_size: int | None = Field(default=None, json_schema_extra={"allowed": "1 to 8"})
    """Cards in a hand, where they are not the preset's."""
    information_tokens: int | None = Field(default=None, json_schema_extra={"allowed": "0 to 100"})
    """Hint tokens at the start, and the most there can be, where they are not the preset's."""
    life_tokens: int | None = Field(default=None, json_schema_extra={"allowed": "1 to 100"})
    """Lives at the start, where they are not the preset's."""
    observation: Literal["full", "compact"] = "full"
    """Prompt style: readable text, or one line of words."""
    legal_moves: bool = True
    """List the legal moves in each prompt."""
    deductions: Deductions = "possible"
    """What a prompt works out: none, possible (by hints), counted (by the cards in sight), joined
    (counted, a card and what is known of it one word where observations are compact)."""
    reward_score: float = 1.0
    """Reward of one point, for the whole team."""
    bomb_rule: Literal["zero", "keep"] = "zero"
    """What a lost last life does to the points scored so far."""
    other_play: bool = Field(default=False, exclude_if=operator.not_)
    """Show each player the colours in an order of its own, drawn for each task (Other-Play)."""
    max_turns: int = Field(default=0, ge=0)
    """Moves of all players after which a game is truncated; 0: the rules' bound."""

    @classmethod
    def defaults(cls, device: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the whole game in readable text on a GPU, else a small board for the tiny model.

        Args:
            device: Where models play: "cpu" or "gpu".
            given: The settings that are set.
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
        """Leave out what is the preset's: such a board is written as before it could be changed."""
        return {name: value for name, value in dump(self).items() if value is not None}

    @model_validator(mode="after")
    def _check_board(self) -> Self:
        self.spec()
        return self

    def spec(self) -> GameSpec:
        """Return the board.

        Raises:
            GameParameterError: As `make_spec`.
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
