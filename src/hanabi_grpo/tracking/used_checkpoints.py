"""The folders that a run used for other runs' checkpoints: start, partners, teachers, opponents.

Before it waits for a server, `hanabi-grpo train` resolves `RUN` (its newest checkpoint),
`RUN@best`, `wandb:` and `hf:` references to folders once, and records them in `settings.json` of
the run folder. All processes of the run, and a resumed run, therefore read the same weights, even
if the reference now points to something else.

Example:
    "remote_checkpoints": {"wandb:team/hanabi/laptop:best": {"folder":
    "outputs/downloads/wandb/team/hanabi/laptop/v3", "version": "wandb:team/hanabi/laptop:v3",
    "step": 50, "sha256": {"player_0": "9f3c…", "player_1": "04ab…"}}}
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_bytes
from hanabi_grpo.runs.saved_adapters import SavedAdapters, newest_checkpoint, read_adapters
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import read_pool
from hanabi_grpo.settings.refs import (
    BestPlace,
    CheckpointRef,
    Moving,
    Place,
    parse_checkpoint,
    split_player,
)
from hanabi_grpo.settings.teachers import parse_teachers
from hanabi_grpo.tracking.checkpoints import fetch, pin_version

KEY = "remote_checkpoints"
"""Key in `settings.json`."""

_ADVICE = "Put that folder back, or start a new run from the checkpoint with another OUTPUT_DIR."


class UsedCheckpoint(BaseModel):
    """The checkpoint that one reference was resolved to."""

    folder: str
    """Folder of the adapters on this disk."""
    version: str
    """A reference to exactly these weights, if W&B or the hub has a name for them."""
    step: int
    """Optimizer step of the checkpoint."""
    sha256: dict[str, str]
    """Adapter name -> digest of its weight file."""


_UsedCheckpoints = TypeAdapter(dict[str, UsedCheckpoint])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    """A reference to another run's checkpoint in a setting."""

    setting: str
    """The setting, for errors, e.g. "HANABI_PARTNERS=outputs/run"."""
    place: Place


