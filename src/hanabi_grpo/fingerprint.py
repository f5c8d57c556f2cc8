"""A fingerprint of base-model weights, so that sampler and trainer can tell that they hold the same ones."""

import hashlib
import json
from pathlib import Path

from hanabi_grpo.errors import SettingsError

_BLOCK = 1 << 20
_STRIDE = 64 << 20


def model_fingerprint(folder: Path) -> str:
    """Return a short sha256 over the architecture and the weights of a model folder.

    Small files are read whole; of larger ones (over 64 MiB) one MiB in every 64 is read, so that a
    4 B-parameter model takes a fraction of a second and any retrained or re-quantised copy still differs.

    Raises:
        SettingsError: The folder holds no config.json or no safetensors weights.
    """
    config, weights = folder / "config.json", sorted(folder.glob("*.safetensors"))
    if not config.is_file() or not weights:
        raise SettingsError(
            f"MODEL={folder}: no config.json with *.safetensors weights there. Point MODEL at a model folder, "
            "or make the tiny one: .venv/bin/hanabi-grpo tiny-model"
        )
    architecture = json.loads(config.read_text())
    shape = {key: value for key, value in architecture.items() if key not in ("_name_or_path", "transformers_version")}
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True).encode())
    for path in weights:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size};".encode())
        with path.open("rb") as file:
            for start in range(0, size, _BLOCK if size <= _STRIDE else _STRIDE):
                file.seek(start)
                digest.update(file.read(_BLOCK))
    return digest.hexdigest()[:16]


def resolve_model(name: str, make: str = ".venv/bin/hanabi-grpo tiny-model") -> Path:
    """Return the local folder of a model, downloading a hub id when it is not a folder.

    Args:
        name: MODEL.
        make: Command that makes a tiny model of the game, for the error.

    Raises:
        SettingsError: Neither a folder nor a hub id that can be had from here, or a model that brings code.
    """
    folder = Path(name)
    if folder.is_dir():
        return _without_code(folder.resolve())
    if name.startswith((".", "/", "outputs/")):
        raise SettingsError(f"MODEL={name}: no such folder. Make the tiny model with: {make} --out {name}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        folder = Path(
            snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"])
        )
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise SettingsError(
            f"MODEL={name}: neither a local folder nor a hub model that can be reached "
            f"({type(error).__name__}: {error}). Download it first and point MODEL at the folder."
        ) from error
    return _without_code(folder)


def _without_code(folder: Path) -> Path:
    # ms-swift loads configurations with trust_remote_code on, so a folder that names code must not get that far.
    config = folder / "config.json"
    if config.is_file() and "auto_map" in json.loads(config.read_text()):
        raise SettingsError(
            f"MODEL={folder}: its config.json names Python code of its own (auto_map), which is not run here. "
            "Choose a model whose architecture transformers and vLLM know."
        )
    return folder
