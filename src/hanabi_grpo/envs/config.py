"""The settings of an environment: a dataset row's `env_config`, or one request's."""

import operator
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hanabi_grpo.envs.instructions import INSTRUCTION_ALLOWED, file_names, split_instruction
from hanabi_grpo.errors import SettingsError, did_you_mean, shown

Memory = Literal["game", "turn"] | Annotated[int, Field(ge=1)]
MEMORY_ALLOWED = "game, turn, or a number of turns, at least 1"
NO_TOOLS = "none"
"""The value of `EnvConfig.tools` for none."""
TOOLS_ALLOWED = f"{NO_TOOLS}, or a comma list of tools that the environment offers"
TOOL_CALLS = 4
"""Default of `EnvConfig.tool_calls`."""
TOOL_TIMEOUT = 5.0
"""Default of `EnvConfig.tool_timeout`."""


class EnvConfig(BaseModel):
    """The settings that every environment has; a subclass adds its own fields.

    Each is an environment variable too, HANABI_<FIELD>, which the string under it describes. The
    three rewards belong to the player who made the reply; `Referee` pays them beside the parts of
    the game.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    preset: str
    """Preset of the environment; unset with DATASET: as its rows say."""
    memory: Memory = Field(default="game", json_schema_extra={"allowed": MEMORY_ALLOWED})
    """What a player still sees of an episode: game, all of it; turn, this turn's message alone; N,
    its last N turns.
    """
    reward_illegal: float = -0.5
    """Reward of an action that the rules forbid."""
    reward_unparsable: float = -0.5
    """Reward of a reply that names no action."""
    reward_out_of_tokens: float = -0.5
    """Reward of a full conversation, which ends the episode."""

    instruction: str | None = Field(
        default=None,
        # What has none is written, and hashed, as before there were any.
        exclude_if=operator.not_,
        json_schema_extra={"allowed": INSTRUCTION_ALLOWED},
    )
    """Text behind the system message of every seat, or of one: player_1=…; a file (.txt, .md) of
    it.
    """

    tools: str | None = Field(
        default=None,
        exclude_if=operator.not_,
        json_schema_extra={"allowed": TOOLS_ALLOWED},
    )
    """Tools that players may call before they answer; unset: those that the preset has."""
    tool_calls: int = Field(default=TOOL_CALLS, ge=1, le=16, exclude_if=TOOL_CALLS.__eq__)
    """Calls of tools that a player may make in one turn."""
    tool_timeout: float = Field(default=TOOL_TIMEOUT, gt=0, le=600, exclude_if=TOOL_TIMEOUT.__eq__)
    """Seconds of one call of a tool that waits for something; then the player is told so."""

    @field_validator("tools")
    @classmethod
    def _check_tools(cls, tools: str | None) -> str | None:
        """Refuse names that no tool can have; the environment knows which ones there are."""
        names = split_tools(tools)
        if len(set(names)) < len(names):
            raise ValueError("names a tool twice")
        for name in names:
            if not (name.isascii() and name.isidentifier()):
                raise ValueError(f"{name!r} is no name of a tool; allowed: {TOOLS_ALLOWED}")
        return tools

    @field_validator("instruction")
    @classmethod
    def _check_instruction(cls, text: str | None) -> str | None:
        if text is None:
            return None
        if file_names(text):
            raise ValueError(
                "is the name of a file, which only HANABI_INSTRUCTION reads; give the text"
            )
        split_instruction(text)
        return text

    def with_instruction(self, text: str, player: int) -> str:
        """Return what a player is told before the game, with its `instruction` behind it.

        Args:
            text: The system message of the environment, or what a person reads in its place.
            player: Number of the player.
        """
        instruction = split_instruction(self.instruction or "")
        parts = [text, instruction.get(None, ""), instruction.get(player, "")]
        return "\n\n".join(filter(None, parts))

    @property
    def window(self) -> int | None:
        """Turns of a player that its conversation holds at most; None: all of the episode."""
        if isinstance(self.memory, int):
            return self.memory
        return 1 if self.memory == "turn" else None

    @classmethod
    def defaults(cls, device: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return defaults that differ from the fields' own.

        Args:
            device: What models play on, "cpu" or "gpu".
            given: The settings that somebody has set.
        """
        return {}

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> Self:
        """Build from a mapping that a person or a client wrote.

        Raises:
            SettingsError: A key is missing, unknown or has a value that is not allowed; names all
                of them.
        """
        try:
            return cls.model_validate(dict(row))
        except ValidationError as error:
            problems = "; ".join(cls._problem(dict(item)) for item in error.errors())
            raise SettingsError(f"env_config: {problems}.") from error

    @classmethod
    def _problem(cls, item: dict[str, Any]) -> str:
        """Return one of pydantic's errors as a message says it."""
        message = str(item["msg"]).removeprefix("Value error, ").rstrip(".")
        if not item["loc"]:
            return message
        key = str(item["loc"][0])
        if item["type"] == "extra_forbidden":
            hint = did_you_mean(key, cls.model_fields)
            return f"unknown key {key!r}; {hint}allowed: {', '.join(cls.model_fields)}"
        if item["type"] == "missing":
            return f"key {key!r} is missing"
        return f"{key}={shown(item['input'])}: {message}"


def split_tools(tools: str | None) -> tuple[str, ...]:
    """Return the names in a value of `EnvConfig.tools`, () where it names none.

    Example:
        split_tools("calculator, lookup") == ("calculator", "lookup")
    """
    if tools is None or tools.strip() in ("", NO_TOOLS):
        return ()
    return tuple(name.strip() for name in tools.split(","))


class StateConfig(EnvConfig):
    """Settings of an environment whose every message is the whole position.

    So a player needs no other message, and by default remembers none.
    """

    memory: Memory = Field(default="turn", json_schema_extra={"allowed": MEMORY_ALLOWED})
    style: Literal["full", "compact"] = "full"
    """Style of the prompts: full for language models, compact for the tiny model."""

    @classmethod
    def defaults(cls, device: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the style of the model that plays by default: the tiny one without a GPU."""
        return {"style": "compact" if device == "cpu" else "full"}
