"""Datasets: files of rows (JSON Lines), and the endless list of tasks that they stand for.

The row of a task depends only on the rows' shares and the task's number. A resumed run and every
process therefore agree on it, and nothing has to be saved.
"""

import contextlib
import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.base import Setup, draw
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import MAX_DATASET_BYTES, read_bytes, write_text_atomic
from hanabi_grpo.rollout.dataset_rows import (
    DatasetRow,
    TaskRow,
    messages,
    parse_row,
    parse_validation_row,
)
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.game import HANABI
from hanabi_grpo.training.estimators import ESTIMATORS, Learned, names_needing
from hanabi_grpo.types import SEEDS_APART

EXAMPLE_ROW = (
    '{"messages": [{"role": "user", "content": "Play Hanabi."}], "env_config": '
    '{"preset": "laptop", "suite": "train"}}'
)
"""Example row in error messages."""
VALIDATION_ROW = (
    '{"messages": [{"role": "user", "content": "Play Hanabi."}], "env_config": '
    '{"preset": "laptop"}}'
)
"""Example of a validation row."""
MAX_BLOCK = 10_000
"""Maximum length of a list of tasks with exact shares; 0.9999 and 0.0001 just fit."""
FURTHER_APART = SEEDS_APART // 16
"""Distance between the number of a task and those of its up to 15 possible replacements."""
REPLACEMENT = 15
"""Round of the further task that replaces a task that timed out; resampling uses rounds from 1."""


def training_rows(settings: Settings) -> list[DatasetRow]:
    """Return the rows that a run plays: those of DATASET, or a single row from the settings.

    A process reads them once, so changing the file does not change a run in progress.
    """
    return list(_training_rows(settings, frozenset(settings.model_fields_set)))


@functools.lru_cache(maxsize=2)
def _training_rows(settings: Settings, given: frozenset[str]) -> list[DatasetRow]:
    # `given` is part of the cache key: it decides which keys a row may set, and settings that
    # differ only in it compare equal.
    if settings.dataset is not None:
        return load_rows(settings.dataset, settings)
    row = {"messages": messages(settings.env), "env_config": {}}
    return [parse_row(json.dumps(row).encode(), settings)]


def validation_rows(settings: Settings) -> list[DatasetRow]:
    """Return the rows of HANABI_EVAL_DATASET, with their seeds; an empty list if it is unset.

    A process reads them once, like those of training.

    Raises:
        SettingsError: As `load_rows`.
    """
    if settings.eval_dataset is None:
        return []
    return list(_validation_rows(settings, frozenset(settings.model_fields_set)))


@functools.lru_cache(maxsize=2)
def _validation_rows(settings: Settings, given: frozenset[str]) -> list[DatasetRow]:
    path = Path(str(settings.eval_dataset))
    try:
        content = read_bytes(path, MAX_DATASET_BYTES)
    except OSError as error:
        raise SettingsError(
            f"HANABI_EVAL_DATASET={str(path)!r}: cannot be read ({error.strerror}). The file needs "
            f"a row for each validation game, such as {VALIDATION_ROW}; unset it to validate on "
            "the games of training."
        ) from error
    return _parse_lines(content, path, settings, parse_validation_row, VALIDATION_ROW)


def played_setups(rows: Sequence[DatasetRow]) -> list[Setup[Any]]:
    """Return the distinct games of some rows, in order."""
    return list(dict.fromkeys(row.setup for row in rows))


def setup_names(setups: Sequence[Setup[Any]]) -> list[str]:
    """Return a name for each game: its preset, followed by a number if several share it.

    Example:
        ["kuhn_poker", "marshal-mini", "marshal-mini#2"]
    """
    presets = [setup.spec.preset for setup in setups]
    names = []
    for position, preset in enumerate(presets):
        number = presets[:position].count(preset) + 1
        names.append(preset if number == 1 else f"{preset}#{number}")
    return names


def named_setups(rows: Sequence[DatasetRow]) -> dict[str, Setup[Any]]:
    """Return the distinct games of some rows by name, see `setup_names`."""
    setups = played_setups(rows)
    return dict(zip(setup_names(setups), setups, strict=True))


