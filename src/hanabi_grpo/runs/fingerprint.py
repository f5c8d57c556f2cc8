"""Base models on this disk: their fingerprint, by which sampler and trainer tell that they hold the
same weights.
"""

import hashlib
import json
import logging
import os
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.manifest import file_sha256
from hanabi_grpo.runs.run_folder import write_json_atomic
from hanabi_grpo.settings.defaults import TINY_MODEL, is_local_model

logger = logging.getLogger(__name__)

_LARGE = 64 << 20  # Bytes above which a file's digest is kept: reading a smaller one takes a moment


def model_fingerprint(folder: Path) -> str:
    """Return a short sha256 over the architecture and the weights of a model folder.

    Every byte counts. Digests of files over 64 MiB are kept in the user's cache folder until inode,
    size or a time of change differs, so that only the first start after a download reads gigabytes
    for it."""
    config, weights = folder / "config.json", sorted(folder.glob("*.safetensors"))
    if not config.is_file() or not weights:
        raise SettingsError(
            f"MODEL={folder}: no config.json with *.safetensors weights there. Point MODEL at a "
            "model folder, "
            "or make the tiny one: .venv/bin/hanabi-grpo tiny-model"
        )
    architecture = json.loads(config.read_text())
    shape = {
        key: value
        for key, value in architecture.items()
        if key not in ("_name_or_path", "transformers_version")
    }
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True).encode())
    for path in weights:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size};".encode())
        digest.update(path.read_bytes() if size <= _LARGE else _kept_digest(path).encode())
    return digest.hexdigest()[:16]


def _kept_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes, read only if it is not the file that was read before."""
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        / "hanabi-grpo"
        / "fingerprints.json"
    )
    found = path.stat()
    # The last one cannot be set back, as a copy or an archive sets back the time of change.
    name = f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
    try:
        known = dict(json.loads(cache.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        known = {}
    if name not in known:
        logger.info(
            "fingerprint: reading %s, %.1f GB; kept until it changes", path, found.st_size / 1e9
        )
        known[name] = file_sha256(path)
        try:
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(cache, known)
        except OSError as error:
            logger.info(
                "fingerprint: not kept (%s), so the next start reads the weights again", error
            )
    return str(known[name])


def resolve_model(name: str, make: str = ".venv/bin/hanabi-grpo tiny-model") -> Path:
    """Return the local folder of MODEL, downloading a hub id; `make` is the command for a tiny one,
    for the error.

    A SettingsError: neither a folder nor a hub id that can be had from here, or a model that brings
    code."""
    folder = Path(name)
    if folder.is_dir():
        return _without_code(folder.resolve())
    if is_local_model(name):
        where = "" if folder.is_absolute() else f" in {Path.cwd()}"
        shipped = " It is shipped with the repository, whose root folder is where commands run." * (
            name == TINY_MODEL
        )
        raise SettingsError(
            f"MODEL={name}: no such folder{where}.{shipped} Make the tiny model with: {make} "
            f"--out {name}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        folder = Path(
            snapshot_download(
                name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
            )
        )
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise SettingsError(
            f"MODEL={name}: neither a local folder nor a hub model that can be reached "
            f"({type(error).__name__}: {error}). Download it first and point MODEL at the folder."
        ) from error
    return _without_code(folder)


def _without_code(folder: Path) -> Path:
    # ms-swift loads configurations with trust_remote_code on, so a folder that names code must not
    # get that far.
    config = folder / "config.json"
    if config.is_file() and "auto_map" in json.loads(config.read_text()):
        raise SettingsError(
            f"MODEL={folder}: its config.json names Python code of its own (auto_map), which is "
            "not run here. "
            "Choose a model whose architecture transformers and vLLM know."
        )
    return folder
