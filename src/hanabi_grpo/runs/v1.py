"""What only the runs of version 0.1 need: settings that it had not, and boards on which it dealt half of the decks."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.hanabi.rules import PRESETS, make_spec
from hanabi_grpo.errors import SettingsError

UNRECORDED: dict[str, Any] = {"HANABI_ENV": "hanabi", "HANABI_REWARD_OUT_OF_TOKENS": 0.0}
"""What its runs had of settings that came later."""


def boards_by_hash() -> dict[str, tuple[str, bool]]:
    """Return the name of every board by its hash, and whether the hash says that half of its decks are dealt."""
    known: dict[str, tuple[str, bool]] = {}
    for name, preset in PRESETS.items():
        for spec in (make_spec(name, players) for players in preset.players):
            known.setdefault(spec.hash, (name, False))
            known.setdefault(spec.rules_hash, (name, spec.deals_all_decks))
    return known


def check_decks(checkpoint: Path | None, board_hashes: Iterable[str], *, fork: bool) -> None:
    """Refuse to continue a curve of version 0.1 on a board that deals other decks since.

    Raises:
        SettingsError: The checkpoint's run trained on half of a board's decks, and this version deals all of them.
    """
    known = boards_by_hash()
    boards = sorted({known[one][0] for one in board_hashes if one in known and known[one][1]})
    if boards and not fork:
        raise SettingsError(
            f"{checkpoint}: was trained by version 0.1 on half of the decks of {', '.join(boards)}; this version "
            "deals all of them, so the rest of the curve would be another game's. Start a new run from it with "
            "OUTPUT_DIR=(a new folder), or go on with hanabi_grpo 0.1."
        )
