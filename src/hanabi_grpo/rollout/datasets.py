"""Datasets: files of rows (JSON Lines), and the endless, repeatable list of tasks that they stand
for.

Which row a task belongs to is a function of the rows' shares and of the task's number. A resumed
run and every process therefore agree on it, and nothing has to be saved."""

import contextlib
import functools
import json
import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.base import Setup, draw
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.dataset_rows import messages, parse_row
from hanabi_grpo.runs.run_folder import write_text_atomic
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.game import HANABI
from hanabi_grpo.training.estimators import ESTIMATORS, Learned, names_needing
from hanabi_grpo.types import SEEDS_APART

EXAMPLE_ROW = (
    '{"messages": [{"role": "user", "content": "Play Hanabi."}], "env_config": '
    '{"preset": "laptop", "suite": "train"}}'
)
MAX_BLOCK = 10_000
"""Most tasks in which shares come out exactly; 0.9999 and 0.0001 are just allowed."""
FURTHER_APART = SEEDS_APART // 16
"""Distance of the numbers of a task and of the further ones that may take its place, of which there
are up to 15.
"""
_TASK_KEYS = ("messages", "env", "env_config", "suite")


def training_rows(settings: Settings) -> list[dict[str, Any]]:
    """Return the rows that a run plays: those of DATASET, or without it one that the settings
    decide; see `load_rows`.

    A process reads them once: a file that changes meanwhile does not change a run.
    """
    return list(_rows(settings, frozenset(settings.model_fields_set)))


@functools.lru_cache(maxsize=2)
def _rows(settings: Settings, given: frozenset[str]) -> list[dict[str, Any]]:
    # `given` is not among what makes two settings equal, and decides what a row may say.
    if settings.dataset is not None:
        return load_rows(settings.dataset, settings)
    row = {"messages": messages(settings.env), "env_config": {}}
    return [parse_row(json.dumps(row).encode(), settings)]


def played_setups(rows: Sequence[dict[str, Any]]) -> list[Setup[Any]]:
    """Return the different games of rows, in order."""
    return list(dict.fromkeys(setup(row["env"], row["env_config"]) for row in rows))


def load_rows(path: Path | str, settings: Settings) -> list[dict[str, Any]]:
    """Read and check every row; what a row leaves open comes from the settings.

    Returns: Per row: `messages` as read, `env`, `env_config` (every key of its config, checked),
        `suite`, `seeds` (a list, or None for fresh tasks without end), `first_seed` (of fresh
        tasks), and `share` (a fraction).

    Raises: SettingsError: File missing or empty, or a bad row; names file, line, problem and a
        right row. Or shares that come out exactly only in very many tasks.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"DATASET={str(path)!r}: cannot be read ({error.strerror}). Unset it for the board of "
            "HANABI_PRESET, or "
            f"make one: hanabi-grpo dataset --preset laptop --out {path}"
        ) from error
    return _parse_rows(content, path, settings)


def write_dataset(out: Path, rows: Sequence[dict[str, Any]], *, add: bool = False) -> str:
    """Write rows to a new file, or behind those of an old one; returns what is played when.

    The whole content is checked first, as training checks it; an old file is replaced in one step
    or stays.

    Raises: SettingsError: The file exists (with `add`: does not), cannot be written, or would hold
        rows that do not fit.
    """
    if add != out.exists():
        problem = (
            "exists already; choose another name, remove it, or put the rows behind its own "
            "with --add"
        )
        raise SettingsError(
            f"--out {out}: "
            f"{'there is no such file to add to; leave out --add' if add else problem}."
        )
    try:
        content = out.read_bytes() if add else b""
        content += b"" if not content or content.endswith(b"\n") else b"\n"
        content += "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        line = mix_line(_parse_rows(content, out, _fitting(content)))
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out, content.decode())
    except OSError as error:
        raise SettingsError(f"--out {out}: cannot be written ({error.strerror}).") from error
    return line


def _fitting(content: bytes) -> Settings:
    """Return settings of the environment and the number of players that rows name; what they are
    not is found later.
    """
    with contextlib.suppress(ValueError, TypeError, AttributeError, LookupError, RecursionError):
        rows = [json.loads(line) for line in content.splitlines() if line.strip()]
        players = {row["env_config"]["players"] for row in rows if "players" in row["env_config"]}
        given = {"players": max(players)} if players else {}
        envs = [row.get("env", HANABI) for row in rows]
        return Settings(env=HANABI if HANABI in envs else envs[0], **given)
    return Settings()


def _parse_rows(content: bytes, path: Path, settings: Settings) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(parse_row(line, settings))
            except ValueError as error:
                raise SettingsError(
                    f"{path} line {number}: {error} Example of a row: {EXAMPLE_ROW}"
                ) from error
    if not rows:
        raise SettingsError(f"{path}: no rows. Example of a row: {EXAMPLE_ROW}")
    try:
        block_order(_shares(rows))
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error
    return rows


def tasks(rows: Sequence[dict[str, Any]], start: int, count: int) -> list[dict[str, Any]]:
    """Return tasks number `start` to `start + count - 1` of the list that rows stand for.

    Tasks go round the rows, each as often as its share says. Task n takes seed `first_seed` + n
    where its row has no seeds, so no two tasks of a run have the same one, on whatever board. A row
    with seeds goes round them.

    Returns:
        Per task: `messages`, `env`, `env_config`, `suite`, `seed` and `task` (its number).
    """
    chosen = []
    for number in range(start, start + count):
        index, visit = locate(_shares(rows), number)
        row = rows[index]
        if not row["seeds"] and number >= SEEDS_APART:
            raise SettingsError(
                f"task {number}: a run has {SEEDS_APART} fresh tasks; set another HANABI_TASK_SEED."
            )
        seed = (
            row["seeds"][visit % len(row["seeds"])] if row["seeds"] else row["first_seed"] + number
        )
        chosen.append({**{key: row[key] for key in _TASK_KEYS}, "seed": seed, "task": number})
    return chosen


def further_task(rows: Sequence[dict[str, Any]], task: int, number: int) -> dict[str, Any]:
    """Return the `number`-th (from 1) of the tasks that may take the place of task number `task`.

    It is of the same row, so that rows keep their shares, and depends on nothing that was played.
    Where the row has no seeds it takes one that no other task of the run has; else one of the
    row's, drawn, but not that of `task` itself unless there is only one."""
    index, visit = locate(_shares(rows), task)
    row, own = rows[index], task + number * FURTHER_APART
    if seeds := row["seeds"]:
        apart = (
            draw("further task", row["first_seed"], own, below=len(seeds) - 1) + 1
            if len(seeds) > 1
            else 0
        )
        seed = seeds[(visit + apart) % len(seeds)]
    else:
        seed = row["first_seed"] + own
    return {**{key: row[key] for key in _TASK_KEYS}, "seed": seed, "task": own}


