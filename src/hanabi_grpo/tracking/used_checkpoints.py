"""What stands for a checkpoint in HANABI_START_FROM and HANABI_PARTNERS, and the folders that a run
used for it.

`hanabi-grpo train` turns `RUN@best`, `wandb:` and `hf:` words into a folder once, before the first
step, and keeps that in `settings.json` of the run folder. A resumed run uses the same weights,
although the name may have moved on.

Example: "remote_checkpoints": {"wandb:team/hanabi/laptop:best": {"folder":
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
from hanabi_grpo.runs.saved_adapters import SavedAdapters, newest_checkpoint, read_adapters
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import Moving, Place, parse_checkpoint, split_player
from hanabi_grpo.tracking.checkpoints import fetched, pinned

KEY = "remote_checkpoints"
"""Of `settings.json`."""


class UsedCheckpoint(BaseModel):
    """What stood for one reference."""

    folder: str
    version: str
    """The reference of exactly these weights, as far as W&B or the hub has such a name."""
    step: int
    sha256: dict[str, str]
    """Adapter to the digest of its weights' file."""


_Used = TypeAdapter(dict[str, UsedCheckpoint])


def fetch_used(
    settings: Settings,
    run_folder: Path,
    *,
    is_resumed: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Have every checkpoint of HANABI_START_FROM and HANABI_PARTNERS here; returns what
    `settings.json` says under KEY.

    What the run used before is used again, or a SettingsError. Of a resumed run HANABI_START_FROM
    is not read: weights come from its checkpoint. `say` receives a line for each."""
    used = recorded(run_folder)
    entries = (*settings.partners, *(() if is_resumed else settings.start_from))
    places = dict.fromkeys(parse_checkpoint(split_player(entry)[1]).place for entry in entries)
    for place in [one for one in places if not isinstance(one, Path)]:
        name = str(place)
        used[name] = _used_again(name, used[name]) if name in used else _used(place)
        say(f"{name}: {used[name].folder}, step {used[name].step}")
    return _Used.dump_python(used)


def recorded(run_folder: Path | None) -> dict[str, UsedCheckpoint]:
    """Return what the run of a folder used so far, by reference; nothing where there is no run
    yet.
    """
    if run_folder is None:
        return {}
    path = run_folder / "settings.json"
    try:
        return _Used.validate_python(json.loads(path.read_text(encoding="utf-8")).get(KEY, {}))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(
            f"{path}: which remote checkpoints the run used cannot be read ({reason})."
        ) from error


def read_used(place: Place, run_folder: Path | None) -> tuple[Path, SavedAdapters]:
    """Return a checkpoint and where it is: of a run its newest, of what lies elsewhere what
    `fetch_used` had recorded.

    A SettingsError where that was not fetched for this run.
    """
    if not isinstance(place, Path):
        known = recorded(run_folder)
        if str(place) not in known:
            raise SettingsError(
                f"{place}: was not fetched for this run; start it by hanabi-grpo train, or by its "
                "script."
            )
        place = Path(known[str(place)].folder)
    folder = newest_checkpoint(place)
    return folder, read_adapters(folder)


def _used(place: Moving) -> UsedCheckpoint:
    folder, saved = fetched(place)
    version = str(pinned(place, folder))
    return UsedCheckpoint(
        folder=str(folder), version=version, step=saved.step, sha256=_sha256(saved)
    )


def _used_again(word: str, before: UsedCheckpoint) -> UsedCheckpoint:
    with contextlib.suppress(OSError, SettingsError):
        if _sha256(read_adapters(Path(before.folder))) == before.sha256:
            return before
    advice = "Put that folder back, or start a new run from the checkpoint with another OUTPUT_DIR."
    where = (
        f"{word}: this run used {before.folder} (step {before.step}), which is not there as it was"
    )
    place = parse_checkpoint(before.version).place
    if isinstance(place, Path):
        raise SettingsError(f"{where}. {advice}")
    try:
        now = _used(place)
    except SettingsError as error:
        raise SettingsError(
            f"{where}, and it cannot be fetched again ({error}). {advice}"
        ) from error
    if now.sha256 != before.sha256:
        raise SettingsError(
            f"{where}, and {before.version} has other weights now ({now.folder}). {advice}"
        )
    return now


def _sha256(saved: SavedAdapters) -> dict[str, str]:
    return {
        name: hashlib.sha256(weights).hexdigest() for name, (weights, _) in saved.adapters.items()
    }
