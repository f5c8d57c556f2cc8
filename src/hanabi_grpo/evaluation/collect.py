"""Games of a line-up as files of episodes, without a trainer: for supervised learning, or to look at.

A folder holds `games_000000.jsonl` and so on (an episode a line, see `wire`), `collection.json` (what they are) and
`collection.ledger` (how far it got). A row of the ledger is written after the games that it counts are on disk; what a
shard holds beyond its last row was cut off in the middle and is cut away.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from hanabi_grpo import __version__
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.prompts import system_prompt, turn_prompt
from hanabi_grpo.envs.hanabi.rules import Game, parse_action, shuffled_deck
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.evaluation.evaluate import line_up_key
from hanabi_grpo.evaluation.matches import Served, ask_games
from hanabi_grpo.rollout.lineups import LineUp
from hanabi_grpo.rollout.loop import play_group
from hanabi_grpo.rollout.players import make_script
from hanabi_grpo.runs.ledger import Ledger
from hanabi_grpo.runs.run_folder import write_json_atomic
from hanabi_grpo.runs.wire import episode_to_json
from hanabi_grpo.settings.refs import Ref
from hanabi_grpo.types import Episode

SHARD_GAMES = 1000
_LEDGER, _ABOUT = "collection.ledger", "collection.json"
_SCRIPTED_GAMES = 50
_SERVED_GAMES = 200
"""Games of one request: enough to fill the engine, few enough for a progress bar that moves."""


class Progress(BaseModel):
    """How far a collection got."""

    model_config = ConfigDict(strict=True, extra="forbid")

    deals: int = 0
    """Deals 0 to this number are done."""
    games: int = 0
    score: int = 0
    """Sum over the games."""
    shard: int = 0
    """Number of the shard that is being written."""
    shard_games: int = 0
    shard_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """What to play."""

    line_up: LineUp
    config: EnvConfig
    suite: str
    num_deals: int
    num_games: int
    """Of each deal."""
    rotate: bool
    """Whether deal after deal changes the seat order."""
    prompts: bool
    """Whether scripts' turns carry what a model would have been shown."""


def collect_games(
    what: Collection,
    folder: Path,
    *,
    served: Served | None = None,
    progress: Callable[[int, int], None] = lambda deals, games: None,
) -> Progress:
    """Play and write games until every deal is done; goes on where an earlier call for the same games stopped.

    Args:
        what: The games.
        folder: Where they go.
        served: Needed unless scripts fill every seat.
        progress: Receives how many deals and games are done.

    Returns:
        The state at the end.

    Raises:
        SettingsError: The folder holds other games, is damaged or cannot be written.
        ServerError: The server failed or dropped a game.
    """
    if not (folder / _LEDGER).exists() and any(folder.glob("*.jsonl")):
        raise SettingsError(f"--out {folder}: holds other games already (*.jsonl); choose a new folder.")
    key = line_up_key(what.line_up, what.config, suite=what.suite, served=served, rotate=what.rotate)
    key |= {"games_per_deal": what.num_games, "prompts": what.prompts}
    orders = what.line_up.orders(rotate=what.rotate)
    with Ledger(folder / _LEDGER, key) as book:
        state = _last(book)
        try:
            _cut(folder, state)
            _describe(folder, what, key, state)
            progress(state.deals, state.games)
            for groups in _play(what, orders, state.deals, served):
                state = _write(folder, groups, state)
                book.add(state.model_dump())
                progress(state.deals, state.games)
        except OSError as error:
            if isinstance(error, ServerError):
                raise
            raise SettingsError(f"--out {folder}: cannot be written ({error.strerror}).") from error
        finally:
            _describe(folder, what, key, state)
    return state


def fill_prompts(episode: Episode, config: EnvConfig) -> Episode:
    """Return the episode with what each player would have been shown, on the turns that do not say."""
    game = Game(config.spec(), shuffled_deck(config.spec(), episode.suite, episode.seed))
    turns = []
    for turn in episode.turns:
        shown = turn.prompt or turn_prompt(
            game.view(turn.player), style=config.observation, legal_moves=config.legal_moves
        )
        turns.append(replace(turn, prompt=shown))
        action = parse_action(turn.action, num_players=config.players, player=turn.player)
        if action is None:
            raise ServerError(f"deal {episode.suite}/{episode.seed}: {turn.action!r} is no move.")
        game.apply(action)
    return replace(episode, turns=tuple(turns))