def load_rows(path: Path | str, settings: Settings) -> list[DatasetRow]:
    """Read and check every row; keys that a row omits come from the settings.

    Raises:
        SettingsError: The file is missing or empty, or has an invalid row; the message names file,
            line and problem, and has an example row. Or exact shares need too many tasks.
    """
    path = Path(path)
    try:
        content = read_bytes(path, MAX_DATASET_BYTES)
    except OSError as error:
        raise SettingsError(
            f"DATASET={str(path)!r}: cannot be read ({error.strerror}). Unset it for the board of "
            f"HANABI_PRESET, or create the file: hanabi-grpo dataset --preset laptop --out {path}"
        ) from error
    return _parse_rows(content, path, settings)


def write_dataset(out: Path, rows: Sequence[dict[str, Any]], *, add: bool = False) -> str:
    """Write rows to a new file, or append them to an existing one.

    The whole content is first checked as in training; an existing file is replaced atomically or
    left unchanged.

    Args:
        out: The file.
        rows: Rows as `dataset_row` returns them.
        add: Whether to append to an existing file.

    Returns:
        The mix of games, see `mix_line`.

    Raises:
        SettingsError: The file exists (with `add`: does not exist), cannot be written, or would
            have invalid rows.
    """
    if add and not out.exists():
        raise SettingsError(f"--out {out}: no such file to append to; omit --add.")
    if not add and out.exists():
        raise SettingsError(
            f"--out {out}: already exists; choose another name, remove it, or append the rows with "
            "--add."
        )
    try:
        content = read_bytes(out, MAX_DATASET_BYTES) if add else b""
        if content and not content.endswith(b"\n"):
            content += b"\n"
        for row in rows:
            content += (json.dumps(row, ensure_ascii=False) + "\n").encode()
        mix = mix_line(_parse_rows(content, out, _fitting_settings(content)))
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out, content)
    except OSError as error:
        raise SettingsError(f"--out {out}: cannot be written ({error.strerror}).") from error
    return mix


def _fitting_settings(content: bytes) -> Settings:
    """Return settings with the environment and the number of players that the rows name.

    Errors in the rows are ignored here; they are reported when the rows are parsed.
    """
    with contextlib.suppress(ValueError, TypeError, AttributeError, LookupError, RecursionError):
        envs = []
        players = []
        for line in content.splitlines():
            if not line.strip():
                continue
            row = json.loads(line)
            envs.append(row.get("env", HANABI))
            if "players" in row["env_config"]:
                players.append(row["env_config"]["players"])
        env = HANABI if HANABI in envs else envs[0]
        if players:
            return Settings(env=env, players=max(players))
        return Settings(env=env)
    return Settings()


def _parse_rows(content: bytes, path: Path, settings: Settings) -> list[DatasetRow]:
    """Read and check the rows of a file.

    Args:
        content: The file's bytes.
        path: The file's path, for error messages.
        settings: Settings for the keys that rows omit.
    """
    rows = _parse_lines(content, path, settings, parse_row, EXAMPLE_ROW)
    try:
        _check_rewards(rows)
        block_order(_shares(rows))
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error
    return rows


def _check_rewards(rows: Sequence[DatasetRow]) -> None:
    """Refuse rows of one game with different rewards, whose advantages would mix two scales.

    The hash of the rules does not cover rewards, so these rows would share baselines and critics.
    """
    rewards_of_games: dict[str, dict[str, float]] = {}
    for row in rows:
        spec = row.setup.spec
        rewards = row.setup.config.rewards()
        known = rewards_of_games.setdefault(spec.hash, rewards)
        for name, weight in rewards.items():
            if known.get(name, weight) != weight:
                raise SettingsError(
                    f"{spec.preset}: rows of one game have {name}={known[name]:g} and "
                    f"{name}={weight:g}; give all of them the same rewards."
                )


def _parse_lines(
    content: bytes,
    path: Path,
    settings: Settings,
    parse: Callable[[bytes, Settings], DatasetRow],
    example: str,
) -> list[DatasetRow]:
    """Read and check the rows of a file.

    Args:
        content: The file's bytes.
        path: The file's path, for error messages.
        settings: Settings for the keys that rows omit.
        parse: Reads a line.
        example: An example row, for error messages.
    """
    rows = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            rows.append(parse(line, settings))
        except ValueError as error:
            raise SettingsError(
                f"{path} line {number}: {str(error).rstrip('.')}. Example of a row: {example}"
            ) from error
    if not rows:
        raise SettingsError(f"{path}: no rows. Example of a row: {example}")
    return rows


