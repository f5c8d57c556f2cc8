"""What an offline run holds, by W&B's own messages.

W&B 0.31 writes `.wandb` files and has no reader of them in Python. The file is a LevelDB log behind
a header of 7 bytes: blocks of 32 KiB, in them records of 4 bytes checksum, 2 bytes length, 1 byte
type (1 whole, 2 first, 3 middle, 4 last), little endian (leveldb/doc/log_format.md).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = 32768
"""Bytes of a block."""
HEADER = 7
"""Bytes of a record's header."""
FILE_HEADER = 7
"""Bytes before the first block's first record."""
WHOLE = 1
FIRST = 2
LAST = 4


@dataclass(frozen=True)
class LoggedArtifact:
    """One artifact of an offline run."""

    name: str
    kind: str
    aliases: tuple[str, ...]
    metadata: dict[str, Any]
    files: dict[str, Path]
    """Name in the artifact to the file that `wandb sync` will send."""


def records(path: Path) -> Iterator[Any]:
    """Yield the messages of a `.wandb` file."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    position = FILE_HEADER
    message = b""
    while position + HEADER <= len(data):
        left_in_block = BLOCK - position % BLOCK
        if left_in_block < HEADER:
            position += left_in_block
            continue
        length = int.from_bytes(data[position + 4 : position + 6], "little")
        kind = data[position + 6]
        start = position + HEADER
        if kind in (WHOLE, FIRST):
            message = b""
        message += data[start : start + length]
        position = start + length
        if kind in (WHOLE, LAST):
            yield Record.FromString(message)


def offline_records(run_folder: Path) -> list[Any]:
    """Return all messages of all offline runs of a run folder, oldest run first."""
    messages: list[Any] = []
    for path in sorted(run_folder.glob("wandb/offline-run-*/*.wandb")):
        messages += records(path)
    return messages


def artifacts(messages: list[Any]) -> list[LoggedArtifact]:
    """Return the artifacts that were logged, oldest first."""
    logged = []
    for message in messages:
        if message.HasField("artifact"):
            artifact = message.artifact
        elif message.request.HasField("log_artifact"):
            artifact = message.request.log_artifact.artifact
        else:
            continue
        logged.append(
            LoggedArtifact(
                name=artifact.name,
                kind=artifact.type,
                aliases=tuple(artifact.aliases),
                metadata=json.loads(artifact.metadata or "{}"),
                files={entry.path: Path(entry.local_path) for entry in artifact.manifest.contents},
            )
        )
    return logged


def history(messages: list[Any]) -> list[dict[str, Any]]:
    """Return the rows that were logged, oldest first."""
    rows = []
    for message in messages:
        if not message.HasField("history"):
            continue
        row = {}
        for item in message.history.item:
            name = item.key or "/".join(item.nested_key)
            row[name] = json.loads(item.value_json)
        rows.append(row)
    return rows
