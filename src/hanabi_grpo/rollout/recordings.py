"""Files of recorded games, read, written and chosen from: a line is an episode, and what
`Recording` has beside it.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.rollout.wire import episode_from_json, episode_to_json
from hanabi_grpo.runs.run_folder import append_jsonl, json_text, run_home, save_text
from hanabi_grpo.types import Episode, ReplyKind, player_name

NUM_REPLAYS = 4
"""Games of a page that shows a sample."""
_STEP = re.compile(r"step_(\d+)", re.ASCII)


def recording_to_json(recording: Recording) -> dict[str, Any]:
    """Return one line of a file: the episode, and start and names where they are needed."""
    row = episode_to_json(recording.episode)
    if recording.start is not None:
        row["start"] = recording.start
    if recording.names:
        row["names"] = list(recording.names)
    return row


def write_recordings(path: Path, recordings: Iterable[Recording]) -> None:
    """Write games to a new file, all or none; a SettingsError where it exists already or cannot be
    written.
    """
    if path.exists():
        raise SettingsError(f"--out {path}: exists already; choose another name or remove it.")
    save_text(path, "".join(json_text(recording_to_json(one)) for one in recordings), "--out")


def write_episodes(run_folder: Path, step: int, groups: Sequence[Sequence[Episode]]) -> Path:
    """Write every game of a recorded step to `episodes/step_<step>.jsonl`."""
    folder = run_folder / "episodes"
    folder.mkdir(exist_ok=True)
    path = folder / f"step_{step:06d}.jsonl"
    path.unlink(missing_ok=True)
    append_jsonl(path, *(episode_to_json(episode) for group in groups for episode in group))
    return path


def recorded_steps(folder: Path) -> dict[int, Path]:
    """Return the files of recorded steps in `episodes/` of a folder, or in the folder itself where
    it has none.
    """
    folder = folder / "episodes" if (folder / "episodes").is_dir() else folder
    return {
        int(match[1]): file
        for file in folder.glob("*.jsonl")
        if (match := _STEP.fullmatch(file.stem))
    }


def recording_files(path: Path, step: int | None = None) -> list[Path]:
    """Return the files of games that a path stands for; a SettingsError where there are none.

    A run folder (see `run_home`) stands for one of its recorded steps, the last when none is named;
    a folder without steps stands for all its `*.jsonl` files."""
    if path.is_file():
        if step is not None:
            raise SettingsError(
                f"--step {step}: {path} is one file; give the run folder, or leave --step out."
            )
        return [path]
    if not path.is_dir():
        raise SettingsError(
            f"{path}: no such file or folder; give a run folder or a *.jsonl file of games."
        )
    path = run_home(path)
    folder = path / "episodes" if (path / "episodes").is_dir() else path
    steps = recorded_steps(path)
    if step is None and not steps:
        if files := sorted(folder.glob("*.jsonl")):
            return files
        raise SettingsError(
            f"{folder}: holds no *.jsonl files of games; a run records some in episodes/."
        )
    if step is None:
        step = max(steps)
    if step not in steps:
        recorded = ", ".join(map(str, sorted(steps))) or "none"
        raise SettingsError(f"--step {step}: not recorded in {folder}; recorded: {recorded}.")
    return [steps[step]]


def read_recordings(files: Sequence[Path]) -> tuple[list[Recording], list[str]]:
    """Return the games of some files, numbered through, and notes about what was left out.

    A last line that was cut off (its writer was killed) is left out with a note; any other that is
    no game raises a SettingsError."""
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


def _recording(row: Any, number: int, path: Path, line: int) -> Recording:
    where = f"{path}: line {line}"
    try:
        episode = episode_from_json(row)
    except ServerError as error:
        raise SettingsError(f"{where} is no game of this version: {error}") from error
    start = row.get("start")
    names = row.get("names", [])
    if start is not None and not isinstance(start, str):
        raise SettingsError(
            f"{where}: start={str(start)[:40]!r}: a start is a text, in Hanabi the deck 'R1 Y4 "
            "...'."
        )
    well_named = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not well_named or len(names) not in (0, episode.num_players):
        raise SettingsError(
            f"{where}: names={str(names)[:80]}: one text for each of {episode.num_players} players."
        )
    return Recording(
        episode=episode, number=number, source=path.stem, start=start, names=tuple(names)
    )


def _without_surrogates(data: Any) -> Any:
    # JSON can escape half a character, and no text that holds one can be checked or shown.
    if isinstance(data, str):
        return data.encode("utf-8", "replace").decode("utf-8")
    if isinstance(data, list):
        return (
            data
            if not data or isinstance(data[0], int | float)
            else [_without_surrogates(item) for item in data]
        )
    return (
        {key: _without_surrogates(item) for key, item in data.items()}
        if isinstance(data, dict)
        else data
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What was asked for; without anything, every game. Choices that exclude each other are a
    SettingsError.
    """

    worst: int | None = None
    """This many games of the lowest returns of all players together."""
    best: int | None = None
    illegal: bool = False
    """Only games with a reply that was illegal or no move; with `player`, a reply of that
    player.
    """
    player: int | None = None
    """Only turns of this seat are shown."""
    game: int | None = None
    """Only the game of this number."""

    def __post_init__(self) -> None:
        given = {
            name: value
            for name in ("worst", "best", "game")
            if (value := getattr(self, name)) is not None
        }
        if len(given) > 1:
            raise SettingsError(
                f"{' and '.join(f'--{name}' for name in given)}: choose one of them."
            )
        for name, value in given.items():
            if name != "game" and value < 1:
                raise SettingsError(f"--{name} {value}: how many games, at least 1.")

    @property
    def is_everything(self) -> bool:
        """True when no game is left out."""
        return self.worst is None and self.best is None and self.game is None and not self.illegal

    def apply(self, recordings: Sequence[Recording]) -> list[Recording]:
        """Return the chosen games: by returns for `worst` and `best`, else in the order of the
        file.
        """
        chosen = list(recordings)
        if self.game is not None:
            chosen = [one for one in chosen if one.number == self.game]
            if not chosen:
                raise SettingsError(
                    f"--game {self.game}: there are games 0 to {len(recordings) - 1}."
                )
        if self.player is not None and all(
            self.player >= one.episode.num_players for one in chosen
        ):
            raise SettingsError(
                f"--player {player_name(self.player)}: no game here has that many players."
            )
        if self.illegal:
            chosen = [one for one in chosen if num_bad_replies(one, self.player)]
        if self.worst is not None or self.best is not None:
            chosen = sorted(chosen, key=_score, reverse=self.worst is None)[
                : self.worst or self.best
            ]
        return chosen


def num_bad_replies(recording: Recording, player: int | None = None) -> int:
    """Return how many replies were no legal move, of one seat or of all."""
    turns = recording.episode.turns
    return sum(
        turn.kind is not ReplyKind.LEGAL
        for turn in turns
        if player is None or turn.player == player
    )


def _score(recording: Recording) -> float:
    episode = recording.episode
    return sum(episode.reward(player) for player in range(episode.num_players))


def spread(recordings: Sequence[Recording], number: int) -> list[Recording]:
    """Return this many games, evenly from the worst to the best: 3 of those that earned 0, 1, 1, 2,
    4 are 0, 1, 4.
    """
    ranked = sorted(recordings, key=_score)
    if number < 2 or len(ranked) <= number:
        return ranked[-number:] if number else []
    return [ranked[round(place * (len(ranked) - 1) / (number - 1))] for place in range(number)]
