"""Problems in files: JSON lines, parquet, or a folder with a file for each split.

Each row has a question and an answer. If the answer contains `####`, only the text after the last
one counts, as in GSM8K. Files in a folder are named as in data sets on the Hugging Face Hub:

    train.jsonl, test.jsonl
    train-00000-of-00001.parquet, test-00000-of-00001.parquet

and optionally `validation`. These functions open the path that they are given, so a path from
another program's request must never reach them (see `envs.access`).
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hanabi_grpo.envs.workflows.answers import normalize
from hanabi_grpo.errors import SettingsError, shown
from hanabi_grpo.texts import encodable

JSON_LINES = ".jsonl"
PARQUET = ".parquet"
FILE_ENDINGS = (JSON_LINES, PARQUET)
MAX_FILE_BYTES = 256 << 20
"""Maximum size of a problem file; GSM8K has 4 MB."""
_MAX_UNPACKED_BYTES = 2 << 30
"""Maximum unpacked size of a parquet file."""
TRAIN = "train"
VALIDATION = "validation"
TEST = "test"
_SPLIT_FILE = re.compile(
    rf"(?P<split>{TRAIN}|{VALIDATION}|{TEST})"
    r"(?:-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5}))?"
    r"\.(?P<kind>jsonl|parquet)",
    re.ASCII,
)
_WANTED_FILES = "train.jsonl and test.jsonl (or .parquet, or parts of it: train-00000-of-00002…)"
_GSM8K_MARK = "####"
"""Marks the answer at the end of a solution in GSM8K."""
_COLUMNS = ("question", "answer")
_MAX_LISTED = 12
"""Maximum number of names listed in a message."""


class Row(NamedTuple):
    """One question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFile:
    """Content of one file."""

    rows: tuple[Row, ...]
    """Rows without duplicates."""
    digest: str
    """Digest of the content, in hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFolder:
    """Content of a folder."""

    rows: Mapping[str, tuple[Row, ...]]
    """Rows by split: `TRAIN`, `TEST`, and `VALIDATION` if the file exists. No question is in two
    splits."""
    num_left_out: int
    """Number of questions left out of `TRAIN` or `VALIDATION` because a later split has them."""
    digest: str
    """Digest of all files, in hex."""


def read_problem_file(name: str) -> ProblemFile:
    """Read one file.

    Args:
        name: Path of the file, ending in one of `FILE_ENDINGS`.

    Raises:
        SettingsError: The file cannot be read, or a row is invalid.
    """
    content = _read_bytes(name)
    rows = _unique_rows(_numbered_rows(name, content))
    return ProblemFile(rows=rows, digest=hashlib.sha256(content).hexdigest())


def read_problem_folder(name: str) -> ProblemFolder:
    """Read a folder with one file per split, whole or in parts.

    Raises:
        SettingsError: A split has no file or several kinds of files, or a part or file is bad.
    """
    files = _split_files(name)
    digest = hashlib.sha256()
    by_split: dict[str, tuple[Row, ...]] = {}
    for split, paths in files.items():
        numbered: list[tuple[str, Row]] = []
        for path in paths:
            content = _read_bytes(path)
            numbered += _numbered_rows(path, content)
            digest.update(f"{split} {hashlib.sha256(content).hexdigest()}\n".encode())
        by_split[split] = _unique_rows(numbered)
    rows: dict[str, tuple[Row, ...]] = {}
    taken: set[str] = set()
    num_left_out = 0
    for split in (TEST, VALIDATION, TRAIN):
        if split not in by_split:
            continue
        kept = tuple(row for row in by_split[split] if _key(row.question) not in taken)
        num_left_out += len(by_split[split]) - len(kept)
        if not kept:
            raise SettingsError(
                f"HANABI_PROBLEMS={name}: {split} has no question"
                f"{' that is not in another file' if by_split[split] else ''}; add more questions."
            )
        taken |= {_key(row.question) for row in kept}
        rows[split] = kept
    return ProblemFolder(rows=rows, num_left_out=num_left_out, digest=digest.hexdigest())


def _key(question: str) -> str:
    """Return a question normalized for splitting: whitespace does not matter."""
    return " ".join(question.split())


def _split_files(name: str) -> dict[str, list[str]]:
    """Return the paths of each split's files, ordered by part."""
    try:
        entries = sorted(os.listdir(name))
    except OSError as error:
        raise SettingsError(
            f"HANABI_PROBLEMS={shown(name)}: cannot be listed ({error.strerror}); give a folder "
            f"with {_WANTED_FILES}."
        ) from error
    matches: dict[str, list[re.Match[str]]] = {}
    for entry in entries:
        match = _SPLIT_FILE.fullmatch(entry)
        if match is not None:
            matches.setdefault(match["split"], []).append(match)
    absent = [split for split in (TRAIN, TEST) if split not in matches]
    if absent:
        there = ", ".join(entries[:_MAX_LISTED]) or "nothing"
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: has no {' and no '.join(absent)}; it contains {there}. Give "
            f"a folder with {_WANTED_FILES}."
        )
    for split, parts in matches.items():
        _check_parts(name, split, parts)
    return {
        split: [os.path.join(name, part.string) for part in parts]
        for split, parts in matches.items()
    }


