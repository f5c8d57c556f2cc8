"""`hanabi-grpo dataset`: write a dataset of one row."""

import json
from pathlib import Path
from typing import Any

from hanabi_grpo.env_config import EnvConfig
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.games import is_held_out

PROMPT = "Play Hanabi with your team."


def dataset_row(preset: str, *, players: int | None, suite: str, num_deals: int) -> dict[str, Any]:
    """Return one row; `num_deals` 0 means fresh deals for ever.

    Raises:
        SettingsError: The board does not exist, the suite is held out, or the number is negative.
    """
    EnvConfig.parse({"preset": preset} if players is None else {"preset": preset, "players": players})
    if not suite or is_held_out(suite):
        raise SettingsError(f"--suite {suite!r}: suites that start with eval or test are held out; use train.")
    if num_deals < 0:
        raise SettingsError(f"--num-deals {num_deals}: must be 0 (fresh deals for ever) or more.")
    config: dict[str, Any] = {"preset": preset, "suite": suite}
    if players is not None:
        config["players"] = players
    if num_deals:
        config["seeds"] = list(range(num_deals))
    return {"messages": [{"role": "user", "content": PROMPT}], "env_config": config}


def write_dataset(out: Path, row: dict[str, Any]) -> None:
    """Write the row to a new file.

    Raises:
        SettingsError: The file exists already or cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("x", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    except FileExistsError as error:
        raise SettingsError(f"--out {out}: exists already; choose another name or remove it.") from error
    except OSError as error:
        raise SettingsError(f"--out {out}: cannot be written ({error.strerror}).") from error
