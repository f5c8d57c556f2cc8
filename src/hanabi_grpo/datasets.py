"""Dataset rows (JSON Lines) and the endless, repeatable list of deals that they stand for."""

import difflib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hanabi_grpo.env_config import EnvConfig
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.games import is_held_out
from hanabi_grpo.settings import Settings, Variable, variables

EXAMPLE_ROW = (
    '{"messages": [{"role": "user", "content": "Play Hanabi."}], "env_config": {"preset": "laptop", "suite": "train"}}'
)
GAME_KEYS = tuple(EnvConfig.model_fields)
ROW_KEYS = (*GAME_KEYS, "suite", "seeds")
"""What `env_config` may hold: the game's settings, the stream of deals, and optionally which deals of it."""
_MAX_SEED = 2**63 - 1


def load_rows(path: Path | str, settings: Settings) -> list[dict[str, Any]]:
    """Read and check every row; what a row leaves open comes from the settings.

    Returns:
        Per row: `messages` as read, `env_config` (every key of `EnvConfig`, checked), `suite`, and `seeds`
        (a list, or None for fresh deals without end).

    Raises:
        SettingsError: File missing or empty, or a bad row; names file, line, problem and a right row.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"DATASET={str(path)!r}: cannot be read ({error.strerror}). Make one: "
            f"hanabi-grpo dataset --preset laptop --out {path}"
        ) from error
    rows = []
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(_row(line, settings))
            except ValueError as error:
                raise SettingsError(f"{path} line {number}: {error} Example of a row: {EXAMPLE_ROW}") from error
    if not rows:
        raise SettingsError(f"{path}: no rows. Example of a row: {EXAMPLE_ROW}")
    return rows


def deals(rows: Sequence[dict[str, Any]], start: int, count: int) -> list[dict[str, Any]]:
    """Return deals number `start` to `start + count - 1` of the list that rows stand for.

    Deal n uses row n mod len(rows), and of that row the visit n // len(rows): a row without seeds takes that
    number as its seed, a row with seeds goes round them.

    Returns:
        Per deal: `messages`, `env_config`, `suite`, `seed` and `deal` (the number n).
    """
    chosen = []
    for number in range(start, start + count):
        visit, index = divmod(number, len(rows))
        row = rows[index]
        seed = row["seeds"][visit % len(row["seeds"])] if row["seeds"] else visit
        chosen.append(
            {
                "messages": row["messages"],
                "env_config": row["env_config"],
                "suite": row["suite"],
                "seed": seed,
                "deal": number,
            }
        )
    return chosen


def num_steps(settings: Settings, rows: Sequence[dict[str, Any]]) -> int:
    """Return how many optimizer steps a run takes.

    One epoch visits every seed of every row at least once: len(rows) × the longest list of seeds.

    Raises:
        SettingsError: NUM_TRAIN_EPOCHS alone is set and a row has no end.
    """
    if settings.max_steps is not None or settings.num_train_epochs is None:
        return settings.max_steps or 0
    if any(not row["seeds"] for row in rows):
        raise SettingsError(
            f"NUM_TRAIN_EPOCHS={settings.num_train_epochs:g}: {settings.dataset} has a row without seeds, which draws "
            "fresh deals for ever, so an epoch has no end. Set MAX_STEPS, or give every row seeds."
        )
    epoch = len(rows) * max(len(row["seeds"]) for row in rows)
    return max(1, math.ceil(settings.num_train_epochs * epoch / settings.deals_per_step))


def _row(line: bytes, settings: Settings) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("not JSON that can be read (nested too deeply).") from None
    except ValueError as error:
        raise ValueError(f"not JSON ({error}).") from error
    if not isinstance(row, dict):
        raise ValueError("a row is a JSON object.")
    _only(row, ("messages", "env_config"), "a row")
    messages, given = row.get("messages"), row.get("env_config", {})
    if not isinstance(messages, list) or not messages or not all(_is_message(message) for message in messages):
        raise ValueError("messages must be a list of at least one object with the strings role and content.")
    if not isinstance(given, dict):
        raise ValueError(f"env_config={given!r}: must be a JSON object.")
    _only(given, ROW_KEYS, "env_config")
    return {
        "messages": messages,
        "env_config": _game(given, settings),
        "suite": _suite(given.get("suite", "train")),
        "seeds": _seeds(given.get("seeds")),
    }


def _game(given: dict[str, Any], settings: Settings) -> dict[str, Any]:
    names: dict[str, Variable] = {variable.field: variable for variable in variables(Settings)}
    game = {}
    for key in GAME_KEYS:
        default = getattr(settings, key)
        game[key] = given.get(key, default)
        if key in given and given[key] != default:
            if key in settings.model_fields_set:
                raise ValueError(
                    f"env_config {key}={given[key]!r}, but {names[key].env}={default!r} is set as well; "
                    "unset one of them, or make them equal."
                )
            if key == "players":
                # The server makes room for one adapter per player before it sees a row.
                raise ValueError(
                    f"env_config players={given[key]!r} needs HANABI_PLAYERS={given[key]!r} in both terminals."
                )
    if game["preset"] is None:
        raise ValueError("no board: put a preset into env_config, or set HANABI_PRESET.")
    return EnvConfig.parse(game).model_dump(mode="json")


def _suite(suite: Any) -> str:
    if not isinstance(suite, str) or not suite:
        raise ValueError(f"suite={suite!r}: must be a name such as train.")
    if is_held_out(suite):
        raise ValueError(f"suite={suite!r}: these deals are held out for evaluation; train on another suite.")
    return suite


def _seeds(seeds: Any) -> list[int] | None:
    if seeds is None:
        return None
    if not isinstance(seeds, list) or not seeds:
        raise ValueError(f"seeds={seeds!r}: must be a list of whole numbers; leave it out for fresh deals for ever.")
    for seed in seeds:
        if type(seed) is not int or not 0 <= seed <= _MAX_SEED:
            raise ValueError(f"seeds: {seed!r} is not a whole number from 0 to 2**63 - 1.")
    return seeds


def _only(given: dict[str, Any], allowed: Sequence[str], what: str) -> None:
    for key in given:
        if key not in allowed:
            close = difflib.get_close_matches(key, allowed, n=1)
            hint = f"did you mean {close[0]}?" if close else f"{what} may hold {', '.join(allowed)}."
            raise ValueError(f"unknown key {key!r}; {hint}")


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
