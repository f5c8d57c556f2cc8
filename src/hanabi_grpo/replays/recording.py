"""Games as files hold them: an episode a line, and beside it what an episode cannot name.

An episode names its deal by (suite, seed). A game from elsewhere has a deck that no seed deals: its line carries the
deck itself in `deck`, e.g. "R1 Y4 ...", and `names`, the players' own; readers of episodes leave both keys alone.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import GameParameterError, ServerError, SettingsError
from hanabi_grpo.games import COLOR_LETTERS, Card, GameSpec, make_spec, recorded_spec, shuffled_deck
from hanabi_grpo.runs import sync_folder
from hanabi_grpo.types import Episode, player_names
from hanabi_grpo.wire import episode_from_json, episode_to_json

IMPORTED_SUITE = "hanab.live"
"""Suite of games whose deck is written beside them; `seed` is their number at hanab.live, 0 where there is none."""

_CARD = re.compile(rf"([{COLOR_LETTERS}])([1-5])", re.ASCII)
_STEP = re.compile(r"step_(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One game of a file."""

    episode: Episode
    number: int = 0
    """Place among the games that were read together, from 0; people choose a game by it."""
    source: str = ""
    """File it came from, without folder and suffix, e.g. "step_000030"."""
    deck: tuple[Card, ...] | None = None
    """The deck of a game that no (suite, seed) deals."""
    names: tuple[str, ...] = ()
    """What the players are called elsewhere; empty: `player_0`, …"""

    @property
    def players(self) -> tuple[str, ...]:
        """Names of all players, in turn order."""
        return self.names or player_names(self.episode.num_players)

    def spec(self) -> GameSpec:
        """Return the board.

        Raises:
            SettingsError: This version has no such board, or another one of that name.
        """
        episode = self.episode
        try:
            spec = recorded_spec(episode.preset, episode.num_players, episode.spec_hash)
        except GameParameterError as error:
            raise SettingsError(f"{self.where}: {error}") from error
        if spec is None:
            here = make_spec(episode.preset, episode.num_players).hash
            raise SettingsError(
                f"{self.where}: recorded on a board {episode.preset} with hash {episode.spec_hash}; here that board "
                f"is {here}. Watch it with the version of hanabi_grpo that recorded it."
            )
        return spec

    def cards(self) -> tuple[Card, ...]:
        """Return the deck, first card dealt first.

        Raises:
            SettingsError: The deck is missing, or (suite, seed) names none.
        """
        if self.deck is not None:
            return self.deck
        if self.episode.suite == IMPORTED_SUITE:
            raise SettingsError(f"{self.where}: an imported game without its `deck`; import it again.")
        try:
            return shuffled_deck(self.spec(), self.episode.suite, self.episode.seed)
        except GameParameterError as error:
            raise SettingsError(f"{self.where}: {error}") from error

    @property
    def where(self) -> str:
        """What errors call this game."""
        return f"{self.source or 'recording'}, game {self.number}"


def recording_to_json(recording: Recording) -> dict[str, Any]:
    """Return one line of a file: the episode, and deck and names where they are needed."""
    row = episode_to_json(recording.episode)
    if recording.deck is not None:
        row["deck"] = " ".join(map(str, recording.deck))
    if recording.names:
        row["names"] = list(recording.names)
    return row


