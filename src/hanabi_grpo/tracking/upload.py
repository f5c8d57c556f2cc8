"""A run folder that is sent afterwards: its trainer was killed, W&B could not be reached, or was not asked for."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs.checkpoints import find_checkpoint
from hanabi_grpo.runs.run_folder import lock_run_folder
from hanabi_grpo.settings import LoadedSettings, Settings, read_settings, variables
from hanabi_grpo.tracking.mirror import sync_line, unsent_folders
from hanabi_grpo.tracking.publisher import Publisher, Showcase
from hanabi_grpo.tracking.record import read_record
from hanabi_grpo.tracking.wandb_run import Unreachable, open_run, wandb_environ


def upload_run(
    run_folder: Path,
    loaded: LoadedSettings,
    say: Callable[[str], None],
    *,
    showcase: Showcase,
    evaluations: Sequence[Path] = (),
) -> bool:
    """Send what W&B does not have of a run: rows, sample games, and the newest checkpoint as an artifact.

    It goes on in the run's own run at W&B, so it may be called again.

    Args:
        run_folder: Of the run; nobody may be training in it.
        loaded: Of this shell: its WANDB_* and CKPT_* variables win over those of the run. WANDB_MODE=offline makes an
            offline run of it; else it is sent, whatever mode the run had.
        say: Receives lines for the terminal.
        showcase: Makes the tables, pages and pictures: `report.samples`.
        evaluations: Result files of `hanabi-grpo evaluate --out` that go into the artifact.

    Returns:
        Whether everything went up.

    Raises:
        SettingsError: There are no settings in the folder, W&B refuses, or does not answer.
        RunFolderError: A trainer works in the folder.
    """
    settings = upload_settings(run_folder, loaded)
    with lock_run_folder(run_folder):
        # Nobody waits for this command but the one who typed it.
        os.environ.update(wandb_environ(run_folder, {"WANDB_FINISH_TIMEOUT": "0", **os.environ}))
        record = read_record(run_folder)
        try:
            run = open_run(settings, run_folder, record, settings.wandb_mode)
        except Unreachable as error:
            raise SettingsError(f"W&B does not answer ({error}); try the same command again later.") from error
        say(f"run: {run.url or run.mode}; it has steps until {run.last_step}")
        since = run.last_step
        publisher = Publisher(run, record, settings, run_folder, from_step=since, showcase=showcase, trouble=say)
        publisher.rows()
        try:
            found = find_checkpoint(run_folder)
        except RunFolderError as error:
            say(str(error))
        else:
            step = found.manifest.step
            publisher.samples(step)
            folder = publisher.artifact(found.folder, step, settings.ckpt_artifact_aliases, evaluations)
            if folder is not None:
                made = next(one for one in publisher.record.artifacts if one.step == step and one.mode == run.mode)
                say(f"artifact: {made.name} ({', '.join(made.aliases)}), from {folder}")
        publisher.pictures()
        whole = publisher.finish(0)
    unsent = unsent_folders(run_folder)
    if whole and run.mode == "offline" and unsent:
        say(sync_line(unsent))
    return whole


def upload_settings(run_folder: Path, loaded: LoadedSettings) -> Settings:
    """Return the run's settings with what this shell says of tracking.

    Raises:
        SettingsError: The folder has no settings, or WANDB_MODE=disabled.
    """
    settings = read_settings(run_folder / "settings.json")
    given = {
        variable.field: getattr(loaded.settings, variable.field)
        for variable in variables(settings.env)
        if variable.section == "tracking" and not loaded.origins[variable.field].startswith("default")
    }
    mode = given.pop("wandb_mode", "online")
    if mode == "disabled":
        raise SettingsError(
            "WANDB_MODE=disabled: nothing is uploaded; set online, or offline to record it on this disk."
        )
    return settings.model_copy(update={**given, "wandb_mode": mode})
