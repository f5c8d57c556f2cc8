"""Where the checkpoint behind a reference is on this disk: a folder, an artifact of W&B, or a repository of the hub.

Folders are under `outputs/downloads/`: W&B's files themselves, links into the hub's cache.
"""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.recordings import recorded_steps
from hanabi_grpo.runs.run_folder import run_home
from hanabi_grpo.runs.saved_adapters import SavedAdapters, read_adapters
from hanabi_grpo.settings import LoadedSettings, load_settings
from hanabi_grpo.settings.refs import CheckpointRef, HubPlace, Place, Ref, WandbPlace, is_remote, parse_checkpoint
from hanabi_grpo.tracking.download import NotHad, download_artifact, downloaded, downloaded_versions
from hanabi_grpo.tracking.mirror import sync_line, unsent_folders
from hanabi_grpo.tracking.record import find_recorded

DOWNLOADS = Path("outputs/downloads")
_HUB_FILES = ("*.json", "*.md", "*adapter_model.safetensors", "episodes/*.jsonl")
_NOT_NEEDED = ("merged/*", "trainer/*")
_SHA_LENGTH = 12
_STEP_FOLDER = re.compile(r"step_0*([0-9]{1,12})", re.ASCII)

Say = Callable[[str], None]


def say_aside(text: str) -> None:
    """Print a line on standard error, which no reader of `--json` reads."""
    sys.stderr.write(f"{text}\n")


def local_ref(ref: Ref, say: Say = say_aside) -> Ref:
    """Return a reference with its local folder in the place of what lies elsewhere; raises as `fetched`."""
    return replace(ref, place=local_folder(ref.place, say)) if isinstance(ref, CheckpointRef) else ref


def local_folder(place: Place, say: Say = say_aside) -> Path:
    """Return a folder as it is, and that of another place as `fetched`."""
    return place if isinstance(place, Path) else fetched(place, say)[0]


def fetched(place: WandbPlace | HubPlace, say: Say = say_aside) -> tuple[Path, SavedAdapters]:
    """Return the folder of a place, downloaded unless it is here, and its adapters, which are those of its manifest.

    Args:
        place: See `refs`.
        say: Receives what a person should know, e.g. how to send a run that is only on this disk.

    Raises:
        SettingsError: It cannot be had, or what was had is damaged.
    """
    loaded = load_settings()
    with _dotenv(loaded):
        folder = _from_hub(place) if isinstance(place, HubPlace) else _from_wandb(place, loaded, say)
    try:
        return folder, read_adapters(folder)
    except SettingsError as error:
        again = f" To fetch it again: rm -r {folder.resolve()}" if folder.is_relative_to(DOWNLOADS) else ""
        raise SettingsError(f"{place}: {error}{again}") from error


def pinned(place: Place, folder: Path) -> Place:
    """Return the very version that a folder holds, where W&B or the hub names one: aliases and branches move.

    Example:
        wandb:hanabi/laptop:best in outputs/downloads/wandb/-/hanabi/laptop/v3 is wandb:hanabi/laptop:v3
    """
    if isinstance(place, HubPlace):
        return replace(place, revision=folder.resolve().name)
    kept = DOWNLOADS / "wandb"
    if isinstance(place, Path) or not folder.is_relative_to(kept):
        return place
    entity, project, name, version = folder.relative_to(kept).parts
    return WandbPlace(entity="" if entity == "-" else entity, project=project, name=name, alias=version)


def games_place(path: Path, step: int | None, say: Say = say_aside) -> tuple[Path, int | None]:
    """Return where the games of a path are, and which recorded step to take: that of a path as it is.

    Sample games are in the artifact or repository. An artifact that was recorded on this disk stands for its run, which
    has more of them: the last step that was recorded up to the artifact's.

    Args:
        path: As typed, maybe a `wandb:` or `hf:` reference.
        step: As typed; None: the last.
        say: See `local_folder`.

    Raises:
        SettingsError: See `local_folder`; or there are no games.
    """
    if not is_remote(str(path)):
        return run_home(path), step
    folder = local_folder(parse_checkpoint(str(path)).place, say)
    run, of_artifact = folder.parent.parent, _STEP_FOLDER.fullmatch(folder.name)
    if folder.parent.name == "artifacts" and of_artifact is not None:
        until = [one for one in recorded_steps(run) if one <= int(of_artifact[1])]
        if until or step is not None:
            return run, max(until) if step is None else step
    if not (folder / "episodes").is_dir():
        raise SettingsError(
            f"{path}: {folder} holds adapters and no games. W&B shows sample games on the run's page (samples/replay); "
            "here, view takes the run's folder, or record new games: hanabi-grpo collect."
        )
    return folder, step


