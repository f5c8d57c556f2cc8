"""`hanabi-grpo import-hanab-live`: import games of hanab.live as recorded games."""

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from hanabi_grpo.commands.console import make_console, sayer
from hanabi_grpo.envs.hanabi.replays.hanab_live import (
    ImportedGame,
    LiveRow,
    OtherRulesError,
    import_game,
    live_rows,
)
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import MAX_GAMES_BYTES, read_bytes
from hanabi_grpo.rollout.recordings import write_recordings
from hanabi_grpo.types import EpisodeStatus

_SUFFIXES = (".json", ".jsonl")
_MAX_LINES = 5
"""Maximum number of notes, and of skipped games, that are printed; the rest are counted."""


class OnBad(StrEnum):
    """What an import does about a game that cannot be replayed."""

    STOP = "stop"
    """Stop at the first one, and write nothing."""
    SKIP = "skip"
    """Skip the game and count it."""


@dataclass(slots=True, kw_only=True)
class _Import:
    """The games that were read so far."""

    games: list[ImportedGame] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """Number of skipped games, by reason."""
    refusals: list[str] = field(default_factory=list)
    """The first error messages about skipped games."""

    def add(self, row: LiveRow, on_bad: OnBad) -> None:
        """Replay one game.

        Raises:
            SettingsError: It cannot be replayed, and `on_bad` is STOP.
        """
        try:
            self.games.append(import_game(row))
        except SettingsError as error:
            if on_bad is OnBad.STOP:
                raise SettingsError(f"{error} Use --bad skip to skip such games.") from error
            is_foreign = isinstance(error, OtherRulesError)
            self.refused["with other rules" if is_foreign else "damaged"] += 1
            if len(self.refusals) < _MAX_LINES:
                self.refusals.append(str(error))


def import_hanab_live(
    exports: Annotated[
        list[Path],
        typer.Argument(help="Exported games: JSON or JSON Lines files, or folders of them."),
    ],
    out: Annotated[
        Path,
        typer.Option(help="Output folder, one file per board; existing files are not replaced."),
    ],
    bad: Annotated[
        OnBad,
        typer.Option(help="What to do about a game that cannot be replayed: stop, or skip it."),
    ] = OnBad.STOP,
    finished: Annotated[
        bool,
        typer.Option("--finished", help="Skip games that their players or the clock ended early."),
    ] = False,
) -> None:
    """Import games of hanab.live, each replayed in our engine, as recorded games.

    Download the JSON from https://hanab.live/export/ID. Games with the same board and number of
    players are written to one file, e.g. OUT/full-2.jsonl, which `view`, `report` and
    `warm-start --games` read. Games with other variants, detrimental characters or options that
    change the rules are refused.
    """
    say = sayer(make_console())
    games = _Import()
    for file in _files_of(exports):
        for row in live_rows(_text_of(file), str(file)):
            games.add(row, bad)
    _say_some(games.refusals, games.refused.total(), "games were skipped", say)
    chosen = []
    notes: list[str] = []
    num_unfinished = 0
    for game in games.games:
        if finished and game.recording.episode.status is not EpisodeStatus.FINISHED:
            num_unfinished += 1
            continue
        chosen.append(game.recording)
        notes += game.notes
    _say_some(notes[:_MAX_LINES], len(notes), "notes", say)
    if games.refused:
        reasons = ", ".join(f"{count} {reason}" for reason, count in games.refused.items())
        say(f"skipped: {reasons}")
    if num_unfinished:
        say(f"skipped: {num_unfinished} unfinished")
    if not chosen:
        num_skipped = games.refused.total() + num_unfinished
        remedy = "give other files"
        if num_unfinished:
            remedy += ", or omit --finished"
        raise SettingsError(
            f"{', '.join(map(str, exports))}: no game is left: {num_skipped} skipped; {remedy}."
        )
    _write(out, chosen, say)


def _files_of(sources: Sequence[Path]) -> list[Path]:
    """Return the files of the sources.

    Raises:
        SettingsError: A source is neither a file nor a folder with JSON files.
    """
    files = []
    for source in sources:
        if source.is_dir():
            inside = sorted(path for path in source.iterdir() if path.suffix in _SUFFIXES)
            if not inside:
                raise SettingsError(
                    f"{source}: holds no *.json or *.jsonl file; give a folder of exports, or the "
                    "files."
                )
            files += inside
        elif source.is_file():
            files.append(source)
        else:
            raise SettingsError(f"{source}: no such file or folder; give exports of hanab.live.")
    return files


def _text_of(file: Path) -> str:
    try:
        return read_bytes(file, MAX_GAMES_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{file}: cannot be read ({reason}); give a JSON file.") from error


def _say_some(lines: Sequence[str], count: int, noun: str, say: Callable[[str], None]) -> None:
    """Print the lines, and how many more there are."""
    for line in lines:
        say(line)
    if count > len(lines):
        say(f"… {count - len(lines)} more {noun}")


def _write(out: Path, recordings: Sequence[Recording], say: Callable[[str], None]) -> None:
    """Write a file for each board and number of players.

    Raises:
        SettingsError: A file already exists or cannot be written.
    """
    by_file: dict[Path, list[Recording]] = {}
    for recording in recordings:
        episode = recording.episode
        file = out / f"{episode.preset}-{episode.num_players}.jsonl"
        by_file.setdefault(file, []).append(recording)
    for file in by_file:
        if file.exists():
            raise SettingsError(f"--out {out}: {file.name} already exists; choose another folder.")
    for file, games in by_file.items():
        write_recordings(file, games)
        score = fmean(recording.episode.result["score"] for recording in games)
        say(f"wrote {len(games)} games to {file}, mean score {score:.2f}")
    say(f"watch them: hanabi-grpo view {shlex.quote(str(next(iter(by_file))))}")
