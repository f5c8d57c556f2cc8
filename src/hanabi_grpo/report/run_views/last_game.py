"""The newest recorded game of a run folder, move by move."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.envs.hanabi.replays.timeline import Timeline, make_timeline
from hanabi_grpo.envs.hanabi.replays.wording import deed, earned, outcome
from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS
from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.report.run_views.tail import LineTail
from hanabi_grpo.runs.recordings import read_episode
from hanabi_grpo.types import ReplyKind

_STEP = re.compile(r"step_([0-9]{1,18})\.jsonl", re.ASCII)


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


class LastGameWatch:
    """Finds the newest recorded game again and again; reads a file once."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.game: LastGame | None = None
        self.problem = ""
        self._tail: LineTail | None = None
        self._count = 0

    def look(self, run_folder: Path) -> None:
        """Read what is new; `game` is then the newest one, `problem` why there is none.

        Raises:
            OSError: The files cannot be read.
        """
        newest = _newest(run_folder / "episodes")
        if newest is None:
            self._tail, self._count, self.game, self.problem = None, 0, None, ""
            return
        if self._tail is None or self._tail.path != newest:
            self._tail, self._count = LineTail(newest), 0
        lines, began_anew = self._tail.read()
        lines = [line for line in lines if line.strip()]
        self._count = len(lines) + (0 if began_anew else self._count)
        if not lines:
            # Not a line yet: the game before it stays.
            return
        try:
            episode = read_episode(json.loads(lines[-1]))
            recording = Recording(episode=episode, number=self._count - 1, source=newest.stem)
            self.game, self.problem = in_words(make_timeline(recording)), ""
        except (HanabiGrpoError, ValueError, LookupError, TypeError, RecursionError) as error:
            self.game, self.problem = None, visible(f"{newest.name}: {error}")


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
                earned=visible(earned(move.turn.rewards[move.turn.player])),
                bad="" if move.turn.kind is ReplyKind.LEGAL else move.turn.kind.value,
            )
            for move in timeline.moves
        ),
        table=f"{stacks} · lives {last.lives} · hints {last.hints}",
    )


def _newest(folder: Path) -> Path | None:
    try:
        found = [(int(match[1]), path) for path in folder.iterdir() if (match := _STEP.fullmatch(path.name))]
    except (FileNotFoundError, NotADirectoryError):
        return None
    return max(found)[1] if found else None
