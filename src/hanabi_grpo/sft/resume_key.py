"""What a resume must not change."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import SettingsError

_SHOWN_CHARACTERS = 80
"""Characters of a differing value that the error message shows."""


def check_same_work(saved: Mapping[str, Any], current: Mapping[str, Any], out: Path) -> None:
    """Refuse to continue work that depends on different games, settings or weights.

    Args:
        saved: What the interrupted work depends on, by name, as read from JSON.
        current: The same for the current work.
        out: The result folder.

    Raises:
        SettingsError: They differ; the message lists each difference.
    """
    changes = []
    for name in sorted({*saved, *current}):
        before = saved.get(name)
        now = current.get(name)
        if before != now:
            shown_before = str(before)[:_SHOWN_CHARACTERS]
            shown_now = str(now)[:_SHOWN_CHARACTERS]
            changes.append(f"{name} was {shown_before}, is now {shown_now}")
    if changes:
        raise SettingsError(
            f"--resume: {out} holds a different warm start: {'; '.join(changes)}. Use the same "
            "options, games and settings, or choose another --out."
        )