def fetch_used(
    settings: Settings,
    run_folder: Path,
    *,
    opponents: Iterable[Place] = (),
    is_resumed: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Resolve every reference to another run's checkpoint, and download remote ones.

    A resumed run uses the same checkpoints as before. If a reference was resolved to another run's
    newest checkpoint and that run has since removed it, its present newest checkpoint is used
    instead, and a line reports this.

    Args:
        settings: The run's settings, for start, partners and teachers.
        run_folder: The run.
        opponents: Checkpoints that have a seat in validations.
        is_resumed: The run is resumed; HANABI_START_FROM is then ignored, because the weights come
            from the run's own checkpoint.
        say: Receives a line for each checkpoint.

    Returns:
        The value of `KEY` in `settings.json`.

    Raises:
        SettingsError: A checkpoint is missing, is damaged, cannot be fetched, or differs from the
            one used before.
    """
    used = recorded_checkpoints(run_folder)
    for reference in _references(settings, opponents, is_resumed=is_resumed):
        name = str(reference.place)
        now = _find(reference, used.get(name), say)
        if now is None:
            continue
        used[name] = now
        say(f"{name}: {now.folder}, step {now.step}")
    return _UsedCheckpoints.dump_python(used)


def check_local(
    settings: Settings,
    run_folder: Path | None,
    *,
    opponents: Iterable[Place] = (),
    is_resumed: bool = False,
) -> list[str]:
    """Do what `fetch_used` does with the checkpoints on this disk, without recording anything.

    Remote ones are checked when they are fetched.

    Args:
        settings: The run's settings.
        run_folder: The run; None: a new one.
        opponents: As for `fetch_used`.
        is_resumed: As for `fetch_used`.

    Returns:
        The references that were checked.

    Raises:
        SettingsError: A checkpoint is missing or damaged, or differs from the one used before.
    """
    used = recorded_checkpoints(run_folder)
    checked = []
    for reference in _references(settings, opponents, is_resumed=is_resumed):
        name = str(reference.place)
        if isinstance(reference.place, Path | BestPlace):
            _find(reference, used.get(name), lambda line: None)
            checked.append(name)
    return checked


def _references(
    settings: Settings, opponents: Iterable[Place], *, is_resumed: bool
) -> Iterator[_Reference]:
    """Yield each place of start, partners, teachers and opponents once."""
    refs: list[tuple[str, object]] = []
    for partner in read_pool(settings):
        refs.append((f"HANABI_PARTNERS={partner.spec}", partner.ref))
    for teacher in parse_teachers(settings).values():
        refs.append((f"HANABI_TEACHER={teacher}", teacher))
    if not is_resumed:
        for entry in settings.start_from:
            _, reference = split_player(entry)
            refs.append((f"HANABI_START_FROM={entry}", parse_checkpoint(reference)))
    places = [(setting, ref.place) for setting, ref in refs if isinstance(ref, CheckpointRef)]
    for place in opponents:
        places.append((f"HANABI_EVAL_LINEUPS={settings.eval_lineups}", place))
    seen = set()
    for setting, place in places:
        if place not in seen:
            seen.add(place)
            yield _Reference(setting=setting, place=place)


def _find(
    reference: _Reference, before: UsedCheckpoint | None, say: Callable[[str], None]
) -> UsedCheckpoint | None:
    """Return the checkpoint that a reference resolves to; None for the folder of a checkpoint.

    Args:
        reference: The reference.
        before: The checkpoint that it was resolved to when the run that uses it started.
        say: Receives a line if that checkpoint is gone.

    Raises:
        SettingsError: See `fetch_used`; the message begins with the setting.
    """
    place = reference.place
    try:
        if isinstance(place, Path):
            return _use_run(place, before, say)
        return _use(place) if before is None else _use_again(str(place), before)
    except (OSError, SettingsError) as error:
        raise SettingsError(f"{reference.setting}: {error}") from error


def recorded_checkpoints(run_folder: Path | None) -> dict[str, UsedCheckpoint]:
    """Return the checkpoints that a run has used so far, by reference; empty without a run.

    Raises:
        SettingsError: The run's record cannot be read.
    """
    if run_folder is None:
        return {}
    path = run_folder / "settings.json"
    try:
        content = json.loads(read_bytes(path, MAX_DOCUMENT_BYTES))
        return _UsedCheckpoints.validate_python(content.get(KEY, {}))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, AttributeError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(
            f"{path}: the record of the checkpoints that the run used cannot be read ({reason})."
        ) from error


def read_used(place: Place, run_folder: Path | None) -> tuple[Path, SavedAdapters]:
    """Return a checkpoint's folder, and its adapters.

    Args:
        place: A checkpoint, a run, or a remote place. If `fetch_used` has recorded a folder for it,
            that folder is read; for an unrecorded run, its newest checkpoint is.
        run_folder: The run that uses the checkpoint.

    Raises:
        SettingsError: The checkpoint was not fetched for this run.
    """
    known = recorded_checkpoints(run_folder).get(str(place))
    if known is not None:
        place = Path(known.folder)
    if not isinstance(place, Path):
        raise SettingsError(
            f"{place}: was not fetched for this run; start the run with hanabi-grpo train or its "
            "script."
        )
    folder = newest_checkpoint(place)
    return folder, read_adapters(folder)


def _use(place: Moving) -> UsedCheckpoint:
    """Fetch a checkpoint and describe it."""
    folder, saved = fetch(place)
    return UsedCheckpoint(
        folder=str(folder),
        version=str(pin_version(place, folder)),
        step=saved.step,
        sha256=_digests(saved),
    )


def _use_run(
    place: Path, before: UsedCheckpoint | None, say: Callable[[str], None]
) -> UsedCheckpoint | None:
    """Return the checkpoint that a run resolves to; None if the folder is a checkpoint itself.

    Args:
        place: A folder.
        before: The checkpoint that it was resolved to when the run that uses it started.
        say: Receives a line if that checkpoint is gone.
    """
    if before is not None and _is_as_it_was(before):
        return before
    folder = newest_checkpoint(place)
    saved = read_adapters(folder)
    if folder == place:
        return None
    if before is not None:
        say(
            f"{place}: this run used {before.folder} (step {before.step}), which is missing or has "
            "changed; the newest checkpoint is used instead"
        )
    return UsedCheckpoint(
        folder=str(folder), version=str(folder), step=saved.step, sha256=_digests(saved)
    )


def _is_as_it_was(before: UsedCheckpoint) -> bool:
    """Tell whether the folder that a run used still has the same weights."""
    with contextlib.suppress(OSError, SettingsError):
        return _digests(read_adapters(Path(before.folder))) == before.sha256
    return False


def _use_again(reference: str, before: UsedCheckpoint) -> UsedCheckpoint:
    """Return the checkpoint that the run used before; fetch it again if its folder has changed."""
    if _is_as_it_was(before):
        return before
    problem = (
        f"{reference}: this run used {before.folder} (step {before.step}), which is missing or has "
        "changed"
    )
    place = parse_checkpoint(before.version).place
    if isinstance(place, Path):
        raise SettingsError(f"{problem}. {_ADVICE}")
    try:
        now = _use(place)
    except SettingsError as error:
        raise SettingsError(
            f"{problem}, and it cannot be fetched again ({error}). {_ADVICE}"
        ) from error
    if now.sha256 != before.sha256:
        raise SettingsError(
            f"{problem}, and {before.version} now has different weights ({now.folder}). {_ADVICE}"
        )
    return now


def _digests(saved: SavedAdapters) -> dict[str, str]:
    """Return the SHA-256 of each adapter's weights."""
    digests = {}
    for name, (weights, _) in saved.adapters.items():
        digests[name] = hashlib.sha256(weights).hexdigest()
    return digests
