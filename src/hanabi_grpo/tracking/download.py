"""Artifacts that are fetched from W&B."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.run_folder import sync_folder
from hanabi_grpo.runs.saved_adapters import read_adapters
from hanabi_grpo.settings.refs import WandbPlace

TIMEOUT_SECONDS = 15
"""Until a service that does not answer is given up; WANDB_HTTP_TIMEOUT says otherwise."""
_KIND = "model"


class NotHad(Exception):
    """W&B did not give the artifact: no key, no answer, or no such artifact. The message is a clause without a dot."""


def downloaded(wanted: WandbPlace, root: Path) -> Path | None:
    """Return the folder of a version that was downloaded before; None for other aliases, which move."""
    folder = _folder(wanted, root) / wanted.alias
    return folder if wanted.is_version and folder.is_dir() else None


def download_artifact(wanted: WandbPlace, root: Path) -> Path:
    """Download an artifact into `root/entity/project/name/vN`; a version that is there is not fetched again.

    Args:
        wanted: What was typed.
        root: Of all downloads of this kind.

    Raises:
        NotHad: See there.
        SettingsError: It is no artifact of adapters, or cannot be written.
    """
    import wandb

    # Crash reports to W&B's maker are of no use here.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        artifact = wandb.Api(timeout=_timeout()).artifact(wanted.path)
        if artifact.type != _KIND:
            raise SettingsError(f"wandb:{wanted.path}: is of type {artifact.type!r}; adapters are of type {_KIND!r}.")
        entries = artifact.manifest.entries.values()
        if any(entry.ref or not _is_inside(str(entry.path)) for entry in entries):
            raise SettingsError(f"wandb:{wanted.path}: names files outside of it, which are not fetched.")
        found = replace(wanted, entity=wanted.entity or artifact.entity, alias=artifact.version)
        target = _folder(found, root) / found.alias
        return target if target.is_dir() else _download(artifact, target)
    except SettingsError:
        raise
    except (wandb.errors.Error, ValueError, OSError) as error:
        lines = str(error).splitlines()
        raise NotHad(f"W&B says: {lines[0] if lines else type(error).__name__}") from error
    finally:
        # W&B's own process would outlive this command's use of it.
        wandb.teardown()


def downloaded_versions(wanted: WandbPlace, root: Path) -> list[str]:
    """Return the versions of this name that were downloaded before, oldest first."""
    found = [path.name for path in _folder(wanted, root).glob("v*") if path.name[1:].isdecimal()]
    return sorted(found, key=lambda name: int(name[1:]))


def _folder(wanted: WandbPlace, root: Path) -> Path:
    """Return where all versions of a name are kept."""
    return root / (wanted.entity or "-") / wanted.project / wanted.name


def _download(artifact: Any, target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.", suffix=".partial") as partial:
            whole = Path(partial) / target.name
            artifact.download(root=str(whole), skip_cache=True)
            read_adapters(whole)
            try:
                os.rename(whole, target)
            except OSError:
                # Another command was faster; a version is the same whoever fetches it.
                if not target.is_dir():
                    raise
            sync_folder(target.parent)
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(f"{target}: was not downloaded ({reason}); nothing is left of it.") from error
    return target


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _timeout() -> int:
    try:
        return max(1, int(os.environ.get("WANDB_HTTP_TIMEOUT", TIMEOUT_SECONDS)))
    except ValueError:
        return TIMEOUT_SECONDS