def write_recordings(path: Path, recordings: Iterable[Recording]) -> None:
    """Write games to a new file, all or none.

    Raises:
        SettingsError: The file exists already or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            try:
                file.writelines(json.dumps(recording_to_json(one), ensure_ascii=False) + "\n" for one in recordings)
            except BaseException:
                path.unlink()
                raise
        sync_folder(path.parent)
    except FileExistsError as error:
        raise SettingsError(f"--out {path}: exists already; choose another name or remove it.") from error
    except OSError as error:
        raise SettingsError(f"--out {path}: cannot be written ({error.strerror}).") from error


def recorded_steps(folder: Path) -> dict[int, Path]:
    """Return the files of recorded steps in `episodes/` of a folder, or in the folder itself where it has none."""
    folder = folder / "episodes" if (folder / "episodes").is_dir() else folder
    return {int(match[1]): file for file in folder.glob("*.jsonl") if (match := _STEP.fullmatch(file.stem))}


def recording_files(path: Path, step: int | None = None) -> list[Path]:
    """Return the files of games that a path stands for.

    A run folder stands for one of its recorded steps, the last when none is named; a folder without steps stands for
    all its `*.jsonl` files.

    Raises:
        SettingsError: There is nothing to read, or no such step.
    """
    if path.is_file():
        if step is not None:
            raise SettingsError(f"--step {step}: {path} is one file; give the run folder, or leave --step out.")
        return [path]
    if not path.is_dir():
        raise SettingsError(f"{path}: no such file or folder; give a run folder or a *.jsonl file of games.")
    folder = path / "episodes" if (path / "episodes").is_dir() else path
    steps = recorded_steps(path)
    if step is None and not steps:
        if files := sorted(folder.glob("*.jsonl")):
            return files
        raise SettingsError(f"{folder}: holds no *.jsonl files of games; a training records some in episodes/.")
    if step is None:
        step = max(steps)
    if step not in steps:
        recorded = ", ".join(map(str, sorted(steps))) or "none"
        raise SettingsError(f"--step {step}: not recorded in {folder}; recorded: {recorded}.")
    return [steps[step]]


def read_recordings(files: Sequence[Path]) -> tuple[list[Recording], list[str]]:
    """Return the games of some files, numbered through, and notes about what was left out.

    A last line that was cut off (its writer was killed) is left out with a note.

    Raises:
        SettingsError: A file cannot be read, a line is no game, or there is no game at all.
    """
    found: list[Recording] = []
    notes: list[str] = []
    for path in files:
        try:
            text = path.read_bytes().decode("utf-8", "replace")
        except OSError as error:
            raise SettingsError(f"{path}: cannot be read ({error.strerror}).") from error
        lines = text.split("\n")
        for index, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                if index == len(lines) - 1:
                    notes.append(f"{path}: its last line was cut off and is left out.")
                    continue
                raise SettingsError(f"{path}: line {index + 1} is no JSON ({error}).") from error
            found.append(_recording(_without_surrogates(row), len(found), path, index + 1))
    if not found:
        raise SettingsError(f"{', '.join(map(str, files))}: no game in there.")
    return found, notes


def read_deck(text: str, where: str) -> tuple[Card, ...]:
    """Return the cards of e.g. "R1 Y4".

    Raises:
        SettingsError: A word is no card.
    """
    cards = []
    for word in text.split():
        match = _CARD.fullmatch(word)
        if match is None:
            raise SettingsError(
                f"{where}: deck: {word[:20]!r} is no card; a card is one of {COLOR_LETTERS} and 1 to 5."
            )
        cards.append(Card(COLOR_LETTERS.index(match[1]), int(match[2]) - 1))
    return tuple(cards)


def _recording(row: Any, number: int, path: Path, line: int) -> Recording:
    where = f"{path}: line {line}"
    try:
        episode = episode_from_json(row)
    except ServerError as error:
        raise SettingsError(f"{where} is no game of this version: {error}") from error
    deck, names = row.get("deck"), row.get("names", [])
    if deck is not None and not isinstance(deck, str):
        raise SettingsError(f"{where}: deck={str(deck)[:40]!r}: a deck is a text such as 'R1 Y4 ...'.")
    well_named = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not well_named or len(names) not in (0, episode.num_players):
        raise SettingsError(f"{where}: names={str(names)[:80]}: one text for each of {episode.num_players} players.")
    return Recording(
        episode=episode,
        number=number,
        source=path.stem,
        deck=None if deck is None else read_deck(deck, where),
        names=tuple(names),
    )


def _without_surrogates(data: Any) -> Any:
    # JSON can escape half a character, and no text that holds one can be checked or shown.
    if isinstance(data, str):
        return data.encode("utf-8", "replace").decode("utf-8")
    if isinstance(data, list):
        return data if not data or isinstance(data[0], int | float) else [_without_surrogates(item) for item in data]
    return {key: _without_surrogates(item) for key, item in data.items()} if isinstance(data, dict) else data
