"""Names of metrics at W&B and in TensorBoard, which make a section of everything before the first slash."""

from collections.abc import Mapping
from typing import Any

_OWN = {"seconds": "time/elapsed", "step_time": "time/step"}
_PLAY = ("games", "groups", "flat_group", "hint_")


def section_name(name: str) -> str:
    """Return a metric's name with its section: `player_0/…`, `time/…` and the like stay as they are.

    Example:
        section_name("illegal_per_game") == "play/illegal_per_game"
        section_name("loss") == "train/loss"
    """
    if "/" in name or name == "step":
        return name
    if name in _OWN:
        return _OWN[name]
    section = "play" if name.endswith("_per_game") or name.startswith(_PLAY) else "train"
    return f"{section}/{name}"


def sectioned(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `metrics.jsonl` under those names; figures that are null are left out."""
    return {section_name(name): value for name, value in row.items() if value is not None}