def check_payoffs(settings: Settings, rows: Sequence[dict[str, Any]]) -> None:
    """Refuse what makes no sense of a game's payoff.

    Raises: SettingsError: Phases of best response, which look for a greater score, in a game that
        is not a team's; shares of the team's return in one whose returns add up to 0.
    """
    if ESTIMATORS[settings.advantage].needs.is_credit:
        with_critic = ", ".join(names_needing(Learned.CRITIC, Learned.CENTRAL_CRITIC))
        for one in played_setups(rows):
            if one.spec.payoff == "zero_sum":
                raise SettingsError(
                    f"HANABI_ADVANTAGE={settings.advantage}: it shares out a team's return, and "
                    f"in {one.env} the players' returns add up to 0; take {with_critic}, or an "
                    "estimator without learned values."
                )
    if settings.update == "best_response":
        for one in played_setups(rows):
            if not one.spec.has_common_score:
                raise SettingsError(
                    f"HANABI_UPDATE=best_response: {one.env} is not played by a team, so no score "
                    "says whether a "
                    "player got better; set independent or sequential."
                )


def num_steps(settings: Settings, rows: Sequence[dict[str, Any]]) -> int:
    """Return how many optimizer steps a run takes.

    One epoch visits every seed of every row at least once: with equal shares len(rows) × the
    longest list of seeds. A SettingsError where NUM_TRAIN_EPOCHS alone is set and a row has no end.
    """
    if settings.max_steps is not None or settings.num_train_epochs is None:
        return settings.max_steps or 0
    if any(not row["seeds"] for row in rows):
        raise SettingsError(
            f"NUM_TRAIN_EPOCHS={settings.num_train_epochs:g}: "
            f"{settings.dataset or 'without DATASET a run'} has a row "
            "without seeds, which draws fresh tasks for ever, so an epoch has no end. Set "
            "MAX_STEPS, or give every row "
            "seeds."
        )
    order = block_order(_shares(rows))
    blocks = max(
        math.ceil(len(row["seeds"]) / order.count(index)) for index, row in enumerate(rows)
    )
    return max(
        1, math.ceil(settings.num_train_epochs * blocks * len(order) / settings.tasks_per_step)
    )


def mix_line(rows: Sequence[dict[str, Any]]) -> str:
    """Return what is played, for the terminal, e.g. "laptop 75 %, marshal-mini 25 %"."""
    games = [row["env_config"] for row in rows]
    styles = {game["observation"] for game in games if "observation" in game}
    names = [
        game["preset"]
        + (f" ({game['observation']})" if len(styles) > 1 and "observation" in game else "")
        for game in games
    ]
    order = block_order(_shares(rows))
    counts = Counter(names[index] for index in sorted(order))
    shares = [f"{name} {100 * count / len(order):.3g} %" for name, count in counts.items()]
    return ", ".join(shares) if len(shares) > 1 else next(iter(counts))


def _shares(rows: Sequence[dict[str, Any]]) -> tuple[Fraction, ...]:
    return tuple(Fraction(row["share"]) for row in rows)


def locate(shares: tuple[Fraction, ...], task: int) -> tuple[int, int]:
    """Return the number of a task's row, and how many tasks that row had before."""
    order = block_order(shares)
    blocks, place = divmod(task, len(order))
    row = order[place]
    return row, blocks * order.count(row) + order[:place].count(row)


@functools.lru_cache(maxsize=8)
def block_order(shares: tuple[Fraction, ...]) -> list[int]:
    """Return the shortest list in which each index occurs exactly as often as its share says,
    spread evenly.

    The k-th of n occurrences belongs at (k + 1/2) / n of the list, so a step that is a part of it
    has nearly the shares too (Webster's method, as a sequence). Equal shares give 0, 1, 2, …
    SettingsError: more than `MAX_BLOCK` entries."""
    scale = math.lcm(*(share.denominator for share in shares))
    counts = [int(share * scale) for share in shares]
    common = math.gcd(*counts)
    counts = [count // common for count in counts]
    if sum(counts) > MAX_BLOCK:
        given = ", ".join(f"{float(share):g}" for share in shares)
        raise SettingsError(
            f"shares {given}: they come out exactly only in {sum(counts)} tasks, allowed are "
            f"{MAX_BLOCK}; "
            "give rounder numbers, such as 3 and 1."
        )
    places = [
        (Fraction(2 * k + 1, 2 * count), index, k)
        for index, count in enumerate(counts)
        for k in range(count)
    ]
    return [index for _, index, _ in sorted(places)]
