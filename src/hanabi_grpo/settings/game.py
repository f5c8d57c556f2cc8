"""The chosen environment's settings: each field of its Config is a variable, e.g. `max_turns`
HANABI_MAX_TURNS.

Their defaults are the Config's own, then `EnvConfig.defaults`, then what the chosen preset sets.
"""

import functools
from collections.abc import Mapping, Set
from typing import Annotated, Any, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.config import EnvConfig
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.variables import allowed_by, game, split_list

HANABI = "hanabi"
"""The default environment."""
INPUTS = ("env", "device", "dataset")
"""Settings from which defaults of a game follow."""
_SHARED = frozenset({"preset", "players"})
"""Fields that the rollout server needs before any request, so both terminals must agree on them."""


@functools.cache
def game_model(env: str) -> type[BaseModel]:
    """Return an environment's settings as a model that also reads text; its defaults are only for
    tables.
    """
    defaults = {device: game_defaults({"env": env, "device": device}) for device in ("cpu", "gpu")}
    fields: dict[str, Any] = {}
    # A field that an environment overrides without a sentence keeps that of all environments.
    described = {name: info.description for name, info in EnvConfig.model_fields.items()}
    own = registry.get(env).Config.model_fields
    for name, info in sorted(own.items(), key=lambda item: item[0] not in _SHARED):
        kind: Any = info.annotation
        is_list = get_origin(kind) in (tuple, list)
        for item in (*info.metadata, *([BeforeValidator(split_list)] if is_list else [])):
            kind = Annotated[kind, item]
        extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        variable = game(
            f"HANABI_{name.upper()}",
            info.description or described.get(name) or f"See the environment {env}.",
            defaults["cpu"][name],
            gpu=defaults["gpu"][name],
            allowed=str(extra.get("allowed", "")) or allowed_by(info),
            both=name in _SHARED,
        )
        fields[name] = (kind | None if name == "preset" else kind, variable)
    return create_model(
        f"settings of {env}", __config__=ConfigDict(allow_inf_nan=False, extra="forbid"), **fields
    )


def game_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of every field of a game from the settings that were given: those of
    INPUTS, and of the game.

    With a dataset, whose rows say what is played, no preset is chosen.
    """
    environment = registry.get(given.get("env") or HANABI)
    fields = environment.Config.model_fields
    chosen = environment.Config.defaults(given.get("device", "cpu"), given)
    values = {
        name: None if info.is_required() else info.get_default() for name, info in fields.items()
    } | dict(chosen)
    values["preset"] = given.get("preset") or values["preset"] or next(iter(environment.presets))
    preset = environment.presets.get(str(values["preset"]))
    if preset is not None:
        values |= {name: getattr(preset, name) for name in preset.model_fields_set}
    return values | ({"preset": None} if given.get("dataset") and not given.get("preset") else {})


def default_preset(given: Mapping[str, Any]) -> str:
    """Return the preset that is played where neither HANABI_PRESET nor a dataset says it."""
    return str(game_defaults({**given, "dataset": None})["preset"])


def game_values(given: Mapping[str, Any], taken: Set[str]) -> dict[str, Any]:
    """Return every setting of a game, and `players`, the number of its players; see
    `game_defaults`.

    `taken` are the names of the settings of every run, which no other field of an environment may
    have.

    Raises: ValidationError: A value is not what its field takes. SettingsError: There is no such
        environment; it has such a field; or its fields contradict each other, so that nobody can
        say how many play.
    """
    env = given.get("env") or HANABI
    model, environment = game_model(env), registry.get(env)
    if both := sorted(model.model_fields.keys() & taken - _SHARED):
        raise SettingsError(
            f"env={env!r}: its settings {', '.join(both)} have the names of settings of every "
            "run; give these "
            "fields of its Config other names."
        )
    own = {name: given[name] for name in model.model_fields if name in given}
    values = dict(model.model_validate({**game_defaults(given), **own}))
    if "players" not in values:
        config = {**values, "preset": values["preset"] or default_preset(given)}
        values["players"] = environment.spec(environment.Config.parse(config)).num_players
    return values