def tasks(rows: Sequence[DatasetRow], start: int, count: int) -> list[TaskRow]:
    """Return tasks number `start` to `start + count - 1` of the list that rows stand for.

    Tasks cycle through the rows in proportion to their shares. Task n of a row without seeds has
    seed `first_seed` + n, so no two tasks of a run have the same seed, whatever their game. A row
    with seeds cycles through them.

    Args:
        rows: The rows of a run.
        start: Number of the first task, from 0.
        count: Number of tasks.

    Raises:
        SettingsError: A run has no more fresh tasks.
    """
    chosen = []
    for number in range(start, start + count):
        index, visit = locate(_shares(rows), number)
        row = rows[index]
        if row.seeds:
            seed = row.seeds[visit % len(row.seeds)]
        elif number < SEEDS_APART:
            seed = row.first_seed + number
        else:
            raise SettingsError(
                f"task {number}: a run has at most {SEEDS_APART} fresh tasks; set another "
                "HANABI_TASK_SEED."
            )
        chosen.append(row.task(number, seed))
    return chosen


def further_task(rows: Sequence[DatasetRow], task: int, attempt: int) -> TaskRow:
    """Return a replacement for a task.

    The replacement belongs to the same row, so that rows keep their shares, and does not depend on
    what was played. If the row has no seeds, its seed is one that no other task of the run has;
    otherwise it is drawn from the row's seeds, without the replaced task's unless it is the only
    one.

    Args:
        rows: The rows of a run.
        task: Number of the task to replace; for a replacement, the original task is replaced again.
        attempt: Number of the replacement, from 1 to 15.
    """
    first_task = task % FURTHER_APART
    index, visit = locate(_shares(rows), first_task)
    row = rows[index]
    number = first_task + attempt * FURTHER_APART
    if not row.seeds:
        return row.task(number, row.first_seed + number)
    apart = 0
    if len(row.seeds) > 1:
        others = len(row.seeds) - 1
        apart = 1 + draw("further task", row.first_seed, number, below=others)
    position = (visit + apart) % len(row.seeds)
    return row.task(number, row.seeds[position])


def check_payoffs(settings: Settings, setups: Sequence[Setup[Any]]) -> None:
    """Reject settings that do not fit the payoff of a game.

    Args:
        settings: The run's settings.
        setups: The games of the run, see `played_setups`.

    Raises:
        SettingsError: Best-response phases, which maximize a team score, are set for a game without
            teams; an estimator that divides a team's return is set for a zero-sum game; or critics
            learn the rewards of a team, of which a clip would change each player's copy by another
            factor.
    """
    if settings.reward_clip is not None and ESTIMATORS[settings.advantage].needs.is_critic:
        for setup in setups:
            if setup.spec.payoff == "team":
                raise SettingsError(
                    f"HANABI_REWARD_CLIP={settings.reward_clip:g} with HANABI_ADVANTAGE="
                    f"{settings.advantage}: {setup.env} is a team game, and a penalty of one "
                    "player would change the team's reward that the critics of the others learn; "
                    "unset it, or use an estimator without a critic."
                )
    if ESTIMATORS[settings.advantage].needs.is_credit:
        with_critic = ", ".join(names_needing(Learned.CRITIC, Learned.CENTRAL_CRITIC))
        for setup in setups:
            if setup.spec.payoff == "zero_sum":
                raise SettingsError(
                    f"HANABI_ADVANTAGE={settings.advantage}: it divides a team's return among the "
                    f"players, but {setup.env} is a zero-sum game; set {with_critic}, or an "
                    "estimator without learned values."
                )
    if settings.update == "best_response":
        for setup in setups:
            if not setup.spec.has_common_score:
                raise SettingsError(
                    f"HANABI_UPDATE=best_response: {setup.env} is not a team game, so no score "
                    "shows whether a player improved; set independent or sequential."
                )


def num_steps(settings: Settings, rows: Sequence[DatasetRow]) -> int:
    """Return the number of optimizer steps, see `epoch_tasks`; MAX_STEPS takes precedence."""
    if settings.max_steps is not None or settings.num_train_epochs is None:
        return settings.max_steps or 0
    tasks_of_all_epochs = settings.num_train_epochs * epoch_tasks(settings, rows)
    return max(1, math.ceil(tasks_of_all_epochs / settings.tasks_per_step))


