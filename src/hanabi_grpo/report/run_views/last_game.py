"""The newest recorded game of a run folder, turn by turn."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.report.played import frames_of, game_words
from hanabi_grpo.runs.recordings import read_episode

_OF_A_MOVE = ("player", "did", "earned", "bad")


@dataclass(frozen=True, slots=True, kw_only=True)
class LastGame:
    """A recorded game in words."""

    file: str
    """e.g. "step_000190"."""
    number: int
    """Among the games of the file; `hanabi-grpo view RUN --game` takes it."""
    deal: str
    outcome: str
    moves: tuple[dict[str, str], ...]
    """Per turn its player, what it did and earned, and "illegal" or "unparsable" in `bad` where that was put in."""
    table: str
    """The last frame; "" where this version does not know what was played."""
    versions: tuple[int, ...]
    """Of the adapters that played, ascending."""


def read_last_game(path: Path, settings: Mapping[str, Any]) -> LastGame | None:
    """Return the newest whole game of a file of games; None while it has none.

    Raises:
        SettingsError: It is no game that this version can play again.
        OSError: The file cannot be read.
    """
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n") and line.strip()]
    if not lines:
        return None
    try:
        episode = read_episode(json.loads(lines[-1]))
        recording = Recording(episode=episode, number=len(lines) - 1, source=path.stem)
        frames, words = frames_of(recording, settings), game_words(recording)
    except (HanabiGrpoError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(visible(f"{path.name}: {error}")) from error
    return LastGame(
        file=path.stem,
        number=recording.number,
        deal=words["task"],
        outcome=words["outcome"],
        moves=tuple({name: move[name] for name in _OF_A_MOVE} for move in words["moves"]),
        table=frames[-1].text if frames else "",
        versions=tuple(sorted({turn.version for turn in episode.turns if turn.version is not None})),
    )
