"""JSON keys of version 0.2 that have another name by now.

Version 0.2 spoke of a "deal" and a "line-up" where this version speaks of a task and a lineup. Its
evaluations and ledgers stay readable: every reader renames the keys before it looks at them.
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
