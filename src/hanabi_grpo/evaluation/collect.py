"""Collects games of a lineup as files of episodes, for supervised learning or for reading.

A folder holds

- `games_000000.jsonl` and so on: one episode per line, see `rollout.wire`; the number is that of
  the first task,
- `collection.json`: what the games are,
- `collection.ledger`: how far the collection got.

Each file is written atomically, and its row in the ledger after it. The games of a file without a
row are played and written again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from hanabi_grpo import __version__
from hanabi_grpo.client.lineups import Lineup
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.evaluation.evaluate import lineup_key, lineup_score
from hanabi_grpo.evaluation.matches import Served, Table, play_tables
from hanabi_grpo.files import write_text_atomic
from hanabi_grpo.rollout.wire import episode_to_json
from hanabi_grpo.runs.ledger import Ledger
from hanabi_grpo.runs.run_folder import json_text, write_json_atomic
from hanabi_grpo.types import Episode, ReplyKind

FILE_GAMES = 200
"""Games after which a file is written; an interruption loses fewer."""
_LEDGER = "collection.ledger"
_DESCRIPTION = "collection.json"
_DESCRIBED_KEYS = (
    "lineup",
    "seats",
    "policies",
    "env",
    "env_config",
    "spec_hash",
    "suite",
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
)
"""Parts of the ledger's key that `collection.json` repeats."""


class Progress(BaseModel):
    """How far a collection got; a row of the ledger."""

    model_config = ConfigDict(strict=True, extra="forbid")

    tasks: int = 0
    """Number of tasks done: tasks 0 to `tasks - 1`."""
    games: int = 0
    """Games of these tasks."""
    score: float = 0.0
    """Sum of the scores of these games."""


def collect_games(
    lineup: Lineup,
    setup: Setup[Any],
    folder: Path,
    *,
    suite: str,
    num_tasks: int,
    num_games: int,
    rotate: bool,
    served: Served | None = None,
    progress: Callable[[int], None] = lambda tasks: None,
    record: Callable[[Progress, Sequence[Episode]], None] = lambda state, games: None,
) -> Progress:
    """Play and write games until all tasks are done; continues where an earlier call stopped.

    Args:
        lineup: The seat assignment.
        setup: Environment and configuration.
        folder: Folder of the collection.
        suite: Suite of the tasks.
        num_tasks: Tasks 0 to `num_tasks - 1` are played.
        num_games: Games of each task.
        rotate: Whether the seat order changes from task to task.
        served: How models are played; needed unless scripts fill every seat.
        progress: Receives the number of tasks done.
        record: Receives the progress after each file, and the games of that file.

    Raises:
        SettingsError: The folder holds other games, is damaged or cannot be written.
        ServerError: The server failed or dropped a game.
    """
    is_new = not (folder / _LEDGER).exists()
    if is_new and any(folder.glob("*.jsonl")):
        raise SettingsError(
            f"--out {folder}: already holds other games (*.jsonl); choose a new folder."
        )
    key = lineup_key(lineup, setup, suite=suite, served=served, rotate=rotate)
    key["games_per_task"] = num_games
    key["prompts"] = True
    orders = lineup.orders(rotate=rotate)
    with Ledger(folder / _LEDGER, key) as book:
        state = _last_progress(book)
        unwritten: list[Episode] = []
        try:
            _describe(folder, setup, num_tasks, key, state)
            progress(state.tasks)
            tables = []
            for seed in range(state.tasks, num_tasks):
                tables.append(Table(seed, orders[seed % len(orders)]))
            for groups in play_tables(
                tables,
                setup,
                suite=suite,
                label=lineup.text,
                served=served,
                num_games=num_games,
            ):
                for group in groups:
                    unwritten += group
                is_last = unwritten[-1].seed + 1 == num_tasks
                if len(unwritten) >= FILE_GAMES or is_last:
                    state = _write_games(folder, setup, unwritten, len(orders), state)
                    book.add(state.model_dump())
                    progress(state.tasks)
                    record(state, unwritten)
                    unwritten = []
        except OSError as error:
            if isinstance(error, ServerError):
                raise
            raise SettingsError(f"--out {folder}: cannot be written ({error.strerror}).") from error
        finally:
            _describe(folder, setup, num_tasks, key, state)
    return state


