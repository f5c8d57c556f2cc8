"""Computed teams in files, so that a machine computes each of them once.

A file is in `cache_folder` and is named by a digest of everything that determines the team: the
board, the search's parameters, and the search's code. A file from other code is therefore never
read; it stays in place. One process computes at a time; others that need the team wait for it.
"""

import dataclasses
import fcntl
import functools
import hashlib
import io
import json
import logging
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hanabi_grpo.envs.hanabi.policies.best_response import Table, Team
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.files import read_bytes, write_text_atomic

logger = logging.getLogger(__name__)

_CACHE_VARIABLE = "XDG_CACHE_HOME"
_MAX_BYTES = 64 << 20
"""Size limit of a file; a team for a supported board takes a few hundred kilobytes."""
_DIGEST_DIGITS = 16
_FORMAT = 1
"""Incremented when the file format changes."""
_FACTS = "facts"
_MEAN = "mean"
_DAMAGES = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged file raises."""


def cache_folder() -> Path:
    """Return where teams are kept: hanabi_grpo/teams in XDG_CACHE_HOME, or in ~/.cache.

    Raises:
        RuntimeError: Neither exists.
    """
    given = os.environ.get(_CACHE_VARIABLE, "")
    # The XDG specification says to ignore relative paths.
    home = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return home / "hanabi_grpo" / "teams"


@functools.cache
def code_digest(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of source files, in hex digits.

    Args:
        paths: The files, in an order that is the same everywhere.
    """
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def stored_team(
    name: str,
    spec: GameSpec,
    search: Mapping[str, object],
    code: str,
    compute: Callable[[], tuple[float, Team]],
) -> tuple[float, Team]:
    """Return a team's mean score and the team, from a file if there is one.

    The log reports that a team is being computed and where it is stored. If no file can be written,
    every process computes the team.

    Args:
        name: Name of the policy, which is also the beginning of the file's name.
        spec: The board.
        search: The search's parameters, e.g. {"sweeps": 60}.
        code: Digest of the search's code.
        compute: Computes the team.
    """
    facts = _facts(name, spec, search, code)
    try:
        path = cache_folder() / f"{name}-{_digest(facts)}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path.with_name(f".{path.name}.lock"), "a", encoding="utf-8")  # noqa: SIM115
    except (OSError, RuntimeError) as error:
        logger.warning(
            "%s: the team cannot be stored in a file (%s), so every process computes it again, "
            "which takes minutes on one core for 2 x 2 cards; set %s to a writable folder",
            name,
            error,
            _CACHE_VARIABLE,
        )
        return compute()
    with lock:
        _wait_for(lock, name)
        found = _read(path, spec, facts)
        return found if found is not None else _computed(name, spec, path, facts, compute)


def _wait_for(lock: TextIO, name: str) -> None:
    """Wait until no other process holds a lock; it is held until its file is closed."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.warning("%s: another process is computing the team; waiting for it", name)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        # A file system without locks: at worst, two processes compute the same.
        logger.info("%s: %s cannot be locked: %s", name, lock.name, error)


def _computed(
    name: str,
    spec: GameSpec,
    path: Path,
    facts: Mapping[str, object],
    compute: Callable[[], tuple[float, Team]],
) -> tuple[float, Team]:
    """Compute a team and store it."""
    logger.warning(
        "%s: computing the team for %s with %d players, once per machine; for 2 x 2 cards this "
        "takes minutes on one core",
        name,
        spec.preset,
        spec.num_players,
    )
    start = time.monotonic()
    mean, team = compute()
    seconds = time.monotonic() - start
    try:
        write_text_atomic(path, _content(mean, team, facts))
    except OSError as error:
        logger.warning(
            "%s: computed in %.0f s; %s cannot be written: %s", name, seconds, path, error
        )
    else:
        logger.warning("%s: computed in %.0f s and stored in %s", name, seconds, path)
    return mean, team


def _facts(name: str, spec: GameSpec, search: Mapping[str, object], code: str) -> dict[str, object]:
    board = dataclasses.asdict(spec)
    # A different name alone does not make a different board.
    del board["preset"]
    return {"format": _FORMAT, "policy": name, "board": board, "search": dict(search), "code": code}


def _digest(facts: Mapping[str, object]) -> str:
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]


def _content(mean: float, team: Team, facts: Mapping[str, object]) -> bytes:
    """Return the bytes of a team's file."""
    arrays: dict[str, Any] = {_MEAN: np.array(mean)}
    for player, table in enumerate(team):
        arrays[f"seen_{player}"] = table.seen
        arrays[f"moves_{player}"] = table.moves.astype(np.int64)
    text = json.dumps({**facts, "checksum": _checksum(arrays)}, sort_keys=True)
    content = io.BytesIO()
    arrays[_FACTS] = np.array(text)
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def _checksum(arrays: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _read(path: Path, spec: GameSpec, facts: Mapping[str, object]) -> tuple[float, Team] | None:
    """Return the team of a file; None if there is no file, or a damaged one."""
    try:
        return _parsed(read_bytes(path, _MAX_BYTES), spec, facts)
    except FileNotFoundError:
        return None
    except _DAMAGES as error:
        logger.warning("%s is damaged (%s): ignoring it and computing the team again", path, error)
        return None


def _parsed(content: bytes, spec: GameSpec, facts: Mapping[str, object]) -> tuple[float, Team]:
    """Return the team of a file's bytes.

    Raises:
        ValueError: They belong to another team, or are damaged; or another error of `_DAMAGES`.
    """
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    written = json.loads(str(arrays.pop(_FACTS)))
    if written.pop("checksum", None) != _checksum(arrays):
        raise ValueError("its checksum does not match")
    if written != json.loads(json.dumps(facts)):
        raise ValueError("it belongs to another team")
    tables = []
    for player in range(spec.num_players):
        table = Table(arrays[f"seen_{player}"], arrays[f"moves_{player}"])
        num_moves = len(load_rules(spec).actions[player])
        if not _is_table(table, num_moves):
            raise ValueError(f"the table of player {player} is invalid")
        tables.append(table)
    return float(arrays[_MEAN]), tuple(tables)


def _is_table(table: Table, num_moves: int) -> bool:
    """Tell whether a table's entries ascend and all of its moves are moves of the board."""
    seen, moves = table
    if seen.dtype != np.uint64 or moves.dtype != np.int64 or seen.shape != moves.shape:
        return False
    is_ascending = seen.ndim == 1 and bool((seen[1:] > seen[:-1]).all())
    return is_ascending and bool(((moves >= 0) & (moves < num_moves)).all())
