"""Names of models: the default on a GPU, and the tiny model of what is played on a CPU, which knows its words."""

from collections.abc import Mapping, Sequence
from typing import Any

from hanabi_grpo.envs import registry

LAPTOP = "laptop"
TINY_MODEL, QWEN = "data/tiny-model", "Qwen/Qwen3-4B"
"""The tiny model of Hanabi's default board, which is shipped with the repository; and the default on a GPU."""
MODEL = "Model folder or hub name; the tiny model of another preset than the default is outputs/tiny-PRESET."


def default_model(given: Mapping[str, Any]) -> str:
    """Return MODEL where it is unset: on a CPU the tiny model of what is set to be played.

    Args:
        given: The settings before it: `device`, `env`, `preset` and `players`.
    """
    if given.get("device") == "gpu":
        return QWEN
    env, preset = given.get("env", "hanabi"), given.get("preset")
    return tiny_model_folder([preset or (LAPTOP if env == "hanabi" else env)], given.get("players", 2), env)


def is_local_model(name: str) -> bool:
    """Tell whether MODEL names a folder of this machine even where there is none; else it may be on a hub."""
    return name.startswith((".", "/", "outputs/")) or name.rstrip("/") == TINY_MODEL


def tiny_model_folder(presets: Sequence[str], players: int, env: str = "hanabi") -> str:
    """Return where the tiny model of some presets is, e.g. "outputs/tiny-mini-3-players", "outputs/tiny-kuhn"."""
    if (env, list(presets), players) == ("hanabi", [LAPTOP], 2):
        return TINY_MODEL
    words = dict.fromkeys((*([] if env == "hanabi" else [env]), *presets))
    return f"outputs/tiny-{'-'.join(words)}" + (f"-{players}-players" if players != 2 else "")


def tiny_model_command(presets: Sequence[str], players: int, env: str = "hanabi") -> str:
    """Return the command that makes the tiny model of some presets in `tiny_model_folder`."""
    words = [".venv/bin/hanabi-grpo tiny-model", *([f"--env {env}"] if env != "hanabi" else [])]
    words += [f"--preset {preset}" for preset in presets]
    return " ".join(words + [f"--players {players}"] * ("players" in registry.get(env).Config.model_fields))
