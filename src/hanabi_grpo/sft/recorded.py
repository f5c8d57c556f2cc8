"""Recorded games to learn from: collections, recorded steps of a training, imports."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.rules import is_held_out
from hanabi_grpo.runs.recordings import read_recordings, recording_files
from hanabi_grpo.types import Episode, ReplyKind


@dataclass(frozen=True, slots=True, kw_only=True)
class GameFilter:
    """Which games and replies are learned."""

    min_score: int | None = None
    """Lowest score of a game."""
    only_legal: bool = True
    """Whether replies that were no legal move are read but not learned."""
    who: str | None = None
    """Learn only what this seat word said, e.g. "iggi", "player_0" (at any version) or "player_0@7"."""

    def takes(self, episode: Episode) -> bool:
        """Tell whether a game is used."""
        return self.min_score is None or episode.score >= self.min_score

    def taught(self, episode: Episode) -> tuple[bool, ...]:
        """Return for each turn whether its reply is learned."""
        return tuple(
            self._is_seat(episode, turn.player) and not (self.only_legal and turn.kind is not ReplyKind.LEGAL)
            for turn in episode.turns
        )

    def _is_seat(self, episode: Episode, player: int) -> bool:
        if self.who is None:
            return True
        seat = episode.seats[player] if player < len(episode.seats) else ""
        return self.who in (seat, seat.split("@")[0])


def recorded_games(paths: list[Path], notes: list[str]) -> Iterator[Recording]:
    """Yield the games of some paths, a file at a time.

    Args:
        paths: A run (its newest recorded step), a folder or a file each.
        notes: Receives what should be known of them.

    Raises:
        SettingsError: A path holds no games, or a file is damaged.
    """
    suites: set[str] = set()
    for path in paths:
        for file in recording_files(path):
            recordings, found = read_recordings([file])
            notes += found
            suites |= {recording.episode.suite for recording in recordings}
            yield from recordings
    if spoiled := sorted(filter(is_held_out, suites)):
        notes.append(f"suite {', '.join(spoiled)} is held out; learning from it spoils evaluations on it.")
