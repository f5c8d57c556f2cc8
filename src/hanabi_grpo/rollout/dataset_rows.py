"""One row of a dataset: what it may hold, what it means under given settings, and how one is
made.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any

from msgspec import Meta, Struct

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import is_held_out
from hanabi_grpo.errors import SettingsError, did_you_mean
from hanabi_grpo.rollout.wire import read_struct
from hanabi_grpo.settings import Settings, variables
from hanabi_grpo.settings.game import game_defaults
from hanabi_grpo.types import SEEDS_APART

STREAM_KEYS = ("suite", "seeds")
"""What `env_config` may hold beside the game's settings: the stream of tasks, and which tasks of
it.
"""
ROW_KEYS = ("messages", "env", "env_config", "share")
MIN_SHARE, MAX_SHARE = 0.0001, 10_000
SHARE_RULE = f"a share is a number from {MIN_SHARE:g} to {MAX_SHARE}, such as 3"


class _Message(Struct):
    role: str
    content: str


class _Row(Struct):
    messages: Annotated[list[_Message], Meta(min_length=1)]
    env_config: dict[str, Any] = {}
    share: Annotated[float, Meta(ge=MIN_SHARE, le=MAX_SHARE)] = 1.0


class _Stream(Struct):
    suite: Annotated[str, Meta(min_length=1)] = "train"
    seeds: Annotated[list[Annotated[int, Meta(ge=0, le=2**63 - 1)]], Meta(min_length=1)] | None = (
        None
    )


def messages(env: str) -> list[dict[str, str]]:
    """Return what a row says to other trainers; our players read the prompts of their
    environment.
    """
    return [
        {
            "role": "user",
            "content": "Play Hanabi with your team." if env == "hanabi" else f"Play {env}.",
        }
    ]


def parse_row(line: bytes, settings: Settings) -> dict[str, Any]:
    """Read and check one line, see `datasets.load_rows` for what is returned; ValueError: what is
    wrong with it.
    """
    given = read_struct(dict, line)
    env = given.get("env", settings.env)
    keys = (*registry.get(env).Config.model_fields, *STREAM_KEYS)
    _only(given, ROW_KEYS, "a row", elsewhere=keys, place="into env_config")
    row = read_struct(_Row, given)
    _only(row.env_config, keys, "env_config", elsewhere=ROW_KEYS, place="beside env_config")
    stream = read_struct(
        _Stream, {key: row.env_config[key] for key in STREAM_KEYS if key in row.env_config}
    )
    if is_held_out(stream.suite):
        raise ValueError(
            f"suite={stream.suite!r}: these tasks are held out for evaluation; train on another "
            "suite."
        )
    return {
        "messages": given["messages"],
        "env": env,
        "env_config": _game(env, row.env_config, settings),
        "suite": stream.suite,
        "seeds": stream.seeds,
        "first_seed": settings.task_seed * SEEDS_APART,
        # The decimal that was typed: 0.1 is then a tenth.
        "share": Fraction(str(row.share)),
    }


def dataset_row(
    preset: str,
    *,
    suite: str,
    num_tasks: int,
    env: str = "hanabi",
    players: int | None = None,
    observation: str | None = None,
    share: float = 1,
) -> dict[str, Any]:
    """Return one row; `num_tasks` 0 means fresh tasks for ever, and a key that is None is left out.

    Raises: SettingsError: There is no such environment or preset, the suite is held out, or the
        number is negative.
    """
    game = _without_none(preset=preset, players=players, observation=observation)
    registry.setup(env, game)
    if not suite or is_held_out(suite):
        raise SettingsError(
            f"--suite {suite!r}: suites that start with eval or test are held out; use train."
        )
    if num_tasks < 0:
        raise SettingsError(f"--num-tasks {num_tasks}: must be 0 (fresh tasks for ever) or more.")
    seeds = list(range(num_tasks)) or None
    return _without_none(
        messages=messages(env),
        env=None if env == "hanabi" else env,
        env_config={"preset": preset, "suite": suite, **game, **_without_none(seeds=seeds)},
        share=None if share == 1 else share,
    )


def _without_none(**given: Any) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


def _game(env: str, given: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the config of a row: what it leaves open comes from the settings, or from the defaults
    of another game.
    """
    environment = registry.get(env)
    keys = environment.Config.model_fields
    game = {key: value for key, value in given.items() if key in keys}
    if env == settings.env:
        names = {variable.field: variable.env for variable in variables(env)}
        for key, value in game.items():
            default = getattr(settings, key)
            if value == default:
                continue
            if key in settings.model_fields_set:
                raise ValueError(
                    f"env_config {key}={value!r}, but {names[key]}={default!r} is set as well. "
                    "Unset DATASET, and "
                    f"the settings decide; or unset {names[key]}."
                )
            if key == "players":
                # The server makes room for one adapter per player before it sees a row.
                raise ValueError(
                    f"env_config players={value!r} needs HANABI_PLAYERS={value!r} in both "
                    "terminals, or unset DATASET."
                )
        game = settings.config_row(game)
    else:
        game = {**game_defaults({"env": env, "device": settings.device, **game}), **game}
    if game.get("preset", "") is None:
        if keys["preset"].is_required():
            raise ValueError("no board: put a preset into env_config, or set HANABI_PRESET.")
        del game["preset"]
    setup = registry.setup(env, game)
    if setup.spec.num_players != settings.players:
        raise ValueError(
            f"env={env!r} has {setup.spec.num_players} players, but "
            f"HANABI_PLAYERS={settings.players}; set HANABI_ENV="
            f"{env} in both terminals."
        )
    return setup.config.model_dump(mode="json")


def _only(
    given: dict[str, Any],
    allowed: Sequence[str],
    what: str,
    *,
    elsewhere: Sequence[str],
    place: str,
) -> None:
    for key in given:
        if key in elsewhere:
            raise ValueError(f"{key!r} belongs {place}: {what} may hold {', '.join(allowed)}.")
        if key not in allowed:
            raise ValueError(
                f"unknown key {key!r}; {did_you_mean(key, allowed)}{what} may hold "
                f"{', '.join(allowed)}."
            )
