"""Base models on disk, and their fingerprint.

Sampler and trainer compare fingerprints to make sure that they have the same weights.
"""

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_bytes
from hanabi_grpo.runs.manifest import file_sha256
from hanabi_grpo.runs.run_folder import write_json_atomic
from hanabi_grpo.settings.base_models import names_several
from hanabi_grpo.settings.defaults import TINY_MODEL, is_local_model

logger = logging.getLogger(__name__)

_LARGE_BYTES = 64 << 20
"""Size above which a file's digest is cached: smaller files are read quickly."""
_NOT_OF_THE_ARCHITECTURE = ("_name_or_path", "transformers_version")
"""Keys of config.json that do not change what the weights mean."""
_FINGERPRINT_DIGITS = 16
_CONFIG = "config.json"
_WEIGHTS = "*.safetensors"
"""Files of a model's weights."""
_VOCABULARIES = ("tokenizer.json", "tekken.json", "vocab*", "*.model", "*.tiktoken")
"""Files that tokenizers keep their vocabulary in; each tokenizer has one or two of them."""
_DOWNLOADED = ["*.json", _WEIGHTS, "*.txt", "*.jinja", "*.model"]
"""Files that are needed from a hub model."""


def has_model(folder: Path) -> bool:
    """Return whether a folder has a model's config and weights."""
    return (folder / _CONFIG).is_file() and any(folder.glob(_WEIGHTS))


def tokenizer_problem(folder: Path) -> str:
    """Return why a folder has no usable tokenizer, and what to do; empty if it has one.

    A copy or a download that was cut short leaves a JSON file that cannot be parsed.

    Example:
        "its tokenizer.json cannot be read (Expecting ',' delimiter: line 1 column 20 (char 19))…"
    """
    if not any(any(folder.glob(pattern)) for pattern in _VOCABULARIES):
        return (
            "no tokenizer there (no tokenizer.json or other file with its vocabulary). Copy the "
            "tokenizer's files of the model into that folder, or choose another MODEL."
        )
    for path in sorted(folder.glob("tokenizer*.json")):
        try:
            json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            return (
                f"its {path.name} cannot be read ({error}). Copy or download the model again, or "
                "choose another MODEL."
            )
    return ""


def model_fingerprint(folder: Path) -> str:
    """Return a short sha256 over the architecture and the weights of a model folder.

    Every byte counts. Digests of files over 64 MiB are cached in the user's cache folder until the
    inode, size or modification time changes, so that only the first start after a download reads
    gigabytes.

    Raises:
        SettingsError: There is no model in the folder.
    """
    architecture = _read_config(folder)
    for key in _NOT_OF_THE_ARCHITECTURE:
        architecture.pop(key, None)
    architecture_text = json.dumps(architecture, sort_keys=True)
    digest = hashlib.sha256(architecture_text.encode())
    for path in sorted(folder.glob(_WEIGHTS)):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size};".encode())
        if size <= _LARGE_BYTES:
            digest.update(path.read_bytes())
        else:
            digest.update(_kept_digest(path).encode())
    return digest.hexdigest()[:_FINGERPRINT_DIGITS]


def resolve_model(name: str, make: str = ".venv/bin/hanabi-grpo tiny-model") -> Path:
    """Return the local folder of MODEL; a model of the hub is downloaded.

    Args:
        name: A folder, or the id of a model on the hub.
        make: The command for a tiny model, for the error.

    Raises:
        SettingsError: It is neither a folder nor a hub id that can be reached from here, a folder
            without config.json, weights or tokenizer, a model that brings code, or the models of
            several players (`settings.base_models`).
    """
    if names_several(name):
        raise SettingsError(
            f"MODEL={name}: names a base model for each player, but one is needed here; set MODEL "
            "to one of them."
        )
    folder = Path(name)
    if folder.is_dir():
        return _checked(folder.resolve())
    if is_local_model(name):
        where = "" if folder.is_absolute() else f" in {Path.cwd()}"
        shipped = ""
        if name == TINY_MODEL:
            shipped = " It is shipped with the repository; run commands in its root folder."
        raise SettingsError(
            f"MODEL={name}: no such folder{where}.{shipped} Make the tiny model with: {make} "
            f"--out {name}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        folder = Path(snapshot_download(name, allow_patterns=_DOWNLOADED))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise SettingsError(
            f"MODEL={name}: neither a local folder nor a hub model that can be reached "
            f"({type(error).__name__}: {error}). Download it first and point MODEL at the folder."
        ) from error
    return _checked(folder)


def _kept_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes, from the cache if the file has not changed."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    cache = caches / "hanabi-grpo" / "fingerprints.json"
    status = path.stat()
    # Copies and archives can restore the modification time, but not the last part.
    parts = (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
    name = ":".join(str(part) for part in parts)
    try:
        digests = dict(json.loads(cache.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        digests = {}
    if name not in digests:
        logger.info(
            "fingerprint: reading %s, %.1f GB; cached until it changes", path, status.st_size / 1e9
        )
        digests[name] = file_sha256(path)
        try:
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(cache, digests)
        except OSError as error:
            logger.info(
                "fingerprint: not cached (%s), so the next start reads the weights again", error
            )
    return str(digests[name])


def _checked(folder: Path) -> Path:
    """Return the folder of a model, or refuse a model that cannot be loaded or brings its own code.

    ms-swift loads configurations with trust_remote_code on, so it must never see such a folder.
    """
    if "auto_map" in _read_config(folder):
        raise SettingsError(
            f"MODEL={folder}: its config.json names its own Python code (auto_map), which is never "
            "run here. Choose a model whose architecture transformers and vLLM support."
        )
    problem = tokenizer_problem(folder)
    if problem:
        raise SettingsError(f"MODEL={folder}: {problem}")
    return folder


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a model folder.

    Raises:
        SettingsError: There is no model in the folder, or the file is damaged.
    """
    if not has_model(folder):
        raise SettingsError(
            f"MODEL={folder}: no config.json with *.safetensors weights there. Point MODEL at a "
            "model folder, or make the tiny one: .venv/bin/hanabi-grpo tiny-model"
        )
    try:
        config = json.loads(read_bytes(folder / _CONFIG, MAX_DOCUMENT_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(
            f"MODEL={folder}: its config.json cannot be read ({error}). Restore it, or choose "
            "another MODEL."
        ) from error
    if not isinstance(config, dict):
        raise SettingsError(
            f"MODEL={folder}: its config.json does not hold an object. Restore it, or choose "
            "another MODEL."
        )
    return config
