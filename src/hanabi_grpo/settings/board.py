"""Defaults that follow from the board: which one it is, and the tiny model that knows its words."""

from collections.abc import Mapping, Sequence
from typing import Any

from hanabi_grpo.envs import registry

LAPTOP, MINI, FULL = "laptop", "mini", "full"
TINY_MODEL, QWEN = "data/tiny-model", "Qwen/Qwen3-4B"
"""The tiny model of the default board, which is shipped with the repository; and the default on a GPU."""
PRESET = "Board; unset with DATASET: as its rows say. Without a GPU 3 to 5 players have mini by default."
MODEL = "Model folder or hub name; the tiny model of another board than the default is outputs/tiny-BOARD."


def default_preset(given: Mapping[str, Any]) -> str | None:
    """Return the board of HANABI_PRESET where it is unset; None where the rows of DATASET name theirs.

    Args:
        given: The settings before it: `device`, `dataset` and `players`.
    """
    if given.get("dataset"):
        return None
    if given.get("device") == "gpu":
        return FULL
    return LAPTOP if given.get("players", 2) == 2 else MINI


def default_model(given: Mapping[str, Any]) -> str:
    """Return MODEL where it is unset: on a CPU the tiny model of the board that is set.

    Args:
        given: The settings before it: `device`, `preset` and `players`.
    """
    if given.get("device") == "gpu":
        return QWEN
    return tiny_model_folder([given.get("preset") or LAPTOP], given.get("players", 2))


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