def _check_parts(name: str, split: str, parts: list[re.Match[str]]) -> None:
    """Raise an error for several files of one split that are not parts, or for missing parts."""
    names = [part.string for part in parts]
    kinds = {(part["kind"], part["count"]) for part in parts}
    if len(kinds) > 1:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: {split} exists as {' and as '.join(names[:_MAX_LISTED])}; "
            "keep only one."
        )
    [(_, count)] = kinds
    if count is None:
        return
    numbers = {int(part["number"]) for part in parts}
    missing = sorted(set(range(int(count))) - numbers)
    if missing or len(numbers) != int(count):
        which = f"part {missing[0]:05d}" if missing else "a number below the count"
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: {split} has {len(names)} of {int(count)} parts, {which} is "
            "missing; copy all parts."
        )


def _numbered_rows(path: str, content: bytes) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a file, each with its location for error messages."""
    if path.endswith(PARQUET):
        return _parquet_rows(path, content)
    return _json_rows(path, content)


def _json_rows(path: str, content: bytes) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"HANABI_PROBLEMS={path}, line {number}"
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SettingsError(f"{where}: not JSON ({error!s:.80}).") from error
        fields = data if isinstance(data, dict) else {}
        yield where, _row(fields, where, 'each line needs {"question": …, "answer": …}')


def _parquet_rows(path: str, content: bytes) -> Iterator[tuple[str, Row]]:
    # Only needed here, and slow to import.
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(content))
        names = file.schema_arrow.names
        groups = range(file.metadata.num_row_groups)
        size = sum(file.metadata.row_group(group).total_byte_size for group in groups)
    except (pyarrow.ArrowException, OSError) as error:
        raise SettingsError(f"HANABI_PROBLEMS={path}: not parquet ({error!s:.80}).") from error
    absent = [column for column in _COLUMNS if column not in names]
    if absent:
        raise SettingsError(
            f"HANABI_PROBLEMS={path}: has no column {' and no '.join(absent)}; its columns are "
            f"{', '.join(names[:_MAX_LISTED]) or 'none'}. Name them question and answer."
        )
    if size > _MAX_UNPACKED_BYTES:
        raise SettingsError(
            f"HANABI_PROBLEMS={path}: unpacks to {size} bytes; the maximum is "
            f"{_MAX_UNPACKED_BYTES}. Remove some problems."
        )
    try:
        table = file.read(columns=list(_COLUMNS), use_threads=False)
        columns = [table.column(column).to_pylist() for column in _COLUMNS]
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"HANABI_PROBLEMS={path}: cannot be unpacked ({error!s:.80})."
        ) from error
    for number, (question, answer) in enumerate(zip(*columns, strict=True), 1):
        where = f"HANABI_PROBLEMS={path}, row {number}"
        fields = {"question": question, "answer": answer}
        yield where, _row(fields, where, "each row needs both")


def _row(fields: Mapping[str, Any], where: str, wanted: str) -> Row:
    """Return the question and the answer of one row.

    Args:
        fields: Content of the row.
        where: File and row, for error messages.
        wanted: What a row needs, for error messages.

    Raises:
        SettingsError: The row lacks a question or an answer.
    """
    question = _text(fields.get("question"))
    answer = _text(fields.get("answer")).rpartition(_GSM8K_MARK)[2].strip()
    if not question or not answer:
        missing = "answer" if question else "question"
        raise SettingsError(f'{where}: no "{missing}"; {wanted}.')
    return Row(question, answer)


def _text(value: Any) -> str:
    """Return a value as text that a tokenizer accepts; JSON may contain half of an emoji."""
    return "" if value is None else encodable(str(value)).strip()


def _unique_rows(numbered: Iterator[tuple[str, Row]] | list[tuple[str, Row]]) -> tuple[Row, ...]:
    """Return the distinct questions; raise an error for a question with two answers."""
    rows: dict[str, Row] = {}
    places: dict[str, str] = {}
    for where, row in numbered:
        key = _key(row.question)
        if key not in rows:
            rows[key] = row
            places[key] = where.rpartition(", ")[2]
        elif normalize(rows[key].answer) != normalize(row.answer):
            raise SettingsError(
                f"{where}: same question as {places[key]} but a different answer; keep only one."
            )
    return tuple(rows.values())


def _read_bytes(name: str) -> bytes:
    """Return the content of a regular file; reading a pipe or device might never end."""
    if "\0" in name:
        raise SettingsError(f"HANABI_PROBLEMS={shown(name)}: a file name must not contain NUL.")
    try:
        # O_NONBLOCK: opening a pipe would wait for its other end.
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_regular(name, os.fstat(descriptor))
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                # Limited, because the file may grow in the meantime.
                return file.read(MAX_FILE_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: cannot be read ({error.strerror})."
        ) from error


def _check_regular(name: str, status: os.stat_result) -> None:
    """Raise a SettingsError if the file is not a regular file, or is too large."""
    if not stat.S_ISREG(status.st_mode):
        kind = "parquet" if name.endswith(PARQUET) else "JSON lines"
        raise SettingsError(f"HANABI_PROBLEMS={name}: not a regular file; give a file of {kind}.")
    if status.st_size > MAX_FILE_BYTES:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: has {status.st_size} bytes; the maximum is {MAX_FILE_BYTES}. "
            "Remove some problems."
        )


def is_problem_folder(name: str) -> bool:
    """Return whether a value of HANABI_PROBLEMS refers to a folder: it is one, or has a slash."""
    return "\0" not in name and ("/" in name or Path(name).is_dir())
