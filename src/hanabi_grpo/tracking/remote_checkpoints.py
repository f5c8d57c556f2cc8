"""Checkpoints that lie elsewhere: words for W&B's artifacts and hub repositories, and the local folders they become.

| word | what it stands for |
|---|---|
| `wandb:entity/project/name:alias` | an artifact; alias `latest` and the entity of one's key when left out |
| `hf:org/repo`, `hf:org/repo@revision` | a repository that `hanabi-grpo export` made |

Behind either, `:player_1` chooses an adapter. Line-ups, `view`, `export` and, by `used_checkpoints`, a training turn a
word into a folder here, and go on as if that had been typed. Folders are under `outputs/downloads/`: W&B's files
themselves, links into the hub's cache.
"""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.recordings import recorded_steps
from hanabi_grpo.runs.run_folder import run_home
from hanabi_grpo.runs.saved_adapters import SavedAdapters, read_adapters, read_description
from hanabi_grpo.settings import LoadedSettings, load_settings
from hanabi_grpo.settings.checkpoint_words import HUB, WANDB, is_remote, split_adapter

if TYPE_CHECKING:
    from hanabi_grpo.tracking.artifact_words import ArtifactWord

DOWNLOADS = Path("outputs/downloads")
_HUB_NAME = re.compile(r"([\w.-]{1,96}/[\w.-]{1,96})(?:@([\w./-]{1,200}))?", re.ASCII)
_HUB_FILES = ("*.json", "*.md", "*adapter_model.safetensors", "episodes/*.jsonl")
_HUB_SMALL_FILES = ("manifest.json", "*adapter_config.json")
_NOT_NEEDED = ("merged/*", "trainer/*")
_SHA_LENGTH = 12
_STEP_FOLDER = re.compile(r"step_0*([0-9]{1,12})", re.ASCII)

Say = Callable[[str], None]
_Had = TypeVar("_Had")


def say_aside(text: str) -> None:
    """Print a line on standard error, which no reader of `--json` reads."""
    sys.stderr.write(f"{text}\n")


def local_word(word: str, say: Say = say_aside) -> str:
    """Return a word as it is, and a remote one as its local folder, with the adapter that stood behind it.

    Example:
        local_word("wandb:team/hanabi/laptop:v3:player_1") == "outputs/downloads/wandb/team/hanabi/laptop/v3:player_1"

    Raises:
        SettingsError: See `local_folder`.
    """
    if not is_remote(word):
        return word
    name, adapter = split_adapter(word)
    return f"{local_folder(name, say)}{f':{adapter}' if adapter else ''}"


def local_folder(word: str, say: Say = say_aside) -> Path:
    """Return the folder of a remote word, downloaded unless it is here; its adapters are those of its manifest.

    Args:
        word: Without an adapter behind it.
        say: Receives what a person should know, e.g. how to send a run that is only on this disk.

    Raises:
        SettingsError: No such word, it cannot be had, or what was had is damaged.
    """
    loaded = load_settings()
    with _dotenv(loaded):
        folder = _hub_folder(word) if word.startswith(HUB) else _from_wandb(word, loaded, say, _download)
    try:
        read_adapters(folder)
    except SettingsError as error:
        again = f" To fetch it again: rm -r {folder.resolve()}" if folder.is_relative_to(DOWNLOADS) else ""
        raise SettingsError(f"{word}: {error}{again}") from error
    return folder


def describe_remote(word: str, say: Say = lambda text: None) -> Path | SavedAdapters:
    """Return the folder of a remote word that needs no download, and of another what its small files say.

    Args:
        word: Without an adapter behind it.
        say: See `local_folder`.

    Raises:
        SettingsError: No such word, or it cannot be had.
    """
    loaded = load_settings()
    with _dotenv(loaded):
        if word.startswith(WANDB):
            return _from_wandb(word, loaded, say, _describe)
        from huggingface_hub import constants

        if constants.is_offline_mode():
            return _hub_folder(word)
        with tempfile.TemporaryDirectory() as cache:
            return read_description(_snapshot(word, _HUB_SMALL_FILES, cache))


def pinned_word(word: str, folder: Path) -> str:
    """Return the word of the very version that a folder holds, where W&B or the hub has one: aliases and branches move.

    Example:
        pinned_word("wandb:hanabi/laptop:best", Path("outputs/downloads/wandb/-/hanabi/laptop/v3"))
        == "wandb:hanabi/laptop:v3"
    """
    if word.startswith(HUB):
        return f"{word.partition('@')[0]}@{folder.resolve().name}"
    kept = DOWNLOADS / "wandb"
    if not folder.is_relative_to(kept):
        return word
    *names, version = [part for part in folder.relative_to(kept).parts if part != "-"]
    return f"{WANDB}{'/'.join(names)}:{version}"


