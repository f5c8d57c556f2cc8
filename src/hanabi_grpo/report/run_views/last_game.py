"""The newest recorded game of a run folder, move by move."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.envs.hanabi.replays.timeline import Timeline, make_timeline
from hanabi_grpo.envs.hanabi.replays.wording import deed, earned, outcome
from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.runs.wire import episode_from_json
from hanabi_grpo.types import ReplyKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMove:
    """One turn in words."""

    player: str
    version: int | None
    did: str
    """e.g. "plays slot 0: R1, scores"."""
    earned: str
    bad: str
    """Empty for a legal reply, else "illegal" or "unparsable": a random legal move was played."""


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
    """At the end, e.g. "R2 Y1 · lives 1 · hints 0"."""

    @property
    def versions(self) -> tuple[int, ...]:
        """Adapter versions that played, ascending."""
        return tuple(sorted({move.version for move in self.moves if move.version is not None}))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "versions": list(self.versions)}


def read_last_game(path: Path) -> LastGame | None:
    """Return the newest whole game of a file of games; None while it has none.

    Raises:
        SettingsError: It is no game that this version can play again.
        OSError: The file cannot be read.
    """
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n") and line.strip()]
    if not lines:
        return None
    try:
        episode = episode_from_json(json.loads(lines[-1]))
        return in_words(make_timeline(Recording(episode=episode, number=len(lines) - 1, source=path.stem)))
    except (HanabiGrpoError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SettingsError(visible(f"{path.name}: {error}")) from error


def in_words(timeline: Timeline) -> LastGame:
    """Return a replayed game in words."""
    recording, last = timeline.recording, timeline.boards[-1]
    stacks = " ".join(f"{COLOR_LETTERS[color]}{height}" for color, height in enumerate(last.fireworks))
    return LastGame(
        file=recording.source,
        number=recording.number,
        deal=visible(f"{recording.episode.suite}/{recording.episode.seed}"),
        outcome=outcome(recording, timeline.spec.reachable_max),
        moves=tuple(
            LastMove(
                player=visible(recording.players[move.turn.player]),
                version=move.turn.version,
                did=deed(move.event, recording.players),
                earned=visible(earned(move.turn.rewards)),
                bad="" if move.turn.kind is ReplyKind.LEGAL else move.turn.kind.value,
            )
            for move in timeline.moves
        ),
        table=f"{stacks} · lives {last.lives} · hints {last.hints}",
    )