def steps_reason(settings: Settings, rows: Sequence[DatasetRow]) -> str:
    """Return a short reason for the number of steps; empty without NUM_TRAIN_EPOCHS.

    Example:
        "NUM_TRAIN_EPOCHS=20, an epoch is 8 tasks; a row without seeds counts as one step"
    """
    if settings.num_train_epochs is None:
        return ""
    epochs = f"NUM_TRAIN_EPOCHS={settings.num_train_epochs:g}"
    if settings.max_steps is not None:
        return f"MAX_STEPS={settings.max_steps} takes precedence over {epochs}"
    reason = f"{epochs}, an epoch is {epoch_tasks(settings, rows)} tasks"
    if any(not row.seeds for row in rows):
        reason += "; a row without seeds counts as one step"
    return reason


def epoch_tasks(settings: Settings, rows: Sequence[DatasetRow]) -> int:
    """Return the number of tasks of one epoch.

    An epoch visits every seed of every row at least once: with equal shares, it has len(rows) × the
    longest list of seeds. A row without seeds has an endless stream of fresh tasks and counts as
    one step, so a dataset with only such a row, including the default without DATASET, has epochs
    of one step.
    """
    order = block_order(_shares(rows))
    blocks = 0
    for index, row in enumerate(rows):
        num_tasks = len(row.seeds) if row.seeds else settings.tasks_per_step
        visits_per_block = order.count(index)
        blocks = max(blocks, math.ceil(num_tasks / visits_per_block))
    return blocks * len(order)


def mix_line(rows: Sequence[DatasetRow]) -> str:
    """Return the mix of games for the terminal, e.g. "laptop 75 %, marshal-mini 25 %".

    A custom board is named after its parameters. If rows differ in what players see, the
    observation follows each name.
    """
    observations = {row.env_config.get("observation") for row in rows}
    observations.discard(None)
    names = []
    for row in rows:
        name = row.setup.spec.preset
        if len(observations) > 1 and "observation" in row.env_config:
            name += f" ({row.env_config['observation']})"
        names.append(name)
    order = block_order(_shares(rows))
    counts = Counter(names[index] for index in sorted(order))
    if len(counts) == 1:
        return names[0]
    parts = []
    for name, count in counts.items():
        percent = 100 * count / len(order)
        parts.append(f"{name} {percent:.3g} %")
    return ", ".join(parts)


def _shares(rows: Sequence[DatasetRow]) -> tuple[Fraction, ...]:
    return tuple(row.share for row in rows)


def locate(shares: tuple[Fraction, ...], task: int) -> tuple[int, int]:
    """Return the index of a task's row, and the number of the row's earlier tasks.

    Args:
        shares: Shares of the rows.
        task: Number of the task in the run.
    """
    order = block_order(shares)
    blocks, position = divmod(task, len(order))
    row = order[position]
    visits_before_block = blocks * order.count(row)
    visits_in_block = order[:position].count(row)
    return row, visits_before_block + visits_in_block


@functools.lru_cache(maxsize=8)
def block_order(shares: tuple[Fraction, ...]) -> list[int]:
    """Return the shortest list in which each index occurs in proportion to its share.

    The k-th of n occurrences is placed at (k + 1/2) / n of the list, so occurrences are spread
    evenly, and a step that covers part of the list has nearly the same shares (Webster's method, as
    a sequence). Equal shares give 0, 1, 2, …

    Raises:
        SettingsError: The list has more than `MAX_BLOCK` entries.
    """
    scale = math.lcm(*(share.denominator for share in shares))
    scaled = [int(share * scale) for share in shares]
    common = math.gcd(*scaled)
    counts = [count // common for count in scaled]
    if sum(counts) > MAX_BLOCK:
        given = ", ".join(f"{float(share):g}" for share in shares)
        raise SettingsError(
            f"shares {given}: exact shares would need {sum(counts)} tasks, but at most {MAX_BLOCK} "
            "are allowed; use rounder numbers, such as 3 and 1."
        )
    occurrences = []
    for index, count in enumerate(counts):
        for k in range(count):
            position = Fraction(2 * k + 1, 2 * count)
            occurrences.append((position, index, k))
    return [index for _, index, _ in sorted(occurrences)]
