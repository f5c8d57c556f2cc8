"""The newest recorded game of a run folder, turn by turn."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.envs.hanabi.replays.wording import earned
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.report.played import frames_of, outcome
from hanabi_grpo.runs.recordings import read_episode
from hanabi_grpo.types import Episode, ReplyKind, player_name


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMove:
    """One turn in words."""

    player: str
    version: int | None
    did: str
    """The action."""
    earned: str
    bad: str
    """Empty for a legal reply, else "illegal" or "unparsable": something else was done in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastGame:
    """A recorded game in words."""

    file: str
    """e.g. "step_000190"."""
    number: int
    """Among the games of the file; `hanabi-grpo view RUN --game` takes it."""
    deal: str
    outcome: str
    moves: tuple[LastMove, ...]
    table: str
    """The last frame; "" where this version does not know what was played."""

    @property
    def versions(self) -> tuple[int, ...]:
        """Adapter versions that played, ascending."""
        return tuple(sorted({move.version for move in self.moves if move.version is not None}))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "versions": list(self.versions)}


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
        frames = frames_of(Recording(episode=episode, number=len(lines) - 1, source=path.stem), settings)
    except (HanabiGrpoError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(visible(f"{path.name}: {error}")) from error
    return LastGame(
        file=path.stem,
        number=len(lines) - 1,
        deal=visible(f"{episode.suite}/{episode.seed}"),
        outcome=outcome(episode),
        moves=_moves(episode),
        table=frames[-1].text if frames else "",
    )


def _moves(episode: Episode) -> tuple[LastMove, ...]:
    return tuple(
        LastMove(
            player=player_name(turn.player),
            version=turn.version,
            did=visible(turn.action),
            earned=visible(earned(turn.rewards[turn.player])),
            bad="" if turn.kind is ReplyKind.LEGAL else turn.kind.value,
        )
        for turn in episode.turns
    )