def check_folder(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the folder of each game of a collection; a single game gets the folder itself.

    Args:
        folder: Option --out.
        names: Names of the games.

    Raises:
        SettingsError: The folder holds a collection of one game, and there are several.
    """
    if len(names) == 1:
        return [folder]
    if (folder / _LEDGER).exists():
        raise SettingsError(
            f"--out {folder}: already holds a collection of a single game, but this command "
            f"collects {len(names)} ({', '.join(names)}), each in its own subfolder; choose a new "
            "folder, or one game with --preset."
        )
    return [folder / name for name in names]


def game_figures(setup: Setup[Any], games: Sequence[Episode], num_orders: int) -> dict[str, float]:
    """Return the figures of collected games, for monitors.

    Args:
        setup: Environment and configuration.
        games: The games, at least one.
        num_orders: Number of seat orders, which alternate from task to task.
    """
    kinds = [turn.kind for game in games for turn in game.moves]
    scores = [lineup_score(setup.spec, game, game.seed % num_orders) for game in games]
    num_truncated = sum(game.status.is_truncated for game in games)
    return {
        "games": float(len(games)),
        "score/mean": fmean(scores),
        "score/max": max(scores),
        "score/min": min(scores),
        "turns_per_game": len(kinds) / len(games),
        "illegal_per_game": kinds.count(ReplyKind.ILLEGAL) / len(games),
        "unparsable_per_game": kinds.count(ReplyKind.UNPARSABLE) / len(games),
        "truncated_per_game": num_truncated / len(games),
        **setup.metrics(games),
    }


def fill_prompts(episode: Episode, setup: Setup[Any]) -> Episode:
    """Return the episode with a prompt on every turn.

    Where a turn has none, as with scripts, it gets the message that a model would have been shown.
    """
    game = setup.environment.reset(setup.config, split=episode.suite, seed=episode.seed)
    turns = []
    for _, group in groupby(episode.turns, lambda turn: turn.step):
        # Every prompt of a step is read before the step's actions are taken.
        actions = {}
        for turn in group:
            prompt = turn.prompt or game.message(turn.player)
            turns.append(replace(turn, prompt=prompt))
            actions[turn.player] = turn.action
        game.step(actions)
    return replace(episode, turns=tuple(turns))


def _write_games(
    folder: Path,
    setup: Setup[Any],
    games: Sequence[Episode],
    num_orders: int,
    state: Progress,
) -> Progress:
    """Write whole tasks as one file.

    Args:
        folder: Folder of the collection.
        setup: Environment and configuration.
        games: All games of the tasks that follow those of `state`.
        num_orders: Number of seat orders, which alternate from task to task.
        state: Progress before this file.

    Returns:
        The progress once the file is on disk.
    """
    lines = []
    score = 0.0
    for game in games:
        lines.append(json_text(episode_to_json(fill_prompts(game, setup))))
        score += lineup_score(setup.spec, game, game.seed % num_orders)
    write_text_atomic(folder / f"games_{state.tasks:06d}.jsonl", "".join(lines))
    return Progress(
        tasks=games[-1].seed + 1,
        games=state.games + len(games),
        score=state.score + score,
    )


def _last_progress(book: Ledger) -> Progress:
    if not book.rows:
        return Progress()
    try:
        return Progress.model_validate(book.rows[-1])
    except ValidationError as error:
        raise SettingsError(
            f"{book.path}: damaged ({error.errors()[0]['msg']}); choose a new folder."
        ) from error


def _describe(
    folder: Path,
    setup: Setup[Any],
    num_tasks: int,
    key: Mapping[str, Any],
    state: Progress,
) -> None:
    """Write `collection.json`: what the games are, and how far the collection got."""
    description: dict[str, Any] = {}
    for name in _DESCRIBED_KEYS:
        description[name] = key.get(name)
    description["num_tasks"] = num_tasks
    description["games_per_task"] = key["games_per_task"]
    description["tasks_done"] = state.tasks
    description["games_done"] = state.games
    description["complete"] = state.tasks >= num_tasks
    description["mean_score"] = state.score / state.games if state.games else None
    system_prompts = []
    for player in range(setup.spec.num_players):
        system_prompts.append(setup.environment.system_message(setup.config, player))
    description["system_prompts"] = system_prompts
    description["hanabi_grpo"] = __version__
    write_json_atomic(folder / _DESCRIPTION, description)
