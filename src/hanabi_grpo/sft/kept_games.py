"""The games that scripts played for a warm start, saved for a resume.

A search may need seconds per game, and thousands of games are needed. The encoded games are
therefore saved every minute, and an interrupted warm start continues after the last saved game.
Recorded games are not saved, but read again.

- `games/000000.npz`, …: the samples of several games each, in order.
- `games/index.json`: what the games depend on, and the content of each file. A file that is not
  listed is left over from an interrupted write.
"""

import io
import json
import shutil
import time
import zipfile
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hanabi_grpo.errors import RunFolderError
from hanabi_grpo.files import (
    MAX_DOCUMENT_BYTES,
    MAX_GAMES_BYTES,
    read_bytes,
    read_text,
    write_text_atomic,
)
from hanabi_grpo.runs.run_folder import make_run_folder, write_json_atomic
from hanabi_grpo.sft.resume_key import check_same_work
from hanabi_grpo.sft.samples import Sample, TooFewGamesError

FOLDER = "games"
"""Name of the folder in the result folder."""
_INDEX = "index.json"
_SECONDS_BETWEEN_FILES = 60.0
_NO_QUESTION = -1
"""Value that represents a `question_start` of None."""
_DAMAGES = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)
"""Exceptions from reading a damaged file of the folder."""


@dataclass(slots=True, kw_only=True)
class KeptGames:
    """The games of one warm start; the newest ones may be in memory only."""

    out: Path
    """The result folder."""
    key: Mapping[str, Any]
    """Everything that the samples depend on, as read back from JSON."""
    files: list[dict[str, Any]] = field(default_factory=list)
    """The rows of the index, one for each file: its name and its number of games."""
    counts: Counter[str] = field(default_factory=Counter)
    """`Encoder.counts` of all games in files."""
    samples: list[Sample] = field(default_factory=list)
    """Samples of all games, saved and added."""
    _first_unsaved: int = 0
    """Index of the first of `samples` that is in no file."""
    _num_unsaved: int = 0
    """Number of games that are in no file."""
    _saved_at: float = 0.0
    """Monotonic time of the last write, in seconds."""

    @classmethod
    def open(cls, out: Path, key: Mapping[str, Any]) -> "KeptGames":
        """Return the games in the folder; empty if the folder does not exist.

        Args:
            out: The result folder.
            key: See `key`.

        Raises:
            SettingsError: The games in the folder belong to a different warm start.
            RunFolderError: The games cannot be read.
        """
        # As in the file: lists instead of tuples.
        kept = cls(out=out, key=json.loads(json.dumps(key)), _saved_at=time.monotonic())
        try:
            index = kept._read_index()
            if index is None:
                return kept
            saved_key = index["key"]
        except _DAMAGES as error:
            raise kept._damaged(error) from error
        # Checked before the games are read, because there may be many.
        check_same_work(saved_key, kept.key, out)
        try:
            for row in index["files"]:
                kept.samples += _unpack(read_bytes(kept.folder / row["name"], MAX_GAMES_BYTES))
                kept.files.append(row)
            kept.counts.update(index["counts"])
        except _DAMAGES as error:
            raise kept._damaged(error) from error
        kept._first_unsaved = len(kept.samples)
        return kept

    def _read_index(self) -> dict[str, Any] | None:
        path = self.folder / _INDEX
        if not path.exists():
            return None
        index: dict[str, Any] = json.loads(read_text(path, MAX_DOCUMENT_BYTES))
        return index

    def _damaged(self, error: Exception) -> RunFolderError:
        return RunFolderError(
            f"{self.folder}: the games of the interrupted warm start cannot be read ({error}). "
            "Remove this folder and run the same command with --resume to play them again."
        )

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.out / FOLDER

    @property
    def num_games(self) -> int:
        """Number of games, saved and added."""
        return sum(row["games"] for row in self.files) + self._num_unsaved

    def add(self, samples: Sequence[Sample], counts: Mapping[str, int]) -> None:
        """Add the next game; once a minute, write the games that are in no file yet.

        Args:
            samples: The samples of the game.
            counts: `Encoder.counts` of all games so far.

        Raises:
            RunFolderError: A file cannot be written.
        """
        self.samples += samples
        self._num_unsaved += 1
        if time.monotonic() - self._saved_at >= _SECONDS_BETWEEN_FILES:
            self.save(counts)

    def save(self, counts: Mapping[str, int]) -> None:
        """Write the games that are in no file yet.

        Args:
            counts: `Encoder.counts` of all games so far.

        Raises:
            RunFolderError: The file cannot be written.
        """
        if not self._num_unsaved:
            return
        name = f"{len(self.files):06d}.npz"
        row = {"name": name, "games": self._num_unsaved}
        make_run_folder(self.folder, option="--out")
        try:
            write_text_atomic(self.folder / name, _pack(self.samples[self._first_unsaved :]))
            index = {"key": self.key, "files": [*self.files, row], "counts": counts}
            write_json_atomic(self.folder / _INDEX, index)
        except OSError as error:
            raise RunFolderError(
                f"{self.folder}: cannot be written ({error.strerror or error}). Free some space, "
                "then run the same command with --resume."
            ) from error
        self.files.append(row)
        self.counts = Counter(counts)
        self._first_unsaved = len(self.samples)
        self._num_unsaved = 0
        self._saved_at = time.monotonic()


@contextmanager
def removing_refused_games(out: Path) -> Iterator[None]:
    """Remove the saved games of a warm start whose games are refused as not enough to learn from.

    A corrected command plays other games, and finds its folder empty.

    Args:
        out: The result folder.
    """
    try:
        yield
    except TooFewGamesError:
        shutil.rmtree(out / FOLDER, ignore_errors=True)
        raise


def _pack(samples: Sequence[Sample]) -> bytes:
    """Return samples as the bytes of a compressed npz file."""
    ids = array("i")
    marks = array("b")
    questions = []
    for sample in samples:
        ids.extend(sample.ids)
        marks.extend(sample.is_reply)
        is_move = sample.question_start is None
        questions.append(_NO_QUESTION if is_move else sample.question_start)
    content = io.BytesIO()
    np.savez_compressed(
        content,
        player=np.array([sample.player for sample in samples], dtype=np.int32),
        start=np.array([sample.start for sample in samples], dtype=np.uint64),
        question_start=np.array(questions, dtype=np.int32),
        num_tokens=np.array([len(sample.ids) for sample in samples], dtype=np.int32),
        ids=np.frombuffer(ids, dtype=np.int32),
        is_reply=np.frombuffer(marks, dtype=np.int8),
    )
    return content.getvalue()


def _unpack(content: bytes) -> list[Sample]:
    """Return the samples of `_pack`.

    Raises:
        ValueError: The content is not such a file; `KeyError`, `EOFError` and `zipfile.BadZipFile`
            have the same meaning.
    """
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        columns = {name: file[name] for name in file.files}
    all_ids = array("i", columns["ids"].tobytes())
    all_marks = array("b", columns["is_reply"].tobytes())
    samples = []
    first = 0
    rows = zip(
        columns["player"].tolist(),
        columns["start"].tolist(),
        columns["question_start"].tolist(),
        columns["num_tokens"].tolist(),
        strict=True,
    )
    for player, start, question_start, num_tokens in rows:
        end = first + num_tokens
        sample = Sample(
            player=player,
            start=start,
            ids=all_ids[first:end],
            is_reply=all_marks[first:end],
            question_start=None if question_start == _NO_QUESTION else question_start,
        )
        samples.append(sample)
        first = end
    return samples