def games_place(path: Path, step: int | None, say: Say = say_aside) -> tuple[Path, int | None]:
    """Return where the games of a path are, and which recorded step to take: that of a path as it is.

    Sample games are in the artifact or repository. An artifact that was recorded on this disk stands for its run, which
    has more of them: the last step that was recorded up to the artifact's.

    Args:
        path: As typed, maybe a remote word.
        step: As typed; None: the last.
        say: See `local_folder`.

    Raises:
        SettingsError: See `local_folder`; or there are no games.
    """
    word = str(path)
    if not is_remote(word):
        return run_home(path), step
    folder = local_folder(split_adapter(word)[0], say)
    run, of_artifact = folder.parent.parent, _STEP_FOLDER.fullmatch(folder.name)
    if folder.parent.name == "artifacts" and of_artifact is not None:
        until = [one for one in recorded_steps(run) if one <= int(of_artifact[1])]
        if until or step is not None:
            return run, max(until) if step is None else step
    if not (folder / "episodes").is_dir():
        raise SettingsError(
            f"{word}: {folder} holds adapters and no games. W&B shows sample games on the run's page (samples/replay); "
            "here, view takes the run's folder, or record new games: hanabi-grpo collect."
        )
    return folder, step


def _hub_folder(word: str) -> Path:
    snapshot = _snapshot(word, _HUB_FILES)
    repo = word.removeprefix(HUB).partition("@")[0]
    return _link(DOWNLOADS / "hf" / repo / snapshot.name[:_SHA_LENGTH], snapshot)


def _snapshot(word: str, files: Sequence[str], cache: str | None = None) -> Path:
    """Return the hub's folder with some files of a repository, in its own cache or in another folder."""
    match = _HUB_NAME.fullmatch(word.removeprefix(HUB))
    if match is None:
        raise SettingsError(f"{word!r}: give hf:org/repo, or hf:org/repo@revision.")
    from huggingface_hub import errors, snapshot_download

    repo, revision = match[1], match[2]
    try:
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=list(files),
                ignore_patterns=list(_NOT_NEEDED),
                cache_dir=cache,
            )
        )
    except errors.RepositoryNotFoundError as error:
        raise SettingsError(
            f"{word}: the hub has no such repository, or this machine's key may not read it; look at the name, or log "
            "in: .venv/bin/hf auth login"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise SettingsError(
            f"{word}: the repository has no revision {revision}; leave it out, or look there."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise SettingsError(
            f"{word}: the hub does not answer from here, and its cache on this disk has no such snapshot. Where there "
            f"is a network: .venv/bin/hf download {repo} --local-dir FOLDER; then name FOLDER."
        ) from error
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SettingsError(f"{word}: cannot be downloaded ({reason}). Look at repository and revision.") from error


def _link(link: Path, target: Path) -> Path:
    """Give a folder of the hub's cache a short relative name: words are printed in reports, and paths name people."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        temporary.symlink_to(target.resolve(), target_is_directory=True)
        os.replace(temporary, link)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SettingsError(f"{link}: cannot be written ({error.strerror}); name {target} instead.") from error
    return link


def _download(wanted: "ArtifactWord", kept: Path) -> Path:
    from hanabi_grpo.tracking.download import download_artifact

    return download_artifact(wanted, kept)


def _describe(wanted: "ArtifactWord", kept: Path) -> Path | SavedAdapters:
    from hanabi_grpo.tracking.download import describe_artifact

    return describe_artifact(wanted, kept)


def _from_wandb(
    word: str, loaded: LoadedSettings, say: Say, have: Callable[["ArtifactWord", Path], Path | _Had]
) -> Path | _Had:
    """Return what W&B gives by `have`, or a folder that is on this disk."""
    from hanabi_grpo.tracking.artifact_words import find_recorded, read_artifact_word
    from hanabi_grpo.tracking.download import NotHad
    from hanabi_grpo.tracking.mirror import sync_line, unsent_folders

    settings = loaded.settings
    wanted = read_artifact_word(word, settings.wandb_entity or "")
    kept = DOWNLOADS / "wandb"
    if (found := wanted.downloaded(kept)) is not None:
        return found
    reason = f"WANDB_MODE={settings.wandb_mode}"
    if settings.wandb_mode == "online":
        try:
            return have(wanted, kept)
        except NotHad as error:
            reason = str(error)
    here = find_recorded(wanted, [Path("outputs"), *([settings.output_dir] if settings.output_dir else [])])
    if len(here) > 1:
        raise SettingsError(
            f"{word}: {reason}, and {len(here)} runs on this disk recorded such an artifact; name one of their "
            f"folders: {', '.join(str(one.folder) for one in here)}"
        )
    if not here:
        versions = ", ".join(wanted.versions(kept)) or "none"
        raise SettingsError(
            f"{word}: {reason}, and no run in outputs/ recorded such an artifact (downloaded versions of it: "
            f"{versions}). Look at the name; W&B itself needs a network, .venv/bin/wandb login and "
            "WANDB_MODE=online. Else copy the run's folder here and name its artifacts/step_N."
        )
    [one] = here
    say(f"{word}: {reason}; taken from {one.folder}, as it was recorded on this disk.")
    if unsent := unsent_folders(one.run):
        say(sync_line(unsent))
    return one.folder


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
