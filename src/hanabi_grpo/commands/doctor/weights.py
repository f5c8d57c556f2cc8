"""What safetensors headers tell about a model folder: sizes without loading a tensor, and whether files are whole."""

import json
import math
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hanabi_grpo.server.adapter_files import linear_shapes


def read_config(folder: Path) -> dict[str, Any]:
    """Return a model's config.json."""
    return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))


def broken_weights(folder: Path) -> list[str]:
    """Return what is wrong with the weights of a folder, e.g. ["model.safetensors: not a whole safetensors file …"]."""
    problems = []
    paths = sorted(folder.glob("*.safetensors"))
    for path in paths:
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            why = "(a pointer of git-lfs, or an interrupted download?)"
            problems.append(f"{path.name}: not a whole safetensors file {why}: {error}")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
        problems += [f"{name}: missing" for name in sorted(shards - {path.name for path in paths})]
    return problems


def num_parameters(folder: Path) -> int:
    """Return the number of parameters of a model folder's weights."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return total


def adapter_parameters(folder: Path, rank: int) -> int:
    """Return the number of parameters of one adapter."""
    return sum(rank * (num_out + num_in) for num_out, num_in in linear_shapes(folder).values())
