"""Which settings a resumed run may change, and which it must keep.

Each setting declares what it affects (`settings.affects`). A resumed run keeps the settings that
change its games or the objective; a fork, a new run from a checkpoint, keeps those that the saved
tensors depend on. NPROC_PER_NODE, PER_DEVICE_TRAIN_BATCH_SIZE and DEEPSPEED may change in both,
because the state is saved per parameter; sums are then computed in a different order, so the next
steps differ by rounding.

A resumed run also keeps what its settings do not say: the content of the files that its games read,
and the options for ms-swift (`start_record`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.files import MAX_DATASET_BYTES, MAX_DOCUMENT_BYTES, read_bytes, write_text_atomic
from hanabi_grpo.runs.start_record import (
    RecordedGame,
    content_differences,
    option_differences,
    rule_differences,
)
from hanabi_grpo.settings import Affects, Settings, settings_values, variables
from hanabi_grpo.settings.saved import SETTINGS_FILE, VALUES, read_settings_document

_PATHS = ("MODEL", "DATASET")
"""Settings whose value may be a path: the same folder can be written in two ways."""
_SHOWN_DIGITS = 12
"""Digits of a hash in a message."""


@dataclass(slots=True, kw_only=True)
class _Differences:
    """Differences from the run that a checkpoint comes from, a sentence for each setting."""

    allowed: list[str] = field(default_factory=list)
    """Differences that are allowed."""
    refused: list[str] = field(default_factory=list)
    """Differences that are not."""
    hits_weights: bool = False
    """Whether a refused difference does not fit the saved tensors, so that a fork does not help."""
    is_other_game: bool = False
    """Whether a difference is one of the settings that say what is played."""

    def add(self, lines: Sequence[str], *, fork: bool) -> None:
        """Add differences that only a fork may have."""
        if fork:
            self.allowed += lines
        else:
            self.refused += lines


def dataset_sha256(settings: Settings) -> str | None:
    """Return the hash of the dataset file, None without DATASET.

    A file with the same name may hold different tasks now.
    """
    if settings.dataset is None:
        return None
    content = read_bytes(Path(settings.dataset), MAX_DATASET_BYTES)
    return hashlib.sha256(content).hexdigest()


def check_compatible(
    saved: Mapping[str, Any],
    settings: Settings,
    *,
    fork: bool = False,
    games: Sequence[RecordedGame] | None = None,
    options: Sequence[str] | None = None,
) -> list[str]:
    """Compare the current settings with those of the run that a checkpoint comes from.

    Args:
        saved: The result of `read_saved_settings`.
        settings: The current settings.
        fork: Whether this is a new run from the checkpoint, for which only the settings that the
            tensors depend on must be equal.
        games: The games that are trained on now; None: unknown, so they are not compared.
        options: The options for ms-swift now; None: unknown, so they are not compared.

    Returns:
        One sentence for each setting that differs and is allowed to.

    Raises:
        SettingsError: Settings differ that must not; the message names each with both values.
        RunFolderError: The recorded games or options cannot be read.
    """
    before = saved.get(VALUES)
    if not isinstance(before, Mapping):
        raise SettingsError(
            f"{SETTINGS_FILE} of the run to resume holds no settings; restore it, or start a new "
            "run."
        )
    differences = _compare_values(before, settings, fork=fork)
    _compare_dataset(saved.get("dataset_sha256"), before, settings, differences, fork=fork)
    if games is not None:
        changed_content = content_differences(saved, games)
        differences.add(changed_content, fork=fork)
        if not changed_content and not differences.is_other_game:
            differences.add(rule_differences(saved, games), fork=fork)
    if options is not None:
        differences.add(option_differences(saved, options), fork=fork)
    if differences.refused:
        ways_out = "Set them back"
        if not differences.hits_weights:
            ways_out += ", or start a new run from the checkpoint with OUTPUT_DIR=(a new folder)"
        listed = ""
        for line in differences.refused:
            listed += f"\n  {line}"
        raise SettingsError(
            f"RESUME={settings.resume}: these settings cannot change in the middle of a "
            f"run:{listed}\n{ways_out}, or start over without RESUME."
        )
    return differences.allowed


def check_new_teacher(saved: Mapping[str, Any], settings: Settings, step: int) -> None:
    """Refuse a new teacher whose weight would be 0 from the first step on.

    The weight falls from the first step of the run whose checkpoint is continued.

    Args:
        saved: The result of `read_saved_settings`.
        settings: The current settings.
        step: Step of the checkpoint.

    Raises:
        SettingsError: The teacher would teach nothing.
    """
    before = saved.get(VALUES)
    had_teacher = isinstance(before, Mapping) and bool(before.get("HANABI_TEACHER"))
    if not settings.teacher or had_teacher or not settings.teacher_steps:
        return
    if settings.teacher_steps <= step:
        raise SettingsError(
            f"RESUME={settings.resume}: HANABI_TEACHER is new, but with HANABI_TEACHER_STEPS="
            f"{settings.teacher_steps} its weight is 0 from step {settings.teacher_steps} on, and "
            f"the run continues at step {step}: steps count from the start of the run that it "
            f"continues. Set HANABI_TEACHER_STEPS to more than {step}, or 0 for a constant weight."
        )


def read_saved_settings(run_folder: Path) -> dict[str, Any]:
    """Return the content of a run folder's `settings.json`.

    Raises:
        RunFolderError: The file is missing, or is not a JSON object.
    """
    path = run_folder / SETTINGS_FILE
    try:
        return read_settings_document(path)
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path}: cannot be read ({error}), so the current settings cannot be compared with "
            "the checkpoint's. Restore the file that hanabi-grpo train wrote next to the "
            "checkpoint's folder, or start over without RESUME."
        ) from error


def keep_settings(run_folder: Path, step: int) -> Path | None:
    """Copy `settings.json` to `settings-until-step-<step>.json`.

    A resumed run does so before it writes its own settings. An existing copy stays: rows that were
    recorded after that step, with other settings, are moved aside.

    Returns:
        The copy; None if there is no `settings.json`.
    """
    current = run_folder / SETTINGS_FILE
    copy = run_folder / f"settings-until-step-{step}.json"
    if copy.exists():
        return copy
    if not current.exists():
        return None
    # An invalid settings file is refused, not copied.
    read_saved_settings(run_folder)
    write_text_atomic(copy, read_bytes(current, MAX_DOCUMENT_BYTES))
    return copy


def _compare_values(before: Mapping[str, Any], settings: Settings, *, fork: bool) -> _Differences:
    """Compare every setting, but not the dataset's content.

    Args:
        before: Values of the earlier run, by variable.
        settings: The current settings.
        fork: Whether this is a new run from the checkpoint.
    """
    now = settings_values(settings)
    # A run from before a setting existed behaved as with its default.
    defaults = settings_values(Settings(device=settings.device, env=settings.env))
    differences = _Differences()
    for variable in variables(settings.env):
        name = variable.env
        affects = variable.affects_in(settings)
        if variable.secret or not affects.is_told_on_resume:
            continue
        is_decisive = affects.is_fixed_in_resume and not affects.is_fixed_in_fork
        if name not in before and not is_decisive:
            if not _same(name, defaults[name], now[name]):
                differences.allowed.append(
                    f"{name}: not recorded by the earlier run; now {_shown(now[name])}"
                )
            continue
        value_before = before.get(name, defaults[name])
        if _same(name, value_before, now[name]):
            continue
        line = f"{name}: was {_shown(value_before)}, is {_shown(now[name])}"
        if variable.section == "game" or name == "DATASET":
            differences.is_other_game = True
        is_fixed = affects.is_fixed_in_fork if fork else affects.is_fixed_in_resume
        if not is_fixed:
            differences.allowed.append(line)
            continue
        differences.refused.append(line)
        if affects is Affects.WEIGHTS:
            differences.hits_weights = True
    return differences


def _compare_dataset(
    recorded: object,
    before: Mapping[str, Any],
    settings: Settings,
    differences: _Differences,
    *,
    fork: bool,
) -> None:
    """Add a difference if the dataset file has the same name but different content.

    Args:
        recorded: The file's sha256 when the earlier run began; None without DATASET.
        before: Values of the earlier run, by variable.
        settings: The current settings.
        differences: The differences so far, to which this one is added.
        fork: Whether this is a new run from the checkpoint.
    """
    if recorded is None or not _same("DATASET", before.get("DATASET"), settings.dataset):
        return
    current = dataset_sha256(settings)
    if current is None or current == recorded:
        return
    line = (
        f"DATASET: the file's sha256 was {str(recorded)[:_SHOWN_DIGITS]}…, is "
        f"{current[:_SHOWN_DIGITS]}…: its tasks have changed"
    )
    differences.add([line], fork=fork)
    differences.is_other_game = True


def _same(name: str, before: Any, now: Any) -> bool:
    """Tell whether a setting has the same value as before.

    Args:
        name: The variable.
        before: Its value in the earlier run.
        now: Its current value.
    """
    if before == now:
        return True
    if name not in _PATHS or before is None or now is None:
        return False
    return Path(str(before)).resolve() == Path(str(now)).resolve()


def _shown(value: Any) -> str:
    return "unset" if value is None or value == "" else str(value)
