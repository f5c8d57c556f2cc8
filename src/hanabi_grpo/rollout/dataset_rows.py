"""One row of a dataset: what it may hold, and what it means under given settings."""

import difflib
import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import is_held_out
from hanabi_grpo.settings import Settings, variables

STREAM_KEYS = ("suite", "seeds")
"""What `env_config` may hold beside the game's settings: the stream of deals, and which deals of it."""
ROW_KEYS = ("messages", "env", "env_config", "share", "from_step", "until_step")
SEEDS_APART = 2**32
"""Distance of the first fresh deals of two values of HANABI_DEAL_SEED: as many a run has."""
MIN_SHARE, MAX_SHARE = 0.0001, 10_000
SHARE_RULE = f"a share is a number from {MIN_SHARE:g} to {MAX_SHARE}, such as 3"
_MAX_SEED = 2**63 - 1
_MAX_STEP = 2**31 - 1


def parse_row(line: bytes, settings: Settings) -> dict[str, Any]:
    """Read and check one line; see `datasets.load_rows` for what is returned.

    Raises:
        ValueError: What is wrong with it.
    """
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("not JSON that can be read (nested too deeply).") from None
    except ValueError as error:
        raise ValueError(f"not JSON ({error}).") from error
    if not isinstance(row, dict):
        raise ValueError("a row is a JSON object.")
    env = row.get("env", settings.env)
    keys = (*registry.get(env).Config.model_fields, *STREAM_KEYS)
    _only(row, ROW_KEYS, "a row", elsewhere=keys, place="into env_config")
    messages, given = row.get("messages"), row.get("env_config", {})
    if not isinstance(messages, list) or not messages or not all(_is_message(message) for message in messages):
        raise ValueError("messages must be a list of at least one object with the strings role and content.")
    if not isinstance(given, dict):
        raise ValueError(f"env_config={given!r}: must be a JSON object.")
    _only(given, keys, "env_config", elsewhere=ROW_KEYS, place="beside env_config")
    first, last = _step(row, "from_step"), _step(row, "until_step")
    if last is not None and last < (first or 1):
        raise ValueError(f"until_step={last}: is the row's last step, so it must be {first or 1} (from_step) or more.")
    return {
        "messages": messages,
        "env": env,
        "env_config": _game(env, given, settings),
        "suite": _suite(given.get("suite", "train")),
        "seeds": _seeds(given.get("seeds")),
        "first_seed": settings.deal_seed * SEEDS_APART,
        "share": _share(row.get("share", 1)),
        "first_deal": ((first or 1) - 1) * settings.deals_per_step,
        "end_deal": None if last is None else last * settings.deals_per_step,
    }


def _game(env: str, given: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the config of a row: what it leaves open comes from the settings, or from the preset elsewhere."""
    environment = registry.get(env)
    keys = environment.Config.model_fields
    game = {key: value for key, value in given.items() if key in keys}
    if env == settings.env:
        names = {variable.field: variable.env for variable in variables(env)}
        for key in game:
            default = getattr(settings, key)
            if game[key] == default:
                continue
            if key in settings.model_fields_set:
                raise ValueError(
                    f"env_config {key}={game[key]!r}, but {names[key]}={default!r} is set as well. Unset DATASET, and "
                    f"the settings decide; or unset {names[key]}."
                )
            if key == "players":
                # The server makes room for one adapter per player before it sees a row.
                raise ValueError(
                    f"env_config players={game[key]!r} needs HANABI_PLAYERS={game[key]!r} in both terminals, or unset "
                    "DATASET."
                )
        game = settings.config_row(game)
    elif preset := environment.presets.get(str(given.get("preset"))):
        game = {**preset.model_dump(), **game}
    if game.get("preset", "") is None:
        if keys["preset"].is_required():
            raise ValueError("no board: put a preset into env_config, or set HANABI_PRESET.")
        del game["preset"]
    setup = registry.setup(env, game)
    if setup.spec.num_players != settings.players:
        raise ValueError(
            f"env={env!r} has {setup.spec.num_players} players, but HANABI_PLAYERS={settings.players}; set HANABI_ENV="
            f"{env} in both terminals."
        )
    return setup.config.model_dump(mode="json")


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


def _share(share: Any) -> Fraction:
    if type(share) not in (int, float) or not MIN_SHARE <= share <= MAX_SHARE:
        raise ValueError(f"share={share!r:.40}: {SHARE_RULE}; leave it out for 1.")
    # The decimal that was typed: 0.1 is then a tenth.
    return Fraction(str(share))


def _step(row: dict[str, Any], key: str) -> int | None:
    step = row.get(key)
    if step is not None and (type(step) is not int or not 1 <= step <= _MAX_STEP):
        raise ValueError(f"{key}={step!r}: must be the number of a step, from 1, or left out.")
    return step


def _only(given: dict[str, Any], allowed: Sequence[str], what: str, *, elsewhere: Sequence[str], place: str) -> None:
    for key in given:
        if key in elsewhere:
            raise ValueError(f"{key!r} belongs {place}: {what} may hold {', '.join(allowed)}.")
        if key not in allowed:
            close = difflib.get_close_matches(key, allowed, n=1)
            hint = f"did you mean {close[0]}?" if close else f"{what} may hold {', '.join(allowed)}."
            raise ValueError(f"unknown key {key!r}; {hint}")


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")
