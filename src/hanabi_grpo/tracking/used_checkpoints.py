"""Which folders a run used for the checkpoints of HANABI_START_FROM and HANABI_PARTNERS.

`hanabi-grpo train` turns `RUN@best`, `wandb:` and `hf:` references into a folder once, before the
first step, and keeps that in `settings.json` of the run folder. A resumed run uses the same
weights, although the name may have moved on.

Example:
    "remote_checkpoints": {"wandb:team/hanabi/laptop:best": {"folder":
    "outputs/downloads/wandb/team/hanabi/laptop/v3", "version": "wandb:team/hanabi/laptop:v3",
    "step": 50, "sha256": {"player_0": "9f3c…", "player_1": "04ab…"}}}
"""

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_bytes
from hanabi_grpo.runs.saved_adapters import SavedAdapters, newest_checkpoint, read_adapters
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import without_weight
from hanabi_grpo.settings.refs import Moving, Place, parse_checkpoint, split_player
from hanabi_grpo.tracking.checkpoints import fetch, pin_version

KEY = "remote_checkpoints"
"""Of `settings.json`."""

_ADVICE = "Put that folder back, or start a new run from the checkpoint with another OUTPUT_DIR."


class UsedCheckpoint(BaseModel):
    """What stood for one reference."""

    folder: str
    """Where the adapters are on this disk."""
    version: str
    """The reference of exactly these weights, as far as W&B or the hub has such a name."""
    step: int
    """Optimizer steps behind them."""
    sha256: dict[str, str]
    """Adapter to the digest of its weights' file."""


_UsedCheckpoints = TypeAdapter(dict[str, UsedCheckpoint])


def fetch_used(
    settings: Settings,
    run_folder: Path,
    *,
    is_resumed: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Fetch every checkpoint that lies elsewhere, of start, partners and teachers.

    What the run used before is used again.

    Args:
        settings: The run's settings.
        run_folder: The run.
        is_resumed: HANABI_START_FROM is not read then: weights come from the run's checkpoint.
        say: Receives a line for each.

    Returns:
        What `settings.json` has under `KEY`.

    Raises:
        SettingsError: One cannot be fetched, or is not what the run used before.
    """
    used = recorded_checkpoints(run_folder)
    entries = [*map(without_weight, settings.partners), *settings.teacher]
    if not is_resumed:
        entries += settings.start_from
    places: dict[Moving, None] = {}
    for entry in entries:
        _, reference = split_player(entry)
        place = parse_checkpoint(reference).place
        if not isinstance(place, Path):
            places[place] = None
    for place in places:
        name = str(place)
        used[name] = _use_again(name, used[name]) if name in used else _use(place)
        say(f"{name}: {used[name].folder}, step {used[name].step}")
    return _UsedCheckpoints.dump_python(used)


def recorded_checkpoints(run_folder: Path | None) -> dict[str, UsedCheckpoint]:
    """Return what a run has used so far, by reference; nothing where there is no run yet.

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
            f"{path}: which remote checkpoints the run used cannot be read ({reason})."
        ) from error


def read_used(place: Place, run_folder: Path | None) -> tuple[Path, SavedAdapters]:
    """Return where a checkpoint is, and its adapters.

    Args:
        place: A run, of which the newest checkpoint is meant; a checkpoint; or what lies elsewhere,
            for which the folder counts that `fetch_used` has recorded.
        run_folder: The run that uses it.

    Raises:
        SettingsError: It was not fetched for this run.
    """
    if not isinstance(place, Path):
        known = recorded_checkpoints(run_folder)
        if str(place) not in known:
            raise SettingsError(
                f"{place}: was not fetched for this run; start it by hanabi-grpo train, or by its "
                "script."
            )
        place = Path(known[str(place)].folder)
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


def _use_again(reference: str, before: UsedCheckpoint) -> UsedCheckpoint:
    """Return the checkpoint that the run used before, fetched again if its folder has changed."""
    with contextlib.suppress(OSError, SettingsError):
        if _digests(read_adapters(Path(before.folder))) == before.sha256:
            return before
    problem = (
        f"{reference}: this run used {before.folder} (step {before.step}), which is not there as "
        "it was"
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
            f"{problem}, and {before.version} has other weights now ({now.folder}). {_ADVICE}"
        )
    return now


def _digests(saved: SavedAdapters) -> dict[str, str]:
    """Return the sha256 of each adapter's weights."""
    digests = {}
    for name, (weights, _) in saved.adapters.items():
        digests[name] = hashlib.sha256(weights).hexdigest()
    return digests
