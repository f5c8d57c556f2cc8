"""Datasets as files: a row for each preset, checked as training checks it."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import is_held_out
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.datasets import messages, mix_line, parse_rows
from hanabi_grpo.runs.run_folder import write_text_atomic
from hanabi_grpo.settings import Settings
from hanabi_grpo.types import MAX_PLAYERS


def dataset_row(
    preset: str,
    *,
    suite: str,
    num_deals: int,
    env: str = "hanabi",
    players: int | None = None,
    observation: str | None = None,
    share: float = 1,
    from_step: int | None = None,
    until_step: int | None = None,
) -> dict[str, Any]:
    """Return one row; `num_deals` 0 means fresh deals for ever, and a key that is None is left out.

    Raises:
        SettingsError: There is no such environment or preset, the suite is held out, or the number is negative.
    """
    config: dict[str, Any] = {"preset": preset, "suite": suite}
    config |= {key: value for key, value in (("players", players), ("observation", observation)) if value is not None}
    registry.setup(env, {key: value for key, value in config.items() if key != "suite"})
    if not suite or is_held_out(suite):
        raise SettingsError(f"--suite {suite!r}: suites that start with eval or test are held out; use train.")
    if num_deals < 0:
        raise SettingsError(f"--num-deals {num_deals}: must be 0 (fresh deals for ever) or more.")
    if num_deals:
        config["seeds"] = list(range(num_deals))
    row: dict[str, Any] = {"messages": messages(env), "env": env, "env_config": config}
    if env == "hanabi":
        del row["env"]
    if share != 1:
        row["share"] = share
    return row | {key: step for key, step in (("from_step", from_step), ("until_step", until_step)) if step is not None}


def write_dataset(out: Path, rows: Sequence[dict[str, Any]], *, add: bool = False) -> str:
    """Write rows to a new file, or behind those of an old one; returns what is played when.

    The whole content is checked first, as training checks it; an old file is replaced in one step or stays.

    Raises:
        SettingsError: The file exists (with `add`: does not), cannot be written, or would hold rows that do not fit.
    """
    if add != out.exists():
        problem = "exists already; choose another name, remove it, or put the rows behind its own with --add"
        raise SettingsError(f"--out {out}: {'there is no such file to add to; leave out --add' if add else problem}.")
    try:
        content = out.read_bytes() if add else b""
        content += b"" if not content or content.endswith(b"\n") else b"\n"
        content += "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        line = _checked(content, out)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out, content.decode())
    except OSError as error:
        raise SettingsError(f"--out {out}: cannot be written ({error.strerror}).") from error
    return line


def _checked(content: bytes, path: Path) -> str:
    given: set[Any] = set()
    env = "hanabi"
    with contextlib.suppress(ValueError, TypeError, AttributeError, LookupError, RecursionError):
        rows = [json.loads(line) for line in content.splitlines() if line.strip()]
        given = {row["env_config"].get("players") for row in rows}
        env = registry.get(rows[0].get("env", env)).name
    counts = sorted(count for count in given if type(count) is int and 1 <= count <= MAX_PLAYERS)
    if len(counts) > 1:
        listed = ", ".join(map(str, counts))
        raise SettingsError(
            f"{path}: rows for {listed} players; all games of a run have as many. Write a file for each."
        )
    settings = Settings(env=env, players=counts[0]) if counts else Settings(env=env)
    return mix_line(parse_rows(content, path, settings), settings)
