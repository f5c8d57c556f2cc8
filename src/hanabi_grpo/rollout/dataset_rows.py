"""Rows of a dataset: their keys, their meaning under given settings, and how to create one.

A row, `DatasetRow`, stands for a stream of tasks; a `TaskRow` is one of these tasks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from msgspec import Meta, Struct

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup, is_held_out, no_such_preset
from hanabi_grpo.errors import SettingsError, did_you_mean, shown
from hanabi_grpo.rollout.messages import SPLIT_PATTERN
from hanabi_grpo.rollout.wire import read_struct
from hanabi_grpo.settings import Settings, variables
from hanabi_grpo.settings.game import HANABI, game_defaults
from hanabi_grpo.types import SEEDS_APART

STREAM_KEYS = ("suite", "seeds")
"""Keys of `env_config` beyond the game's settings: the stream of tasks, and its seeds."""
ROW_KEYS = ("messages", "env", "env_config", "share")
"""Keys of a row."""
VALIDATION_SUITE = "eval-validation"
"""The suite of validation during training, so that no choice depends on the suite `test`."""
MIN_SHARE = 0.0001
MAX_SHARE = 10_000
SHARE_RULE = f"a share is a number from {MIN_SHARE:g} to {MAX_SHARE}, such as 3"

Message = Mapping[str, str]
"""{"role": …, "content": …}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRow:
    """A row of a dataset under the settings of a run: one game, and a stream of its tasks."""

    messages: Sequence[Message]
    """Prompt for other trainers; here players read their environment's prompts."""
    env: str
    """Name of the environment."""
    env_config: Mapping[str, Any]
    """Every key of the environment's config, validated."""
    suite: str
    """The stream of tasks, e.g. "train"."""
    seeds: Sequence[int] | None
    """Seeds of the tasks, cycled in this order; None: an endless stream of fresh tasks."""
    first_seed: int
    """Seed of fresh task number 0."""
    share: Fraction
    """How often the row is played, relative to the other rows."""

    @property
    def setup(self) -> Setup[Any]:
        """Environment and configuration of the game."""
        return registry.setup(self.env, self.env_config)

    def task(self, number: int, seed: int) -> "TaskRow":
        """Return one of the row's tasks.

        Args:
            number: The task's number in the run.
            seed: The task's seed in the row's suite.
        """
        return TaskRow(
            messages=self.messages,
            env=self.env,
            env_config=self.env_config,
            suite=self.suite,
            seed=seed,
            number=number,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task of a run, shared by the games of a group."""

    messages: Sequence[Message]
    """Messages of the row, for other trainers."""
    env: str
    """Name of the environment."""
    env_config: Mapping[str, Any]
    """Every key of the environment's config."""
    suite: str
    """The stream of tasks that the task belongs to."""
    seed: int
    """Seed of the task in the suite, which decides how an episode starts."""
    number: int
    """Number of the task in the run, from 0."""

    @property
    def setup(self) -> Setup[Any]:
        """Environment and configuration of the game."""
        return registry.setup(self.env, self.env_config)

    def request(self, seats: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the task as sent to the server, see `messages.TaskRequest`.

        Args:
            seats: Seat assignment of this task; None: that of the whole request.
        """
        request: dict[str, Any] = {
            "env": self.env,
            "env_config": self.env_config,
            "suite": self.suite,
            "seed": self.seed,
        }
        if seats is not None:
            request["seats"] = list(seats)
        return request


class _Message(Struct):
    role: str
    content: str


class _Row(Struct):
    messages: Annotated[list[_Message], Meta(min_length=1)]
    env_config: dict[str, Any] = {}
    share: Annotated[float, Meta(ge=MIN_SHARE, le=MAX_SHARE)] = 1.0


_Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _Stream(Struct):
    suite: str = "train"
    seeds: Annotated[list[_Seed], Meta(min_length=1)] | None = None


def messages(env: str) -> list[dict[str, str]]:
    """Return the `messages` of a new row, which other trainers expect."""
    content = "Play Hanabi with your team." if env == HANABI else f"Play {env}."
    return [{"role": "user", "content": content}]


def parse_row(line: bytes, settings: Settings) -> DatasetRow:
    """Read and check one line of a dataset.

    Keys that the row omits come from the settings.

    Raises:
        ValueError: The line is malformed; the message says how.
    """
    parsed = _parse(line, settings)
    if is_held_out(parsed.stream.suite):
        raise ValueError(
            f"suite={parsed.stream.suite!r}: these tasks are held out for evaluation; train on "
            "another suite."
        )
    if parsed.env == settings.env:
        _check_against_settings(parsed.game, settings)
    setup = _setup(parsed, settings)
    if setup.spec.num_players != settings.players:
        raise ValueError(
            f"env={parsed.env!r} has {setup.spec.num_players} players, but "
            f"HANABI_PLAYERS={settings.players}; set HANABI_ENV={parsed.env} in both terminals."
        )
    return DatasetRow(
        messages=parsed.messages,
        env=parsed.env,
        env_config=setup.config.model_dump(mode="json"),
        suite=parsed.stream.suite,
        seeds=parsed.stream.seeds,
        first_seed=settings.task_seed * SEEDS_APART,
        # Through the typed decimal, so that 0.1 is exactly one tenth.
        share=Fraction(str(parsed.share)),
    )


def parse_validation_row(line: bytes, settings: Settings) -> DatasetRow:
    """Read and check one line of a validation dataset.

    Keys that the row omits come from the settings; its own keys may differ from them, except for
    the number of players. Its tasks are held out; a row without seeds has HANABI_EVAL_TASKS tasks.

    Raises:
        ValueError: The line is malformed; the message says how.
    """
    parsed = _parse(line, settings, suite=VALIDATION_SUITE)
    suite = parsed.stream.suite
    if not is_held_out(suite):
        raise ValueError(
            f"suite={suite!r}: training tasks do not measure generalization; omit suite for "
            f"{VALIDATION_SUITE}, or name one that starts with eval or test."
        )
    if parsed.share != 1:
        raise ValueError(
            f"share={parsed.share:g}: validation plays every row; omit share, and set the number "
            "of a row's tasks by its seeds."
        )
    setup = _setup(parsed, settings)
    if setup.spec.num_players != settings.players:
        raise ValueError(
            f"env={parsed.env!r} has {setup.spec.num_players} players, but the run trains "
            f"HANABI_PLAYERS={settings.players}; choose a game with that many players."
        )
    return DatasetRow(
        messages=parsed.messages,
        env=parsed.env,
        env_config=setup.config.model_dump(mode="json"),
        suite=suite,
        seeds=parsed.stream.seeds or range(settings.eval_tasks),
        first_seed=0,
        share=Fraction(1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParsedRow:
    """A line whose keys are valid."""

    messages: Sequence[Message]
    env: str
    game: Mapping[str, Any]
    """Fields of the environment's config that the row gives."""
    stream: _Stream
    share: float


def _parse(line: bytes, settings: Settings, suite: str = "train") -> _ParsedRow:
    """Read one line and check its keys.

    Args:
        line: The line.
        settings: Settings with the default environment.
        suite: The default suite.
    """
    given = read_struct(dict, line)
    env = given.get("env", settings.env)
    fields = registry.get(env).Config.model_fields
    config_keys = (*fields, *STREAM_KEYS)
    _check_keys(
        given, ROW_KEYS, "a row", other_keys=config_keys, other_place="belongs in env_config"
    )
    row = read_struct(_Row, given)
    _check_keys(
        row.env_config,
        config_keys,
        "env_config",
        other_keys=ROW_KEYS,
        other_place="belongs next to env_config",
    )
    given_stream: dict[str, Any] = {"suite": suite}
    game = {}
    for key, value in row.env_config.items():
        if key in STREAM_KEYS:
            given_stream[key] = value
        if key in fields:
            game[key] = value
    stream = read_struct(_Stream, given_stream)
    if re.match(SPLIT_PATTERN, stream.suite) is None:
        # The server would reject the tasks of the first step.
        raise ValueError(
            f"suite={shown(stream.suite)}: the name of a suite has 1 to 64 letters, digits, '_', "
            "'.' and '-', and starts with a letter or digit, e.g. train."
        )
    return _ParsedRow(
        messages=given["messages"],
        env=env,
        game=game,
        stream=stream,
        share=row.share,
    )


def dataset_row(
    preset: str,
    *,
    suite: str,
    num_tasks: int,
    env: str = HANABI,
    players: int | None = None,
    observation: str | None = None,
    share: float = 1,
) -> dict[str, Any]:
    """Return a new row of a dataset file; keys with default values are omitted.

    Args:
        preset: The preset that is played.
        suite: The stream of tasks.
        num_tasks: Length of a fixed list of tasks; 0: an endless stream of fresh tasks.
        env: Name of the environment.
        players: Number of players; None: from the settings.
        observation: What players see, in Hanabi; None: from the settings.
        share: How often the row is played, relative to others.

    Raises:
        SettingsError: There is no such environment or preset, the suite is held out, or the number
            of tasks is negative.
    """
    game: dict[str, Any] = {"preset": preset}
    if players is not None:
        game["players"] = players
    if observation is not None:
        game["observation"] = observation
    registry.setup(env, game)
    if not suite or is_held_out(suite):
        raise SettingsError(
            f"--suite {suite!r}: suites whose names start with eval or test are held out; use "
            "train."
        )
    if num_tasks < 0:
        raise SettingsError(
            f"--num-tasks {num_tasks}: must be 0 (an endless stream of fresh tasks) or more."
        )

    env_config = {"preset": preset, "suite": suite, **game}
    if num_tasks:
        env_config["seeds"] = list(range(num_tasks))
    row: dict[str, Any] = {"messages": messages(env)}
    if env != HANABI:
        row["env"] = env
    row["env_config"] = env_config
    if share != 1:
        row["share"] = share
    return row


def _setup(row: _ParsedRow, settings: Settings) -> Setup[Any]:
    """Return the game of a row.

    Fields that the row omits come from the settings, or from the environment's own defaults if the
    settings are for another environment.
    """
    if row.env == settings.env:
        game = settings.config_row(row.game)
    else:
        defaults = game_defaults({"env": row.env, "device": settings.device, **row.game})
        game = {**defaults, **row.game}
    if game.get("preset", "") is None:
        if registry.get(row.env).Config.model_fields["preset"].is_required():
            raise ValueError("no board: add a preset to env_config, or set HANABI_PRESET.")
        del game["preset"]
    setup = registry.setup(row.env, game)
    if not setup.environment.knows_preset(setup.config.preset):
        preset = setup.config.preset
        raise ValueError(f"preset {shown(preset)}: {no_such_preset(setup.environment, preset)}")
    return setup


def _check_against_settings(game: Mapping[str, Any], settings: Settings) -> None:
    """Reject a row that contradicts an explicit setting.

    Args:
        game: The game's fields in the row.
        settings: The settings of the run, for the same environment.
    """
    names = {variable.field: variable.env for variable in variables(settings.env)}
    for key, value in game.items():
        set_value = getattr(settings, key)
        if value == set_value:
            continue
        if key in settings.model_fields_set:
            raise ValueError(
                f"env_config {key}={value!r}, but {names[key]}={set_value!r} is set as well. Unset "
                f"DATASET to use the settings, or unset {names[key]}."
            )
        if key == "players":
            # The server makes room for one adapter per player before it sees a row.
            raise ValueError(
                f"env_config players={value!r} needs HANABI_PLAYERS={value!r} in both terminals, "
                "or unset DATASET."
            )


def _check_keys(
    given: Mapping[str, Any],
    allowed: Sequence[str],
    what: str,
    *,
    other_keys: Sequence[str],
    other_place: str,
) -> None:
    """Refuse unknown keys.

    Args:
        given: The object that was read.
        allowed: The keys that the object may have.
        what: Name of the object, for the message.
        other_keys: Keys that belong elsewhere.
        other_place: Where those keys belong, e.g. "belongs next to env_config".
    """
    may_hold = f"the keys of {what} are {', '.join(allowed)}."
    for key in given:
        if key in other_keys:
            raise ValueError(f"{key!r} {other_place}: {may_hold}")
        if key not in allowed:
            raise ValueError(f"unknown key {key!r}; {did_you_mean(key, allowed)}{may_hold}")
