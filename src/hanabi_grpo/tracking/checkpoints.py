"""Find the checkpoint of a reference: a folder, a run's best checkpoint, an artifact, or the hub.

Downloads are in `outputs/downloads/`: files from W&B, and links into the hub's cache.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.run_folder import new_folder, run_home
from hanabi_grpo.runs.saved_adapters import SavedAdapters, read_adapters
from hanabi_grpo.runs.validation import best_checkpoint
from hanabi_grpo.settings import Settings, load_settings
from hanabi_grpo.settings.refs import (
    BestPlace,
    CheckpointRef,
    HubPlace,
    Moving,
    Place,
    Ref,
    WandbPlace,
    is_remote,
    parse_checkpoint,
)
from hanabi_grpo.texts import visible
from hanabi_grpo.tracking.mirror import sync_line, unsent_folders
from hanabi_grpo.tracking.record import RecordedArtifact, find_recorded
from hanabi_grpo.tracking.wandb_run import hidden_secrets, time_limit

DOWNLOADS = Path("outputs/downloads")
"""Folder of downloads, relative to the working directory."""

_WANDB = DOWNLOADS / "wandb"
_HUB = DOWNLOADS / "hf"
_NO_ENTITY = "-"
"""Placeholder for an unnamed entity in the path of a download."""
_HUB_FILES = ("*.json", "*.md", "*adapter_model.safetensors", "episodes/*.jsonl")
"""Patterns of the files that are downloaded from a repository."""
_SHA_LENGTH = 12
"""Characters of the commit in the name of a link."""
_ARTIFACT_TYPE = "model"


def local_ref(ref: Ref) -> Ref:
    """Return a reference with a local folder instead of a remote place.

    Raises what `fetch` raises.
    """
    if isinstance(ref, CheckpointRef):
        return replace(ref, place=local_folder(ref.place))
    return ref


def local_folder(place: Place) -> Path:
    """Return the local folder of a place; raises what `fetch` raises."""
    if isinstance(place, Path):
        return place
    folder, _ = fetch(place)
    return folder


def fetch(place: Moving) -> tuple[Path, SavedAdapters]:
    """Return a place's folder, downloading it if necessary, and its adapters.

    Raises:
        SettingsError: The place does not exist, or its adapters are incomplete.
    """
    if isinstance(place, BestPlace):
        folder = best_checkpoint(place.run)
        return folder, read_adapters(folder)
    loaded = load_settings()
    # The libraries' keys may be in .env.
    for name, value in loaded.dotenv_environ.items():
        if name.startswith(("WANDB_", "HF_")):
            os.environ.setdefault(name, value)
    if isinstance(place, HubPlace):
        folder = _fetch_from_hub(place)
    else:
        folder = _fetch_from_wandb(place, loaded.settings)
    try:
        return folder, read_adapters(folder)
    except SettingsError as error:
        advice = ""
        if folder.is_relative_to(DOWNLOADS):
            advice = f" To fetch it again: rm -r {folder.resolve()}"
        raise SettingsError(f"{place}: {error}{advice}") from error


def pin_version(place: Place, folder: Path) -> Place:
    """Return the exact version that a folder contains, if it has a name.

    Aliases and branches move, versions do not.

    Args:
        place: The fetched place.
        folder: Its local folder.

    Example:
        wandb:hanabi/laptop:best in outputs/downloads/wandb/-/hanabi/laptop/v3 is
        wandb:hanabi/laptop:v3
    """
    if isinstance(place, HubPlace):
        return replace(place, revision=folder.resolve().name)
    if isinstance(place, BestPlace):
        return folder
    if isinstance(place, Path) or not folder.is_relative_to(_WANDB):
        return place
    entity, project, name, version = folder.relative_to(_WANDB).parts
    return WandbPlace(
        entity="" if entity == _NO_ENTITY else entity, project=project, name=name, alias=version
    )


def games_place(path: Path) -> Path:
    """Return the folder with the games that a path refers to.

    Args:
        path: A run, or a reference to an artifact or repository with sample games.
    """
    if is_remote(str(path)):
        return local_folder(parse_checkpoint(str(path)).place)
    return run_home(path)


def _fetch_from_hub(place: HubPlace) -> Path:
    from huggingface_hub import errors, snapshot_download

    repo = f"{place.org}/{place.repo}"
    try:
        snapshot = Path(
            snapshot_download(repo, revision=place.revision, allow_patterns=list(_HUB_FILES))
        )
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        raise SettingsError(f"{place}: {_describe_hub_error(place, repo, error)}") from error
    return _link(_HUB / repo / snapshot.name[:_SHA_LENGTH], snapshot)


def _describe_hub_error(place: HubPlace, repo: str, error: Exception) -> str:
    """Describe what is wrong with a place on the hub, and what to do."""
    from huggingface_hub import errors

    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            "the hub has no such repository, or this machine's token cannot read it; check the "
            "name, or log in: .venv/bin/hf auth login"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return (
            f"the repository has no revision {place.revision}; omit the revision, or check which "
            "ones the repository has."
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            "the hub cannot be reached, and its cache on this machine has no such snapshot. On a "
            f"machine with network access: .venv/bin/hf download {repo} --local-dir FOLDER; then "
            "use FOLDER as the reference."
        )
    lines = [line for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    return f"cannot be downloaded ({reason}). Check the repository and the revision."


def _link(link: Path, target: Path) -> Path:
    """Give a folder of the hub's cache a short relative name.

    Reports print the name, and full paths reveal the names of people.
    """
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        temporary.symlink_to(target.resolve(), target_is_directory=True)
        os.replace(temporary, link)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SettingsError(
            f"{link}: cannot be written ({error.strerror}); use {target} instead."
        ) from error
    return link


def _fetch_from_wandb(place: WandbPlace, settings: Settings) -> Path:
    """Return an earlier download, a new one from W&B, or an artifact recorded on this disk.

    Args:
        place: The artifact.
        settings: Their WANDB_ENTITY and WANDB_MODE are used.
    """
    wanted = replace(place, entity=place.entity or settings.wandb_entity or "")
    # Only versions are fixed; aliases move.
    if wanted.is_version and _download_folder(wanted).is_dir():
        return _download_folder(wanted)
    reason = f"WANDB_MODE={settings.wandb_mode}"
    if settings.wandb_mode == "online":
        import wandb

        # Crash reports to W&B's developers are of no use here.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            with hidden_secrets():
                return _fetch_from_service(wanted)
        except SettingsError:
            raise
        except (wandb.errors.Error, ValueError, OSError) as error:
            lines = str(error).splitlines()
            reason = f"W&B reports: {lines[0] if lines else type(error).__name__}"
        finally:
            # W&B's own process would otherwise keep running.
            wandb.teardown()
    artifact = _find_on_disk(place, wanted, settings, reason)
    unsent = unsent_folders(artifact.run_folder)
    advice = f"; {sync_line(unsent)}" if unsent else ""
    # Standard output belongs to --json.
    line = f"{place}: {reason}; using {artifact.folder}{advice}"
    print(visible(line), file=sys.stderr)
    return artifact.folder


def _find_on_disk(
    place: WandbPlace, wanted: WandbPlace, settings: Settings, reason: str
) -> RecordedArtifact:
    """Return the only artifact of this name that a run on this disk recorded.

    Args:
        place: The artifact, as named by the user.
        wanted: The same artifact with its entity.
        settings: OUTPUT_DIR is searched in addition to `outputs/`.
        reason: Why W&B itself was not used.

    Raises:
        SettingsError: There is no such artifact, or more than one.
    """
    roots = [Path("outputs")]
    if settings.output_dir:
        roots.append(settings.output_dir)
    artifacts = find_recorded(wanted, roots)
    if len(artifacts) == 1:
        return artifacts[0]
    folders = ", ".join(str(artifact.folder) for artifact in artifacts)
    raise SettingsError(
        f"{place}: {reason}, and {len(artifacts) or 'no'} runs on this disk recorded such an "
        f"artifact; use the folder of one: {folders or 'RUN/artifacts/step_N'}. Downloaded "
        f"versions are in {_download_folder(wanted).parent}. Downloading from W&B requires "
        "network access, .venv/bin/wandb login and WANDB_MODE=online."
    )


def _download_folder(place: WandbPlace) -> Path:
    return _WANDB / (place.entity or _NO_ENTITY) / place.project / place.name / place.alias


def _fetch_from_service(wanted: WandbPlace) -> Path:
    """Download an artifact, unless this version has been downloaded before."""
    import wandb

    timeout = max(1, int(time_limit(os.environ, "WANDB_HTTP_TIMEOUT")))
    artifact = wandb.Api(timeout=timeout).artifact(wanted.path)
    if artifact.type != _ARTIFACT_TYPE:
        raise SettingsError(
            f"wandb:{wanted.path}: has type {artifact.type!r}; artifacts with adapters have type "
            f"{_ARTIFACT_TYPE!r}."
        )
    if any(_leads_outside(entry) for entry in artifact.manifest.entries.values()):
        raise SettingsError(
            f"wandb:{wanted.path}: lists files outside the artifact, which are never downloaded."
        )
    entity = wanted.entity or artifact.entity
    target = _download_folder(replace(wanted, entity=entity, alias=artifact.version))
    if target.is_dir():
        return target
    try:
        with new_folder(target) as folder:
            artifact.download(root=str(folder), skip_cache=True)
            read_adapters(folder)
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(
            f"{target}: could not be downloaded ({reason}); no partial download was left behind."
        ) from error
    return target


def _leads_outside(entry: Any) -> bool:
    """Tell whether an entry of an artifact's manifest is a reference or leaves the folder."""
    path = PurePosixPath(str(entry.path))
    return bool(entry.ref) or path.is_absolute() or ".." in path.parts
