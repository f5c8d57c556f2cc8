"""What safetensors headers tell about a model folder: sizes without loading a tensor, and whether files are whole."""

import json
import math
import struct
from pathlib import Path
from typing import Any

from hanabi_grpo.server.adapter_files import linear_shapes

_MAX_HEADER = 100 << 20


def read_config(folder: Path) -> dict[str, Any]:
    """Return a model's config.json."""
    return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))


def broken_weights(folder: Path) -> list[str]:
    """Return what is wrong with the weights of a folder, e.g. ["model.safetensors: 12 of 2.5e+06 bytes are there"]."""
    problems = []
    paths = sorted(folder.glob("*.safetensors"))
    for path in paths:
        header = _header(path)
        if header is None:
            problems.append(f"{path.name}: not a safetensors file (a pointer of git-lfs, or an interrupted download?)")
            continue
        wanted = header[0] + max((entry["data_offsets"][1] for entry in header[1].values()), default=0)
        if path.stat().st_size < wanted:
            problems.append(f"{path.name}: {path.stat().st_size} of {wanted} bytes are there")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
        problems += [f"{name}: missing" for name in sorted(shards - {path.name for path in paths})]
    return problems


def num_parameters(folder: Path) -> int:
    """Return the number of parameters of a model folder's weights."""
    return sum(
        math.prod(entry["shape"])
        for path in folder.glob("*.safetensors")
        if (header := _header(path))
        for entry in header[1].values()
    )


def adapter_parameters(folder: Path, rank: int) -> int:
    """Return the number of parameters of one adapter."""
    return sum(rank * (num_out + num_in) for num_out, num_in in linear_shapes(folder).values())


def _header(path: Path) -> tuple[int, dict[str, Any]] | None:
    """Return (bytes before the tensors, tensors by name); None for another kind of file."""
    with path.open("rb") as file:
        start = file.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= size <= _MAX_HEADER:
            return None
        try:
            tensors = dict(json.loads(file.read(size)))
        except (ValueError, TypeError):
            return None
    tensors.pop("__metadata__", None)
    return 8 + size, tensors
