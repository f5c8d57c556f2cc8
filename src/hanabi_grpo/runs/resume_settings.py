"""Which settings a resumed run may change, and what it keeps of the old ones."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs.run_folder import write_json_atomic
from hanabi_grpo.runs.v1 import REMOVED, UNRECORDED
from hanabi_grpo.settings import Settings, settings_values, variables

WEIGHTS = ("MODEL", "HANABI_PLAYERS", "HANABI_ADAPTERS", "LORA_RANK", "LORA_ALPHA")
"""What the saved tensors were made for: equal in a resumed run and in a fork."""
MEANING = tuple(
    """
    DATASET SEED HANABI_DTYPE NUM_GENERATIONS HANABI_TASKS_PER_STEP HANABI_TASK_SEED HANABI_PARTNERS
    HANABI_PARTNER_SHARE BETA HANABI_ENTROPY_BONUS HANABI_ENTROPY_TARGET HANABI_UPDATES_PER_STEP HANABI_CLIP_LOW
    HANABI_CLIP_HIGH
    HANABI_SAMPLER_CORRECTION HANABI_SAMPLER_CORRECTION_LIMIT HANABI_OVERLAP HANABI_UPDATE
    HANABI_FREEZE HANABI_ADVANTAGE HANABI_ADVANTAGE_SCALE HANABI_LOSS_UNIT HANABI_RESAMPLE_FLAT
    """.split()  # noqa: SIM905 - as a list it would take a line for each
)
"""With the section "game": which games are played and what is optimised. Equal in a resumed run,
free in a fork.

Free in both is the rest. NPROC_PER_NODE, PER_DEVICE_TRAIN_BATCH_SIZE and DEEPSPEED are, since the
state is saved per parameter; sums are then taken in another order, so the next steps are equal but
for rounding. SAVE_STEPS and SAVE_TOTAL_LIMIT are, although they decide which earlier versions a
pool with HANABI_PARTNERS=earlier holds. """
PHASES = ("HANABI_EVAL_STEPS", "HANABI_EVAL_TASKS", "HANABI_EVAL_PATIENCE")
"""With HANABI_UPDATE=best_response they say who is trained, and are of the meaning, too."""
_PLACES = ("OUTPUT_DIR", "RESUME")
_SETTINGS_FILE = "settings.json"


def dataset_sha256(settings: Settings) -> str | None:
    """Return the hash of the dataset file: the same name may hold other tasks by now. None without
    DATASET.
    """
    if settings.dataset is None:
        return None
    return hashlib.sha256(Path(settings.dataset).read_bytes()).hexdigest()


def check_compatible(
    saved: Mapping[str, Any], settings: Settings, *, fork: bool = False
) -> list[str]:
    """Compare the settings of now with `settings.json` of the run that a checkpoint comes from.

    Returns one sentence for each setting that differs and may; a SettingsError has each that may
    not, with both values. For a fork, a new run from the checkpoint, only what the tensors depend
    on must be equal."""
    before, now = saved.get("settings"), settings_values(settings)
    if not isinstance(before, Mapping):
        raise SettingsError(
            f"{_SETTINGS_FILE} of the run to go on from holds no settings; restore it, or start "
            "anew."
        )
    # A run from before there was a setting had its default, which changes nothing.
    defaults = settings_values(Settings(device=settings.device, env=settings.env))
    known = variables(settings.env)
    phases = PHASES if settings.update == "best_response" else ()
    meaning = {*MEANING, *phases, *(one.env for one in known if one.section == "game")}.difference(
        WEIGHTS
    )
    before = {**{name: defaults[name] for name in meaning}, **UNRECORDED, **before}
    fixed = {*WEIGHTS, *(() if fork else meaning)}
    gone = {
        name: (before[name], kept)
        for name, kept in REMOVED.items()
        if not fork and before.get(name, kept) != kept
    }
    problems = [
        f"{name}: was {_shown(was)}, is {_shown(kept)} in every run now"
        for name, (was, kept) in gone.items()
    ]
    notes: list[str] = []
    for variable in known:
        name = variable.env
        if name in _PLACES or variable.secret:
            continue
        if name not in before:
            notes.append(f"{name}: not recorded by the earlier run; now {_shown(now[name])}")
        elif not _same(name, before[name], now[name]):
            line = f"{name}: was {_shown(before[name])}, is {_shown(now[name])}"
            (problems if name in fixed else notes).append(line)
    recorded = saved.get("dataset_sha256")
    current = None if recorded is None else dataset_sha256(settings)
    same_file = not any(line.startswith("DATASET:") for line in problems + notes)
    if same_file and current and current != recorded:
        line = (
            f"DATASET: the file's sha256 was {str(recorded)[:12]}…, is {current[:12]}…: its "
            "tasks are others"
        )
        (notes if fork else problems).append(line)
    if problems:
        only_meaning = all(line.split(":")[0] in {*meaning, *gone} for line in problems)
        fork_hint = (
            ", or start a new run from the checkpoint with OUTPUT_DIR=(a new folder)"
            if only_meaning
            else ""
        )
        listed = "".join(f"\n  {line}" for line in problems)
        raise SettingsError(
            f"RESUME={settings.resume}: these settings cannot change on the way:{listed}\n"
            f"Set them back{fork_hint}, or start anew without RESUME."
        )
    return notes


def read_saved_settings(run_folder: Path) -> dict[str, Any]:
    """Return the content of a run folder's `settings.json`; a RunFolderError where it is missing or
    no JSON object.
    """
    path = run_folder / _SETTINGS_FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path}: cannot be read ({error}), so nobody can tell whether the settings of now "
            "fit the checkpoint. "
            "Put it beside the checkpoint's folder again, or start anew without RESUME."
        ) from error
    if not isinstance(data, dict):
        raise RunFolderError(f"{path}: is not a JSON object; hanabi-grpo train writes one.")
    return data


def keep_settings(run_folder: Path, step: int) -> Path | None:
    """Copy `settings.json` to `settings-until-step-<step>.json` before a resumed run writes its
    own.

    A copy that is there stays: what was recorded after that step, under other settings, is moved
    aside. None where there is no `settings.json`."""
    kept = run_folder / f"settings-until-step-{step}.json"
    if (run_folder / _SETTINGS_FILE).exists() and not kept.exists():
        write_json_atomic(kept, read_saved_settings(run_folder))
    return kept if kept.exists() else None


def _same(name: str, before: Any, now: Any) -> bool:
    if before == now:
        return True
    # One folder may have two spellings.
    is_path = name in ("MODEL", "DATASET") and None not in (before, now)
    return is_path and Path(str(before)).resolve() == Path(str(now)).resolve()


def _shown(value: Any) -> str:
    return "unset" if value is None or value == "" else str(value)
