"""`hanabi-grpo import-hanab-live`: games of hanab.live as recorded games."""

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
"""Notes, and refused games, that are printed; the others are counted."""


class OnBad(StrEnum):
    """What becomes of an import with a game that cannot be replayed."""

    STOP = "stop"
    """It stops at the first one, and nothing is written."""
    SKIP = "skip"
    """The game is left out and counted."""


@dataclass(slots=True, kw_only=True)
class _Import:
    """What was read so far."""

    games: list[ImportedGame] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """Games that were left out, by reason."""
    refusals: list[str] = field(default_factory=list)
    """The first messages about them."""

    def add(self, row: LiveRow, on_bad: OnBad) -> None:
        """Replay one game.

        Raises:
            SettingsError: It cannot be replayed, and bad games stop the import.
        """
        try:
            self.games.append(import_game(row))
        except SettingsError as error:
            if on_bad is OnBad.STOP:
                raise SettingsError(f"{error} --bad skip leaves such games out.") from error
            is_foreign = isinstance(error, OtherRulesError)
            self.refused["of other rules" if is_foreign else "damaged"] += 1
            if len(self.refusals) < _MAX_LINES:
                self.refusals.append(str(error))


def import_hanab_live(
    exports: Annotated[
        list[Path],
        typer.Argument(help="Exports of games: JSON or JSON lines, files or folders of them."),
    ],
    out: Annotated[
        Path,
        typer.Option(help="Folder of the games, one file for each board; no file is replaced."),
    ],
    bad: Annotated[
        OnBad,
        typer.Option(help="At a game that cannot be replayed: stop, or skip it and count it."),
    ] = OnBad.STOP,
    finished: Annotated[
        bool,
        typer.Option(
            "--finished", help="Leave out games that their players or the clock ended early."
        ),
    ] = False,
) -> None:
    """Import games of hanab.live, each replayed in our engine, as recorded games.

    Take the JSON of https://hanab.live/export/ID. The games of a board and a number of players come
    into one file, e.g. OUT/full-2.jsonl, which `view`, `report` and `warm-start --games` read.
    Other variants, detrimental characters and options that change the rules are refused.
    """
    say = sayer(make_console())
    games = _Import()
    for file in _files_of(exports):
        for row in live_rows(_text_of(file), str(file)):
            games.add(row, bad)
    _say_some(games.refusals, games.refused.total(), "games are left out", say)
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
        say(f"left out: {reasons}")
    if num_unfinished:
        say(f"left out: {num_unfinished} unfinished")
    if not chosen:
        raise SettingsError(
            f"{', '.join(map(str, exports))}: none of {len(games.games)} games that can be "
            "replayed is left; give other files, or leave --finished out."
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
        SettingsError: A file exists already or cannot be written.
    """
    by_file: dict[Path, list[Recording]] = {}
    for recording in recordings:
        episode = recording.episode
        file = out / f"{episode.preset}-{episode.num_players}.jsonl"
        by_file.setdefault(file, []).append(recording)
    for file in by_file:
        if file.exists():
            raise SettingsError(f"--out {out}: {file.name} exists already; choose another folder.")
    for file, games in by_file.items():
        write_recordings(file, games)
        score = fmean(recording.episode.result["score"] for recording in games)
        say(f"wrote {len(games)} games to {file}, mean score {score:.2f}")
    say(f"watch them: hanabi-grpo view {next(iter(by_file))}")
