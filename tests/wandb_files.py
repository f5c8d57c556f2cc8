"""What an offline run holds, by W&B's own messages. W&B 0.31 writes `.wandb` files and has no
reader of them in Python.

The file is a LevelDB log behind a header of 7 bytes: blocks of 32 KiB, in them records of 4 bytes
checksum, 2 bytes length, 1 byte type (1 whole, 2 first, 3 middle, 4 last), little endian
(leveldb/doc/log_format.md)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK, HEADER, FILE_HEADER = 32768, 7, 7
WHOLE, FIRST, LAST = 1, 2, 4


@dataclass(frozen=True)
class LoggedArtifact:
    name: str
    kind: str
    aliases: tuple[str, ...]
    metadata: dict[str, Any]
    files: dict[str, Path]
    """Name in the artifact to the file that `wandb sync` will send."""


def records(path: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    place, part = FILE_HEADER, b""
    while place + HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part = (b"" if kind in (WHOLE, FIRST) else part) + data[
            place + HEADER : place + HEADER + length
        ]
        place += HEADER + length
        if kind in (WHOLE, LAST):
            yield Record.FromString(part)


def offline_records(run_folder: Path) -> list[Any]:
    """Return all records of all offline runs of a run folder, oldest run first."""
    return [
        one
        for path in sorted(run_folder.glob("wandb/offline-run-*/*.wandb"))
        for one in records(path)
    ]


def artifacts(found: list[Any]) -> list[LoggedArtifact]:
    logged = []
    for record in found:
        if not record.request.HasField("log_artifact") and not record.HasField("artifact"):
            continue
        one = (
            record.artifact if record.HasField("artifact") else record.request.log_artifact.artifact
        )
        files = {entry.path: Path(entry.local_path) for entry in one.manifest.contents}
        metadata = json.loads(one.metadata or "{}")
        logged.append(LoggedArtifact(one.name, one.type, tuple(one.aliases), metadata, files))
    return logged


def history(found: list[Any]) -> list[dict[str, Any]]:
    rows = []
    for record in found:
        if record.HasField("history"):
            items = record.history.item
            rows.append(
                {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in items
                }
            )
    return rows