def _play(
    what: Collection, orders: Sequence[tuple[Ref, ...]], first: int, served: Served | None
) -> Iterator[list[list[Episode]]]:
    """Yield the games of some deals at a time, per deal a list."""
    chunk = max(1, (_SERVED_GAMES if what.line_up.needs_server else _SCRIPTED_GAMES) // what.num_games)
    for start in range(first, what.num_deals, chunk):
        seeds = range(start, min(start + chunk, what.num_deals))
        tables = [orders[seed % len(orders)] for seed in seeds]
        if what.line_up.needs_server:
            assert served is not None  # `line_up_key` has asked it
            groups = ask_games(
                served, tables, what.config, seeds, suite=what.suite, label=what.line_up.text, num_games=what.num_games
            )
        else:
            groups = asyncio.run(_scripted(what, seeds, tables))
        yield [[fill_prompts(game, what.config) for game in group] for group in groups] if what.prompts else groups


async def _scripted(what: Collection, seeds: Sequence[int], tables: Sequence[tuple[Ref, ...]]) -> list[list[Episode]]:
    setup = Setup(HANABI, what.config)
    return [
        await play_group(
            setup.task(what.suite, seed), [make_script(setup, str(ref)) for ref in table], num_games=what.num_games
        )
        for seed, table in zip(seeds, tables, strict=True)
    ]


def _write(folder: Path, groups: Sequence[Sequence[Episode]], state: Progress) -> Progress:
    """Append whole deals to the shards; returns the state once they are on disk."""
    now = state.model_copy()
    if now.shard_games >= SHARD_GAMES:
        now.shard, now.shard_games, now.shard_bytes = now.shard + 1, 0, 0
    games = [game for group in groups for game in group]
    content = "".join(json.dumps(episode_to_json(game), ensure_ascii=False) + "\n" for game in games).encode()
    with _shard(folder, now.shard).open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    now.deals += len(groups)
    now.games += len(games)
    now.score += sum(game.score for game in games)
    now.shard_games += len(games)
    now.shard_bytes += len(content)
    return now


def _last(book: Ledger) -> Progress:
    try:
        return Progress.model_validate(book.rows[-1]) if book.rows else Progress()
    except ValidationError as error:
        raise SettingsError(f"{book.path}: damaged ({error.errors()[0]['msg']}); choose a new folder.") from error


def _cut(folder: Path, state: Progress) -> None:
    """Cut away what was written after the last row of the ledger."""
    current = _shard(folder, state.shard)
    for path in folder.glob("games_*.jsonl"):
        if path > current:
            path.unlink()
    found = current.stat().st_size if current.exists() else 0
    if found < state.shard_bytes:
        raise SettingsError(
            f"{current}: {found} of {state.shard_bytes} bytes are left; it was changed. Choose a new folder."
        )
    if found > state.shard_bytes:
        os.truncate(current, state.shard_bytes)


def _describe(folder: Path, what: Collection, key: dict[str, Any], state: Progress) -> None:
    config = what.config
    players = range(config.players)
    about = {
        "line_up": what.line_up.text,
        "seats": key["seats"],
        "policies": key["policies"],
        "env_config": key["env_config"],
        "spec_hash": key["spec_hash"],
        "suite": what.suite,
        "temperature": key.get("temperature"),
        "max_tokens": key.get("max_tokens"),
        "num_deals": what.num_deals,
        "games_per_deal": what.num_games,
        "deals_done": state.deals,
        "games_done": state.games,
        "complete": state.deals >= what.num_deals,
        "mean_score": state.score / state.games if state.games else None,
        "system_prompts": [
            system_prompt(config.spec(), config.observation, player, bomb_rule=config.bomb_rule) for player in players
        ],
        "hanabi_grpo": __version__,
    }
    write_json_atomic(folder / _ABOUT, about)


def _shard(folder: Path, number: int) -> Path:
    return folder / f"games_{number:06d}.jsonl"
