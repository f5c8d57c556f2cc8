"""JSON keys of version 0.2 that have been renamed.

Version 0.2 called a task a "deal" and a lineup a "line-up". Its evaluations and ledgers stay
readable: every reader renames the keys first.
"""

from collections.abc import Mapping
from typing import Any

NEW_KEYS = {
    "line_up": "lineup",
    "deals": "tasks",
    "num_deals": "num_tasks",
    "games_per_deal": "games_per_task",
    "deals_done": "tasks_done",
    "error_deals": "error_tasks",
}
"""Key of version 0.2 to the key of this version."""


def rename_old_keys(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the keys of this version, in the same order.

    Only the object's own keys are renamed, not those of objects inside it. A key of this version is
    never overwritten by an old one.

    Example:
        rename_old_keys({"line_up": "iggi", "suite": "eval"}) == {"lineup": "iggi", "suite": "eval"}
    """
    renamed: dict[str, Any] = {}
    for key, value in row.items():
        new_key = NEW_KEYS.get(key, key)
        if new_key != key and new_key in row:
            continue
        renamed[new_key] = value
    return renamed