def _from_hub(place: HubPlace) -> Path:
    from huggingface_hub import errors, snapshot_download

    repo = f"{place.org}/{place.repo}"
    try:
        found = snapshot_download(
            repo, revision=place.revision, allow_patterns=list(_HUB_FILES), ignore_patterns=list(_NOT_NEEDED)
        )
    except errors.RepositoryNotFoundError as error:
        reason = (
            "the hub has no such repository, or this machine's key may not read it; look at the name, or log in: "
            ".venv/bin/hf auth login"
        )
        raise SettingsError(f"{place}: {reason}") from error
    except errors.RevisionNotFoundError as error:
        reason = f"the repository has no revision {place.revision}; leave it out, or look there."
        raise SettingsError(f"{place}: {reason}") from error
    except errors.LocalEntryNotFoundError as error:
        raise SettingsError(
            f"{place}: the hub does not answer from here, and its cache on this disk has no such snapshot. Where there "
            f"is a network: .venv/bin/hf download {repo} --local-dir FOLDER; then name FOLDER."
        ) from error
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SettingsError(f"{place}: cannot be downloaded ({reason}). Look at repository and revision.") from error
    snapshot = Path(found)
    return _link(DOWNLOADS / "hf" / repo / snapshot.name[:_SHA_LENGTH], snapshot)


def _link(link: Path, target: Path) -> Path:
    """Give a folder of the hub's cache a short relative name: it is printed in reports, and paths name people."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        temporary.symlink_to(target.resolve(), target_is_directory=True)
        os.replace(temporary, link)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SettingsError(f"{link}: cannot be written ({error.strerror}); name {target} instead.") from error
    return link


def _from_wandb(place: WandbPlace, loaded: LoadedSettings, say: Say) -> Path:
    """Return a version that was downloaded before, what W&B gives, or a folder that a run of this disk recorded."""
    settings = loaded.settings
    wanted = replace(place, entity=place.entity or settings.wandb_entity or "")
    kept = DOWNLOADS / "wandb"
    if (found := downloaded(wanted, kept)) is not None:
        return found
    reason = f"WANDB_MODE={settings.wandb_mode}"
    if settings.wandb_mode == "online":
        try:
            return download_artifact(wanted, kept)
        except NotHad as error:
            reason = str(error)
    here = find_recorded(wanted, [Path("outputs"), *([settings.output_dir] if settings.output_dir else [])])
    if len(here) > 1:
        raise SettingsError(
            f"{place}: {reason}, and {len(here)} runs on this disk recorded such an artifact; name one of their "
            f"folders: {', '.join(map(str, here.values()))}"
        )
    if not here:
        versions = ", ".join(downloaded_versions(wanted, kept)) or "none"
        raise SettingsError(
            f"{place}: {reason}, and no run in outputs/ recorded such an artifact (downloaded versions of it: "
            f"{versions}). Look at the name; W&B itself needs a network, .venv/bin/wandb login and "
            "WANDB_MODE=online. Else copy the run's folder here and name its artifacts/step_N."
        )
    [(run, folder)] = here.items()
    say(f"{place}: {reason}; taken from {folder}, as it was recorded on this disk.")
    if unsent := unsent_folders(run):
        say(sync_line(unsent))
    return folder


@contextlib.contextmanager
def _dotenv(loaded: LoadedSettings) -> Iterator[None]:
    """Let the libraries see the keys that `.env` holds, for the length of a block."""
    given = {name: value for name, value in loaded.dotenv_environ.items() if name.startswith(("WANDB_", "HF_"))}
    added = {name: value for name, value in given.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
