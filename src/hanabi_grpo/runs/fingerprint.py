"""A fingerprint of base-model weights, so that sampler and trainer can tell that they hold the same ones."""

import hashlib
import json
import logging
import os
import time
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.manifest import file_sha256
from hanabi_grpo.runs.run_folder import write_json_atomic
from hanabi_grpo.runs.tiny_manifest import damage_of, way_back
from hanabi_grpo.settings.defaults import TINY_MODEL, is_local_model

logger = logging.getLogger(__name__)

_LARGE = 64 << 20
"""Bytes above which a file's digest is kept: reading a smaller one takes a moment."""
_KEPT = 256
"""Digests in the cache, newest last."""


def model_fingerprint(folder: Path) -> str:
    """Return a short sha256 over the architecture and the weights of a model folder.

    Every byte counts. Digests of files over 64 MiB are kept in the user's cache folder until inode, size or a time of
    change differs, so that only the first start after a download reads gigabytes for it.

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
        digest.update(path.read_bytes() if size <= _LARGE else _kept_digest(path).encode())
    return digest.hexdigest()[:16]


def _kept_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes, read only if it is not the file that was read before."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = Path(home) / "hanabi-grpo" / "fingerprints.json"
    known = _read_cache(cache)
    name = _version_of(path)
    if name not in known:
        start = time.monotonic()
        sha256 = file_sha256(path)
        seconds, size = time.monotonic() - start, path.stat().st_size
        logger.info("fingerprint: read %s, %.1f GB in %.1f s; kept until it changes", path, size / 1e9, seconds)
        if _version_of(path) != name:
            return sha256  # It changed meanwhile: a digest of neither content.
        # Read again: another process may have added its own.
        known = dict(list({**_read_cache(cache), name: sha256}.items())[-_KEPT:])
        try:
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(cache, known)
        except OSError as error:
            logger.info("fingerprint: not kept (%s), so the next start reads the weights again", error)
    return known[name]


def _version_of(path: Path) -> str:
    found = path.stat()
    # The last one cannot be set back, as a copy or an archive sets back the time of change.
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def _read_cache(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def resolve_model(name: str, make: str = ".venv/bin/hanabi-grpo tiny-model") -> Path:
    """Return the local folder of a model, downloading a hub id when it is not a folder.

    Args:
        name: MODEL.
        make: Command that makes a tiny model of the game, for the error.

    Raises:
        SettingsError: Neither a folder nor a hub id that can be had from here, a model that brings code, or a tiny
            model whose files are not those that its manifest names.
    """
    folder = Path(name)
    if folder.is_dir():
        if damage := damage_of(folder):
            raise SettingsError(f"MODEL={name}: {damage}. Get it back with: {way_back(folder, make)}")
        return _without_code(folder.resolve())
    if is_local_model(name):
        where = "" if folder.is_absolute() else f" in {Path.cwd()}"
        shipped = " It is shipped with the repository, whose root folder is where commands run." * (name == TINY_MODEL)
        raise SettingsError(
            f"MODEL={name}: no such folder{where}.{shipped} Make the tiny model with: {make} --out {name}"
        )
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
