"""Games of a lineup as files of episodes, without a trainer: for supervised learning, or to look
at.

A folder holds `games_000000.jsonl` and so on (an episode a line, see `wire`; the number is that of
the first task), `collection.json` (what they are) and `collection.ledger` (how far it got). A file
appears at once, and its row in the ledger after it; a file without a row is played and written
again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from hanabi_grpo import __version__
from hanabi_grpo.client.lineups import Lineup
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.evaluation.evaluate import lineup_key, lineup_score
from hanabi_grpo.evaluation.matches import Served, Table, play_tables
from hanabi_grpo.rollout.wire import episode_to_json
from hanabi_grpo.runs.ledger import Ledger
from hanabi_grpo.runs.run_folder import json_text, write_json_atomic, write_text_atomic
from hanabi_grpo.types import Episode

FILE_GAMES = 200
"""Games after which a file is written; an interruption loses fewer."""
_LEDGER, _ABOUT = "collection.ledger", "collection.json"


class Progress(BaseModel):
    """How far a collection got."""

    model_config = ConfigDict(strict=True, extra="forbid")

    tasks: int = 0
    """Tasks 0 to this number are done."""
    games: int = 0
    score: float = 0.0
    """Sum over the games."""


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
) -> Progress:
    """Play and write `num_games` of each task until all are done; goes on where an earlier call for
    the same stopped.

    With `rotate` task after task changes the seat order. `served` is needed unless scripts fill
    every seat; `progress` receives how many tasks are done.

    Raises:
        SettingsError: The folder holds other games, is damaged or cannot be written.
        ServerError: The server failed or dropped a game.
    """
    if not (folder / _LEDGER).exists() and any(folder.glob("*.jsonl")):
        raise SettingsError(
            f"--out {folder}: holds other games already (*.jsonl); choose a new folder."
        )
    key = lineup_key(lineup, setup, suite=suite, served=served, rotate=rotate)
    key |= {"games_per_task": num_games, "prompts": True}
    orders = lineup.orders(rotate=rotate)
    with Ledger(folder / _LEDGER, key) as book:
        state, waiting = _last(book), list[Episode]()
        try:
            _describe(folder, setup, num_tasks, key, state)
            progress(state.tasks)
            tables = [
                Table(seed, orders[seed % len(orders)]) for seed in range(state.tasks, num_tasks)
            ]
            for groups in play_tables(
                tables, setup, suite=suite, label=lineup.text, served=served, num_games=num_games
            ):
                waiting += [game for group in groups for game in group]
                if len(waiting) >= FILE_GAMES or waiting[-1].seed + 1 == num_tasks:
                    state, waiting = _write(folder, setup, waiting, len(orders), state), []
                    book.add(state.model_dump())
                    progress(state.tasks)
        except OSError as error:
            if isinstance(error, ServerError):
                raise
            raise SettingsError(f"--out {folder}: cannot be written ({error.strerror}).") from error
        finally:
            _describe(folder, setup, num_tasks, key, state)
    return state


def fill_prompts(episode: Episode, setup: Setup[Any]) -> Episode:
    """Return the episode with what each player would have been shown, on the turns that do not
    say.
    """
    game = setup.environment.reset(setup.config, split=episode.suite, seed=episode.seed)
    turns = []
    for _, group in groupby(episode.turns, lambda turn: turn.step):
        step = list(group)
        turns += [replace(turn, prompt=turn.prompt or game.message(turn.player)) for turn in step]
        game.step({turn.player: turn.action for turn in step})
    return replace(episode, turns=tuple(turns))


def _write(
    folder: Path, setup: Setup[Any], games: Sequence[Episode], num_orders: int, state: Progress
) -> Progress:
    """Write whole tasks as one file; returns the state once it is on disk."""
    lines = (json_text(episode_to_json(fill_prompts(game, setup))) for game in games)
    write_text_atomic(folder / f"games_{state.tasks:06d}.jsonl", "".join(lines))
    score = sum(lineup_score(setup.spec, game, game.seed % num_orders) for game in games)
    return Progress(
        tasks=games[-1].seed + 1, games=state.games + len(games), score=state.score + score
    )


def _last(book: Ledger) -> Progress:
    try:
        return Progress.model_validate(book.rows[-1]) if book.rows else Progress()
    except ValidationError as error:
        raise SettingsError(
            f"{book.path}: damaged ({error.errors()[0]['msg']}); choose a new folder."
        ) from error


def _describe(
    folder: Path, setup: Setup[Any], num_tasks: int, key: Mapping[str, Any], state: Progress
) -> None:
    shown = (
        "lineup",
        "seats",
        "policies",
        "env",
        "env_config",
        "spec_hash",
        "suite",
        "temperature",
        "max_tokens",
    )
    about = {
        **{name: key.get(name) for name in shown},
        "num_tasks": num_tasks,
        "games_per_task": key["games_per_task"],
        "tasks_done": state.tasks,
        "games_done": state.games,
        "complete": state.tasks >= num_tasks,
        "mean_score": state.score / state.games if state.games else None,
        "system_prompts": [
            setup.environment.system(setup.config, player)
            for player in range(setup.spec.num_players)
        ],
        "hanabi_grpo": __version__,
    }
    write_json_atomic(folder / _ABOUT, about)
