"""Files of recorded games: writing, reading and selecting.

Each line has an episode, and the other fields of its `Recording`.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.files import MAX_GAMES_BYTES, read_bytes
from hanabi_grpo.rollout.wire import episode_from_json, episode_to_json
from hanabi_grpo.runs.run_folder import append_jsonl, json_text, run_home, save_text
from hanabi_grpo.texts import encodable
from hanabi_grpo.types import Episode, ReplyKind, player_name

NUM_REPLAYS = 4
"""Number of games on a sample page."""
_STEP_PATTERN = re.compile(r"step_(\d+)", re.ASCII)
_MAX_START = 40
"""Characters of a malformed start that an error quotes."""
_MAX_NAMES = 80
"""Characters of malformed names that an error quotes."""


def recording_to_json(recording: Recording) -> dict[str, Any]:
    """Return one line of a file: the episode, and its start and names if there are any."""
    row = episode_to_json(recording.episode)
    if recording.start is not None:
        row["start"] = recording.start
    if recording.names:
        row["names"] = list(recording.names)
    return row


def write_recordings(path: Path, recordings: Iterable[Recording]) -> None:
    """Write games to a new file, all or none.

    Raises:
        SettingsError: The file already exists or cannot be written.
    """
    if path.exists():
        raise SettingsError(f"--out {path}: already exists; choose another name or remove it.")
    lines = [json_text(recording_to_json(recording)) for recording in recordings]
    save_text(path, "".join(lines), "--out")


def write_episodes(run_folder: Path, step: int, groups: Sequence[Sequence[Episode]]) -> Path:
    """Write every game of a recorded step to `episodes/step_<step>.jsonl`.

    Args:
        run_folder: Folder of the run.
        step: Number of the optimizer step.
        groups: The step's games, by task.

    Returns:
        The file.
    """
    folder = run_folder / "episodes"
    folder.mkdir(exist_ok=True)
    path = folder / f"step_{step:06d}.jsonl"
    path.unlink(missing_ok=True)
    rows: list[dict[str, Any]] = []
    for group in groups:
        rows += map(episode_to_json, group)
    append_jsonl(path, *rows)
    return path


def recorded_steps(folder: Path) -> dict[int, Path]:
    """Return the files of recorded steps, by step.

    They are in the folder's `episodes/`, or in the folder itself if that does not exist.
    """
    steps = {}
    for path in _episode_folder(folder).glob("*.jsonl"):
        match = _STEP_PATTERN.fullmatch(path.stem)
        if match is not None:
            steps[int(match[1])] = path
    return steps


def _episode_folder(folder: Path) -> Path:
    episodes = folder / "episodes"
    return episodes if episodes.is_dir() else folder


def recording_files(path: Path, step: int | None = None) -> list[Path]:
    """Return the files of games that a path refers to.

    A run folder (see `run_home`) refers to one of its recorded steps; a folder without steps refers
    to all its `*.jsonl` files.

    Args:
        path: A file, or a folder.
        step: The recorded step; None: the last one.

    Raises:
        SettingsError: There is no such file, folder or step.
    """
    if path.is_file():
        if step is not None:
            raise SettingsError(
                f"--step {step}: {path} is a single file; give the run folder, or omit --step."
            )
        return [path]
    if not path.is_dir():
        raise SettingsError(
            f"{path}: no such file or folder; give a run folder or a *.jsonl file of games."
        )
    home = run_home(path)
    folder = _episode_folder(home)
    steps = recorded_steps(home)
    if step is None and not steps:
        files = sorted(folder.glob("*.jsonl"))
        if not files:
            raise SettingsError(
                f"{folder}: contains no *.jsonl files of games; a run records games in episodes/."
            )
        return files
    if step is None:
        step = max(steps)
    if step not in steps:
        recorded = ", ".join(map(str, sorted(steps))) or "none"
        raise SettingsError(f"--step {step}: not recorded in {folder}; recorded: {recorded}.")
    return [steps[step]]


def read_recordings(files: Sequence[Path]) -> tuple[list[Recording], list[str]]:
    """Read the games of some files.

    A truncated last line (its writer was killed) is skipped with a note.

    Returns:
        The games, numbered across all files, and notes about skipped lines.

    Raises:
        SettingsError: A file cannot be read, a line is not a game, or no file contains a game.
    """
    recordings: list[Recording] = []
    notes: list[str] = []
    for path in files:
        try:
            text = read_bytes(path, MAX_GAMES_BYTES).decode("utf-8", "replace")
        except OSError as error:
            raise SettingsError(f"{path}: cannot be read ({error.strerror}).") from error
        lines = text.split("\n")
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = _without_surrogates(json.loads(line))
            except RecursionError:
                raise SettingsError(
                    f"{path}: line {number} is nested too deeply to be a game."
                ) from None
            except ValueError as error:
                if number < len(lines):
                    raise SettingsError(f"{path}: line {number} is not JSON ({error}).") from error
                notes.append(f"{path}: the last line is truncated and was skipped.")
                continue
            recordings.append(_read_recording(row, len(recordings), path, number))
    if not recordings:
        raise SettingsError(f"{', '.join(map(str, files))}: contains no games.")
    return recordings, notes


def _read_recording(row: Any, number: int, path: Path, line: int) -> Recording:
    """Return the game of one line.

    Args:
        row: The line as JSON.
        number: Number of the game among all games read.
        path: The file.
        line: Number of the line, from 1.
    """
    where = f"{path}: line {line}"
    try:
        episode = episode_from_json(row)
    except ServerError as error:
        raise SettingsError(f"{where} is not a game of this version: {error}") from error
    start = row.get("start")
    if start is not None and not isinstance(start, str):
        raise SettingsError(
            f"{where}: start={str(start)[:_MAX_START]!r}: a start must be a string, in Hanabi the "
            "deck 'R1 Y4 ...'."
        )
    names = row.get("names", [])
    if not _is_text_list(names) or len(names) not in (0, episode.num_players):
        raise SettingsError(
            f"{where}: names={str(names)[:_MAX_NAMES]}: give one string for each of "
            f"{episode.num_players} players."
        )
    return Recording(
        episode=episode,
        number=number,
        source=path.stem,
        start=start,
        names=tuple(names),
    )


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _without_surrogates(data: Any) -> Any:
    """Return JSON with lone surrogates replaced.

    JSON can escape half of a surrogate pair; such text can be neither checked nor displayed.
    """
    if isinstance(data, str):
        return encodable(data)
    if isinstance(data, list):
        # Lists of token ids and logprobs are long.
        if not data or isinstance(data[0], int | float):
            return data
        return [_without_surrogates(item) for item in data]
    if isinstance(data, dict):
        return {key: _without_surrogates(item) for key, item in data.items()}
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which games to show; all by default.

    Raises:
        SettingsError: Two choices are mutually exclusive.
    """

    worst: int | None = None
    """Number of games with the lowest returns, summed over players."""
    best: int | None = None
    """Number of games with the highest returns, summed over players."""
    illegal: bool = False
    """Only games with a reply that was illegal or not a move.

    With `player`, only that player's replies count.
    """
    player: int | None = None
    """Show only turns of this seat."""
    game: int | None = None
    """Only the game with this number."""

    def __post_init__(self) -> None:
        """Reject choices that are mutually exclusive."""
        choices = {"worst": self.worst, "best": self.best, "game": self.game}
        options = []
        for name, value in choices.items():
            if value is not None:
                options.append(f"--{name}")
        if len(options) > 1:
            raise SettingsError(f"{' and '.join(options)}: choose one of them.")
        for name in ("worst", "best"):
            count = choices[name]
            if count is not None and count < 1:
                raise SettingsError(f"--{name} {count}: give a number of games, at least 1.")

    @property
    def is_everything(self) -> bool:
        """True if all games are selected."""
        choices = (self.worst, self.best, self.game)
        return choices == (None, None, None) and not self.illegal

    def apply(self, recordings: Sequence[Recording]) -> list[Recording]:
        """Return the chosen games: by returns for `worst` and `best`, else in the file's order.

        Raises:
            SettingsError: There is no such game, or no game with such a player.
        """
        chosen = list(recordings)
        if self.game is not None:
            chosen = [recording for recording in chosen if recording.number == self.game]
            if not chosen:
                raise SettingsError(
                    f"--game {self.game}: no such game; there are games 0 to {len(recordings) - 1}."
                )
        if self.player is not None and not _has_player(chosen, self.player):
            raise SettingsError(
                f"--player {player_name(self.player)}: no game here has that many players."
            )
        if self.illegal:
            player = self.player
            chosen = [recording for recording in chosen if num_bad_replies(recording, player)]
        if self.worst is not None:
            return sorted(chosen, key=_total_return)[: self.worst]
        if self.best is not None:
            return sorted(chosen, key=_total_return, reverse=True)[: self.best]
        return chosen


def _has_player(recordings: Sequence[Recording], player: int) -> bool:
    return any(player < recording.episode.num_players for recording in recordings)


def num_bad_replies(recording: Recording, player: int | None = None) -> int:
    """Return the number of replies that were not a legal move, of one seat or all seats."""
    count = 0
    for turn in recording.episode.turns:
        is_counted = player is None or turn.player == player
        if is_counted and turn.kind is not ReplyKind.LEGAL:
            count += 1
    return count


def _total_return(recording: Recording) -> float:
    episode = recording.episode
    return sum(episode.reward(player) for player in range(episode.num_players))


def spread(recordings: Sequence[Recording], number: int) -> list[Recording]:
    """Return `number` games, spread evenly from the worst to the best.

    Example:
        3 of the games that earned 0, 1, 1, 2 and 4 are those that earned 0, 1 and 4.
    """
    ranked = sorted(recordings, key=_total_return)
    if number == 0:
        return []
    if number == 1 or len(ranked) <= number:
        return ranked[-number:]
    last = len(ranked) - 1
    chosen = []
    for index in range(number):
        rank = round(index * last / (number - 1))
        chosen.append(ranked[rank])
    return chosen
