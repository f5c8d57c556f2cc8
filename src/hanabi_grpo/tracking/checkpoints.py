"""Where the checkpoint behind a reference is on this disk: a folder, a run's best, an artifact of
W&B or the hub.

Folders are under `outputs/downloads/`: W&B's files themselves, links into the hub's cache.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath

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
from hanabi_grpo.tracking.mirror import sync_line, unsent_folders
from hanabi_grpo.tracking.record import find_recorded
from hanabi_grpo.tracking.wandb_run import time_limit

DOWNLOADS = Path("outputs/downloads")
_WANDB = DOWNLOADS / "wandb"
_HUB_FILES = ("*.json", "*.md", "*adapter_model.safetensors", "episodes/*.jsonl")
_SHA_LENGTH = 12
_KIND = "model"


def local_ref(ref: Ref) -> Ref:
    """Return a reference with its local folder in the place of what lies elsewhere; raises as
    `fetched`.
    """
    return replace(ref, place=local_folder(ref.place)) if isinstance(ref, CheckpointRef) else ref


def local_folder(place: Place) -> Path:
    """Return a folder as it is, and that of another place as `fetched`."""
    return place if isinstance(place, Path) else fetched(place)[0]


def fetched(place: Moving) -> tuple[Path, SavedAdapters]:
    """Return a place's folder, downloaded unless it is here, and its whole adapters; a
    SettingsError without them.
    """
    if isinstance(place, BestPlace):
        folder = best_checkpoint(place.run)
        return folder, read_adapters(folder)
    loaded = load_settings()
    # The libraries' keys may stand in .env.
    keys = {
        name: value
        for name, value in loaded.dotenv_environ.items()
        if name.startswith(("WANDB_", "HF_"))
    }
    os.environ.update({**keys, **os.environ})
    folder = (
        _from_hub(place) if isinstance(place, HubPlace) else _from_wandb(place, loaded.settings)
    )
    try:
        return folder, read_adapters(folder)
    except SettingsError as error:
        again = (
            f" To fetch it again: rm -r {folder.resolve()}"
            if folder.is_relative_to(DOWNLOADS)
            else ""
        )
        raise SettingsError(f"{place}: {error}{again}") from error


def pinned(place: Place, folder: Path) -> Place:
    """Return the very version that a folder holds, where there is a name for it: aliases and
    branches move.

    Example: wandb:hanabi/laptop:best in outputs/downloads/wandb/-/hanabi/laptop/v3 is
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
        entity="" if entity == "-" else entity, project=project, name=name, alias=version
    )


def games_place(path: Path) -> Path:
    """Return the folder whose games a path stands for: a run, or an artifact or repository with
    sample games.
    """
    return (
        local_folder(parse_checkpoint(str(path)).place) if is_remote(str(path)) else run_home(path)
    )


def _from_hub(place: HubPlace) -> Path:
    from huggingface_hub import errors, snapshot_download

    repo = f"{place.org}/{place.repo}"
    try:
        found = snapshot_download(repo, revision=place.revision, allow_patterns=list(_HUB_FILES))
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        reason = next(
            (line for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        says = f"cannot be downloaded ({reason}). Look at repository and revision."
        if isinstance(error, errors.RepositoryNotFoundError):
            says = (
                "the hub has no such repository, or this machine's key may not read it; look "
                "at the name, or log "
            )
            says += "in: .venv/bin/hf auth login"
        elif isinstance(error, errors.RevisionNotFoundError):
            says = f"the repository has no revision {place.revision}; leave it out, or look there."
        elif isinstance(error, errors.LocalEntryNotFoundError):
            says = (
                "the hub does not answer from here, and its cache on this disk has no such "
                "snapshot. Where there is "
            )
            says += f"a network: .venv/bin/hf download {repo} --local-dir FOLDER; then name FOLDER."
        raise SettingsError(f"{place}: {says}") from error
    snapshot = Path(found)
    return _link(DOWNLOADS / "hf" / repo / snapshot.name[:_SHA_LENGTH], snapshot)


def _link(link: Path, target: Path) -> Path:
    """Give a folder of the hub's cache a short relative name: it is printed in reports, and paths
    name people.
    """
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        temporary.symlink_to(target.resolve(), target_is_directory=True)
        os.replace(temporary, link)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SettingsError(
            f"{link}: cannot be written ({error.strerror}); name {target} instead."
        ) from error
    return link


def _from_wandb(place: WandbPlace, settings: Settings) -> Path:
    """Return a version that was downloaded before, what W&B gives, or a folder that a run of this
    disk recorded.
    """
    wanted = replace(place, entity=place.entity or settings.wandb_entity or "")
    # Other aliases move.
    if wanted.is_version and _kept(wanted).is_dir():
        return _kept(wanted)
    reason = f"WANDB_MODE={settings.wandb_mode}"
    if settings.wandb_mode == "online":
        import wandb

        # Crash reports to W&B's maker are of no use here.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            return _from_service(wanted)
        except (wandb.errors.Error, ValueError, OSError) as error:
            if isinstance(error, SettingsError):
                raise
            lines = str(error).splitlines()
            reason = f"W&B says: {lines[0] if lines else type(error).__name__}"
        finally:
            # W&B's own process would outlive this command's use of it.
            wandb.teardown()
    here = find_recorded(
        wanted, [Path("outputs"), *([settings.output_dir] if settings.output_dir else [])]
    )
    if len(here) != 1:
        folders = ", ".join(map(str, here.values()))
        raise SettingsError(
            f"{place}: {reason}, and {len(here) or 'no'} runs on this disk recorded such an "
            "artifact; name the folder "
            f"of one: {folders or 'RUN/artifacts/step_N'}. Downloaded versions are in "
            f"{_kept(wanted).parent}; W&B "
            "itself needs a network, .venv/bin/wandb login and WANDB_MODE=online."
        )
    [(run, folder)] = here.items()
    unsent = unsent_folders(run)
    # Standard output belongs to --json.
    print(
        f"{place}: {reason}; taken from {folder}{'; ' + sync_line(unsent) if unsent else ''}",
        file=sys.stderr,
    )
    return folder


def _kept(place: WandbPlace) -> Path:
    return _WANDB / (place.entity or "-") / place.project / place.name / place.alias


def _from_service(wanted: WandbPlace) -> Path:
    """Download an artifact; a version that is there is not fetched again."""
    import wandb

    api = wandb.Api(timeout=max(1, int(time_limit(os.environ, "WANDB_HTTP_TIMEOUT"))))
    artifact = api.artifact(wanted.path)
    if artifact.type != _KIND:
        raise SettingsError(
            f"wandb:{wanted.path}: is of type {artifact.type!r}; adapters are of type {_KIND!r}."
        )
    paths = [
        (entry.ref, PurePosixPath(str(entry.path))) for entry in artifact.manifest.entries.values()
    ]
    if any(ref or path.is_absolute() or ".." in path.parts for ref, path in paths):
        raise SettingsError(
            f"wandb:{wanted.path}: names files outside of it, which are not fetched."
        )
    target = _kept(replace(wanted, entity=wanted.entity or artifact.entity, alias=artifact.version))
    if target.is_dir():
        return target
    try:
        with new_folder(target) as folder:
            artifact.download(root=str(folder), skip_cache=True)
            read_adapters(folder)
    except OSError as error:
        reason = error.strerror or error
        raise SettingsError(
            f"{target}: was not downloaded ({reason}); nothing is left of it."
        ) from error
    return target
