"""The chosen environment's settings: each field of its Config is a variable.

The field `max_turns`, for example, is the variable HANABI_MAX_TURNS. Defaults are the Config's own,
then `EnvConfig.defaults`, then what the chosen preset sets.
"""

import functools
from collections.abc import Mapping, Set
from typing import Annotated, Any, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model
from pydantic.fields import FieldInfo

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Environment
from hanabi_grpo.envs.config import EnvConfig
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.settings.affects import Affects
from hanabi_grpo.settings.instructions import read_instruction
from hanabi_grpo.settings.variables import allowed_by, game, split_list

HANABI = "hanabi"
"""The default environment."""
INPUTS = ("env", "device", "dataset")
"""Settings that a game's defaults depend on."""
_SHARED = frozenset({"preset", "players"})
"""Fields that the rollout server needs before any request, so both terminals must agree on them."""


@functools.cache
def game_model(env: str) -> type[BaseModel]:
    """Return an environment's settings as a model that also reads text.

    Its defaults are only for tables.
    """
    cpu_defaults = game_defaults({"env": env, "device": "cpu"})
    gpu_defaults = game_defaults({"env": env, "device": "gpu"})
    config_fields = registry.get(env).Config.model_fields
    shared_first = sorted(config_fields, key=lambda name: name not in _SHARED)
    fields: dict[str, Any] = {}
    for name in shared_first:
        info = config_fields[name]
        extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        variable = game(
            f"HANABI_{name.upper()}",
            _description(name, info, env),
            cpu_defaults[name],
            gpu=gpu_defaults[name],
            allowed=str(extra.get("allowed", "")) or allowed_by(info),
            both=name in _SHARED,
            # There is one adapter per player.
            affects=Affects.WEIGHTS if name == "players" else Affects.PLAY,
        )
        kind = readable_type(info)
        if name == "preset":
            kind = kind | None
        fields[name] = (kind, variable)
    config = ConfigDict(allow_inf_nan=False, extra="forbid")
    return create_model(f"settings of {env}", __config__=config, **fields)


def game_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of every field of a game.

    With a dataset, whose rows say what is played, no preset is chosen.

    Args:
        given: The settings that were given: those of INPUTS, and of the game.
    """
    return config_defaults(registry.get(given.get("env") or HANABI), given)


def config_defaults(environment: Environment[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of every field of an environment's config; see `game_defaults`."""
    values: dict[str, Any] = {}
    for name, info in environment.Config.model_fields.items():
        values[name] = None if info.is_required() else info.get_default()
    values.update(environment.Config.defaults(given.get("device", "cpu"), given))

    first_preset = next(iter(environment.presets))
    values["preset"] = given.get("preset") or values["preset"] or first_preset
    preset = environment.presets.get(str(values["preset"]))
    if preset is not None:
        for name in preset.model_fields_set:
            values[name] = getattr(preset, name)
    if given.get("dataset") and not given.get("preset"):
        values["preset"] = None
    return values


def default_preset(given: Mapping[str, Any]) -> str:
    """Return the preset to play if neither HANABI_PRESET nor a dataset names one."""
    return str(game_defaults({**given, "dataset": None})["preset"])


def game_values(given: Mapping[str, Any], taken: Set[str]) -> dict[str, Any]:
    """Return every setting of a game, and `players`, the number of its players.

    Args:
        given: The settings that were given, see `game_defaults`.
        taken: Names of the settings of every run, which no other field of an environment may have.

    Raises:
        ValidationError: A value is not what its field takes.
        SettingsError: There is no such environment; it has a field of `taken`; or its fields
            contradict each other, so that the number of players is unknown.
    """
    env = given.get("env") or HANABI
    model = game_model(env)
    environment = registry.get(env)
    in_both = sorted(model.model_fields.keys() & taken - _SHARED)
    if in_both:
        raise SettingsError(
            f"env={env!r}: its settings {', '.join(in_both)} have the same names as settings of "
            "every run; rename these fields of its Config."
        )
    given_fields = {name: given[name] for name in model.model_fields if name in given}
    if "instruction" in given_fields:
        given_fields["instruction"] = read_instruction(given_fields["instruction"])
    # Shell values are strings, and defaults may depend on the parsed values.
    read = model.model_validate({**game_defaults(given), **given_fields})
    given = {**given, **{name: getattr(read, name) for name in given_fields}}
    values = dict(model.model_validate({**game_defaults(given), **given_fields}))
    if "players" not in values:
        preset = values["preset"] or default_preset(given)
        config = environment.Config.parse({**values, "preset": preset})
        values["players"] = environment.spec(config).num_players
    return values


def changed_board(values: Mapping[str, Any]) -> str | None:
    """Return the name of the board if fields other than the preset decide it.

    In Hanabi these are HANABI_COLORS and the like. Contradictions are reported elsewhere.

    Args:
        values: Every setting of the game, see `game_values`.

    Returns:
        None if the preset decides, or if a dataset says what is played.
    """
    preset = values.get("preset")
    if not preset:
        return None
    env = values.get("env") or HANABI
    config = {name: values[name] for name in registry.get(env).Config.model_fields}
    try:
        board = registry.setup(env, config).spec.preset
    except HanabiGrpoError:
        return None
    return None if board == preset else board


def _description(name: str, info: FieldInfo, env: str) -> str:
    """Return the description of a field.

    A field that an environment overrides without a description keeps the one of `EnvConfig`.
    """
    inherited = EnvConfig.model_fields.get(name)
    if info.description:
        return " ".join(info.description.split())
    if inherited is not None and inherited.description:
        return " ".join(inherited.description.split())
    return f"See the environment {env}."


def readable_type(info: FieldInfo) -> Any:
    """Return a field's type with its bounds; a list may be typed with commas."""
    kind: Any = info.annotation
    is_list = get_origin(kind) in (tuple, list)
    for item in info.metadata:
        kind = Annotated[kind, item]
    if is_list:
        kind = Annotated[kind, BeforeValidator(split_list)]
    return kind
