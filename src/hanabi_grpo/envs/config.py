"""The settings of an environment, as in the `env_config` of a dataset row or request."""

import operator
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hanabi_grpo.envs.instructions import INSTRUCTION_ALLOWED, file_names, split_instruction
from hanabi_grpo.errors import SettingsError, did_you_mean, shown

Memory = Literal["game", "turn"] | Annotated[int, Field(ge=1)]
MEMORY_ALLOWED = "game, turn, or a number of turns, at least 1"
NO_TOOLS = "none"
"""The value of `EnvConfig.tools` that turns all tools off."""
TOOLS_ALLOWED = f"{NO_TOOLS}, or a comma list of tools that the environment offers"
TOOL_CALLS = 4
"""Default of `EnvConfig.tool_calls`."""
TOOL_TIMEOUT = 5.0
"""Default of `EnvConfig.tool_timeout`."""
_REWARD_PREFIX = "reward_"
"""Beginning of the names of fields that weight a reward."""


class EnvConfig(BaseModel):
    """The settings that every environment has; a subclass adds its own fields.

    Each field is also an environment variable, HANABI_<FIELD>; the docstring below the field
    describes it. The three rewards go to the player who made the reply; `Referee` pays them in
    addition to the reward parts of the game.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    preset: str
    """Preset of the environment; unset with DATASET: taken from its rows."""
    memory: Memory = Field(default="game", json_schema_extra={"allowed": MEMORY_ALLOWED})
    """How much of an episode a player sees: all of it (game), only this turn's message (turn), or
    its last N turns (N).
    """
    reward_illegal: float = -0.5
    """Reward for an action that the rules forbid."""
    reward_unparsable: float = -0.5
    """Reward for a reply that does not name an action."""
    reward_out_of_tokens: float = -0.5
    """Reward when the conversation has no room for another reply, which ends the episode."""

    instruction: str | None = Field(
        default=None,
        # Without an instruction, records and hashes stay as they were before this setting existed.
        exclude_if=operator.not_,
        json_schema_extra={"allowed": INSTRUCTION_ALLOWED},
    )
    """Text appended to the system message of every seat, or of one seat: player_1=…; or a file with
    that text (.txt, .md). HANABI_INSTRUCTIONS is the system message itself, in games of Gymnasium,
    TextArena and OpenEnv.
    """

    tools: str | None = Field(
        default=None,
        exclude_if=operator.not_,
        json_schema_extra={"allowed": TOOLS_ALLOWED},
    )
    """Tools that players may call before they answer; unset: those of the preset."""
    tool_calls: int = Field(default=TOOL_CALLS, ge=1, le=16, exclude_if=TOOL_CALLS.__eq__)
    """Maximum number of tool calls per turn of a player."""
    tool_timeout: float = Field(default=TOOL_TIMEOUT, gt=0, le=600, exclude_if=TOOL_TIMEOUT.__eq__)
    """Time limit in seconds for one call to a slow tool; the player is told if it is exceeded."""

    @field_validator("tools")
    @classmethod
    def _check_tools(cls, tools: str | None) -> str | None:
        """Reject names that no tool can have; the environment knows which tools exist."""
        names = split_tools(tools)
        if len(set(names)) < len(names):
            raise ValueError("names a tool twice")
        for name in names:
            if not (name.isascii() and name.isidentifier()):
                raise ValueError(f"{name!r} is not a tool name; allowed: {TOOLS_ALLOWED}")
        return tools

    @field_validator("instruction")
    @classmethod
    def _check_instruction(cls, text: str | None) -> str | None:
        if text is None:
            return None
        if file_names(text):
            raise ValueError(
                "is a file name, which only HANABI_INSTRUCTION accepts; give the text itself"
            )
        split_instruction(text)
        return text

    def with_instruction(self, text: str, player: int) -> str:
        """Return what a player is told before the game, followed by its `instruction`.

        Args:
            text: The system message of the environment, or what a person reads instead.
            player: Number of the player.
        """
        instruction = split_instruction(self.instruction or "")
        parts = [text, instruction.get(None, ""), instruction.get(player, "")]
        return "\n\n".join(filter(None, parts))

    @property
    def window(self) -> int | None:
        """Maximum number of turns in a player's conversation; None: the whole episode."""
        if isinstance(self.memory, int):
            return self.memory
        return 1 if self.memory == "turn" else None

    def rewards(self) -> dict[str, float]:
        """Return the weight of each reward, by the name of its field."""
        weights = {}
        for name, value in self:
            if name.startswith(_REWARD_PREFIX):
                weights[name] = value
        return weights

    def rule_fields(
        self, *, with_rewards: bool = False, exclude: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the fields that determine which game is played, for `EnvSpec.hash`.

        Rewards and memory do not, so that games with other rewards, or of players who remember
        more, can be compared by their scores. These fields have their default values here instead
        of being omitted: hashes stay as they were when they included them.

        Args:
            with_rewards: Whether rewards do belong to the game, because its score is the return.
            exclude: Fields to omit besides the preset, e.g. the path of a file.
        """
        defaults = {}
        for name, field in type(self).model_fields.items():
            is_left_out = name == "memory"
            if name.startswith(_REWARD_PREFIX) and not with_rewards:
                is_left_out = True
            if is_left_out and not field.is_required():
                defaults[name] = field.get_default(call_default_factory=True)
        return self.model_copy(update=defaults).model_dump(exclude={"preset", *exclude})

    @classmethod
    def defaults(cls, device: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return defaults that differ from those of the fields.

        Args:
            device: Device that models play on, "cpu" or "gpu".
            given: The settings that were set explicitly.
        """
        return {}

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> Self:
        """Build a config from a mapping written by a person or a client.

        Raises:
            SettingsError: Keys are missing, unknown, or have values that are not allowed; the
                message names all of them.
        """
        try:
            return cls.model_validate(dict(row))
        except ValidationError as error:
            problems = "; ".join(cls._problem(dict(item)) for item in error.errors())
            raise SettingsError(f"env_config: {problems}.") from error

    @classmethod
    def _problem(cls, item: dict[str, Any]) -> str:
        """Return one of pydantic's errors as text for an error message."""
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
    """Return the names in a value of `EnvConfig.tools`, or () if it names none.

    Example:
        split_tools("calculator, lookup") == ("calculator", "lookup")
    """
    if tools is None or tools.strip() in ("", NO_TOOLS):
        return ()
    return tuple(name.strip() for name in tools.split(","))


class StateConfig(EnvConfig):
    """Settings of an environment in which every message describes the whole position.

    A player therefore needs no earlier message, and by default remembers none.
    """

    memory: Memory = Field(default="turn", json_schema_extra={"allowed": MEMORY_ALLOWED})
    style: Literal["full", "compact"] = "full"
    """Style of the prompts: full for language models, compact for the tiny model."""

    @classmethod
    def defaults(cls, device: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the style of the default model, which is the tiny model without a GPU."""
        return {"style": "compact" if device == "cpu" else "full"}
