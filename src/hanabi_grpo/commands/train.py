"""`hanabi-grpo train`: check everything, wait for the server, then become the trainer process."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import typer

from hanabi_grpo.client.curves import curves_line, opponent_places, validation_setups
from hanabi_grpo.client.fleet import each_server
from hanabi_grpo.client.waiting import wait_for_first_server
from hanabi_grpo.commands.console import announce, make_console
from hanabi_grpo.commands.dry_run import AsJson, AsYaml, DryRun, PrintConfig, show_start
from hanabi_grpo.commands.nodes import Nodes, is_one_process, trainer_argv
from hanabi_grpo.commands.training_plan import plan_training
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.logs import set_up_logging
from hanabi_grpo.rollout.datasets import mix_line, named_setups, played_setups, training_rows
from hanabi_grpo.rollout.vocabulary import boards_of
from hanabi_grpo.runs.checkpoints import recover_checkpoints
from hanabi_grpo.runs.fingerprint import resolve_model
from hanabi_grpo.runs.history import cut_records
from hanabi_grpo.runs.restored_run import (
    is_restored,
    names_artifact,
    restore_run,
    restored_folder,
)
from hanabi_grpo.runs.resume import LATEST, ResumePlan, plan_resume, resume_lines, write_resume
from hanabi_grpo.runs.resume_settings import dataset_sha256, keep_settings
from hanabi_grpo.runs.run_folder import (
    leave_run_folder,
    lock_run_folder,
    make_run_folder,
    prepare_run_folder,
    write_json_atomic,
    writing,
)
from hanabi_grpo.runs.start_record import recorded_games, start_record
from hanabi_grpo.runs.validation import cut_validations, lacks_validation
from hanabi_grpo.settings import LoadedSettings, Settings, read_settings, settings_json
from hanabi_grpo.settings.base_models import base_models
from hanabi_grpo.settings.defaults import tiny_model_command
from hanabi_grpo.settings.gpus import check_enough_gpus
from hanabi_grpo.settings.load import is_made_by_server
from hanabi_grpo.settings.names import check_names
from hanabi_grpo.settings.pass_through import check_options
from hanabi_grpo.settings.refs import parse_checkpoint
from hanabi_grpo.settings.saved import RESUME_COMMAND, SETTINGS_FILE
from hanabi_grpo.settings.shell import TRAIN_SCRIPT, shell_assignments, start_words
from hanabi_grpo.settings.sources import TYPED
from hanabi_grpo.terminal import sayer
from hanabi_grpo.tracking.checkpoints import local_folder
from hanabi_grpo.tracking.mirror import Mirror
from hanabi_grpo.tracking.record import is_unfinished
from hanabi_grpo.tracking.used_checkpoints import KEY, fetch_used
from hanabi_grpo.training import main as trainer

_POLL_SECONDS = 0.25
"""Time between two health checks of a server, in which the trainer's modules are imported."""


def train(
    ctx: typer.Context,
    print_config: PrintConfig = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    as_yaml: AsYaml = False,
) -> None:
    """Wait for the rollout server, then train (terminal 2).

    Other options are passed through to ms-swift; see docs/pass-through.md.

    Environment: MODEL, DATASET, OUTPUT_DIR, RESUME, MAX_STEPS, VLLM_SERVER_HOST, VLLM_SERVER_PORT,
    HANABI_API_KEY, NPROC_PER_NODE, DEEPSPEED, REPORT_TO, CUDA_VISIBLE_DEVICES and all others that
    --print-config shows.
    """
    extra_args = ctx.args
    check_names()
    check_options("trainer", extra_args)
    if print_config or dry_run or as_json or as_yaml:
        show_start(
            "trainer",
            extra_args,
            print_config=print_config,
            dry_run=dry_run,
            as_json=as_json,
            as_yaml=as_yaml,
        )
        return
    console = make_console()
    say = sayer(console)
    loaded = announce(console, "trainer")
    check_enough_gpus(loaded, "trainer")
    rows = training_rows(loaded.settings)
    plan = plan_training(loaded.settings, rows)
    make_tiny_model = tiny_model_command(
        *boards_of([*played_setups(rows), *validation_setups(loaded.settings)])
    )
    server_makes_model = is_made_by_server(loaded)
    if server_makes_model:
        say(f"MODEL={loaded.settings.model}: not built yet; the rollout script builds it")
    else:
        for name in base_models(loaded.settings):
            resolve_model(name, make_tiny_model)
    if plan.nodes.rank and loaded.settings.output_dir is not None:
        say("joining node 0")
        settings_path = loaded.settings.output_dir / "settings.json"
        _become_trainer(loaded, settings_path, extra_args, plan.nodes, say)
        return
    _restore(loaded.settings, say)
    with _run_folder(loaded.settings) as (folder, resume):
        loaded = replace(loaded, settings=loaded.settings.model_copy(update={"output_dir": folder}))
        say(plan.line(loaded.settings))
        say(f"boards: {mix_line(rows)}")
        if plan.curves:
            say(curves_line(loaded.settings, plan.curves))
        say(f"run folder: {folder}")
        games = recorded_games(named_setups(rows))
        for line in resume_lines(
            resume, loaded.settings, plan.num_steps, games=games, options=extra_args
        ):
            say(line)
        if resume is not None and _has_ended(resume, loaded.settings, plan.num_steps, say):
            _send_rest(loaded.settings, folder, resume.step, say)
            longer = resume_command(loaded, folder, extra_args, max_steps=2 * plan.num_steps)
            say(f"To continue: {longer}")
            return
        is_resumed = resume is not None and resume.checkpoint is not None
        used = fetch_used(
            loaded.settings,
            folder,
            opponents=opponent_places(plan.curves),
            is_resumed=is_resumed,
            say=say,
        )
        _wait_for_all_servers(loaded, say, plan.nodes)
        if server_makes_model:
            resolve_model(loaded.settings.model, make_tiny_model)
        document = {
            **settings_json(loaded),
            "dataset_sha256": dataset_sha256(loaded.settings),
            **start_record(games, extra_args),
            KEY: used,
            RESUME_COMMAND: resume_command(loaded, folder, extra_args),
        }
        settings_path = folder / "settings.json"
        with writing(partial(_unwritable, folder)):
            if resume is not None:
                _set_later_records_aside(resume, say)
            # First, so that a fork that is killed here still knows what it begins with.
            write_resume(resume, folder)
            write_json_atomic(settings_path, document)
        # Inside the block: the trainer inherits the lock.
        _become_trainer(loaded, settings_path, extra_args, plan.nodes, say)


def _has_ended(
    resume: ResumePlan, settings: Settings, num_steps: int, say: Callable[[str], None]
) -> bool:
    """Tell whether a resumed run has nothing left to do.

    Its last version is validated after its checkpoint was saved, so that can be missing.
    """
    if resume.step < num_steps:
        return False
    if resume.step == num_steps and lacks_validation(
        resume.run_folder, num_steps, settings.eval_steps
    ):
        say(f"step {num_steps} of {num_steps} is done, but its version was not validated: now")
        return False
    say(f"nothing left to train: step {resume.step} of {num_steps} is done.")
    return True


def _send_rest(settings: Settings, folder: Path, step: int, say: Callable[[str], None]) -> None:
    """Send what W&B lacks of a run that has ended, because its last processes were killed.

    Args:
        settings: The settings; without W&B, nothing is sent.
        folder: The run folder.
        step: The last step of the run.
        say: Prints a line.
    """
    is_off = "wandb" not in settings.report_to or settings.wandb_mode == "disabled"
    if is_off or not is_unfinished(folder):
        return
    recorded_mode = read_settings(folder / SETTINGS_FILE).wandb_mode
    if recorded_mode != settings.wandb_mode:
        # The mirror reads the run's own settings.
        say(
            "W&B may lack the end of this run. To send it, run this command with the run's "
            f"WANDB_MODE={recorded_mode}."
        )
        return
    say("W&B may lack the end of this run: sending it now")
    set_up_logging(file=folder / "train.log")
    try:
        mirror = Mirror(folder, step)
    except (SettingsError, OSError) as error:
        say(f"W&B: {error}")
        return
    mirror.close(0)


def _wait_for_all_servers(loaded: LoadedSettings, say: Callable[[str], None], nodes: Nodes) -> None:
    """Wait for every server, and import the trainer's modules meanwhile.

    Starting a server takes about as long as these imports.
    """
    imports: Iterator[object] = iter(())
    if is_one_process(loaded.settings, nodes):
        imports = trainer.import_parts()

    def import_next() -> None:
        next(imports, None)

    for settings in each_server(loaded.settings):
        wait_for_first_server(
            replace(loaded, settings=settings), say, poll=_POLL_SECONDS, look=import_next
        )


def _restore(settings: Settings, say: Callable[[str], None]) -> None:
    """Restore the run folder if RESUME names an artifact that has not been restored yet.

    Raises:
        SettingsError: The artifact cannot be fetched.
        RunFolderError: No run can be resumed from it, or the folder cannot be created.
    """
    resume = settings.resume
    if resume is None or resume == LATEST or not names_artifact(resume):
        return
    folder = restored_folder(settings)
    if is_restored(folder, resume):
        return
    artifact = local_folder(parse_checkpoint(resume).place)
    manifest = restore_run(artifact, folder, resume=resume)
    say(f"RESUME={resume}: restored into {folder}, at the checkpoint of step {manifest.step}")


def _unwritable(folder: Path, error: OSError) -> str:
    """Return the message about a run folder that cannot be written."""
    return (
        f"{error.filename or folder}: cannot be written ({error.strerror}). Free disk space or "
        f"make {folder} writable, and run the same command again; no checkpoint was changed."
    )


def _set_later_records_aside(resume: ResumePlan, say: Callable[[str], None]) -> None:
    """Move records from after the resumed step aside, and keep the earlier settings."""
    num_rows, num_files = cut_records(resume.run_folder, resume.step)
    if num_rows or num_files:
        say(
            f"records after step {resume.step} moved aside: {num_rows} rows to "
            f"metrics.discarded.jsonl, {num_files} files to episodes/discarded/"
        )
    cut_validations(resume.run_folder, resume.step)
    kept = keep_settings(resume.run_folder, resume.step)
    if kept:
        say(f"earlier settings kept in {kept}")


def resume_command(
    loaded: LoadedSettings, folder: Path, extra_args: list[str], *, max_steps: int | None = None
) -> str:
    """Return the command that continues a run, as typed in this shell.

    API keys are referenced by name, never shown. Values from a file are read from it again.

    Args:
        loaded: The settings.
        folder: The run folder.
        extra_args: Options for ms-swift.
        max_steps: Steps of the whole run; None: unchanged.
    """
    changes = {"OUTPUT_DIR": str(folder), "RESUME": "latest"}
    without = list(changes)
    if max_steps:
        changes["MAX_STEPS"] = str(max_steps)
        without += ["MAX_STEPS", "NUM_TRAIN_EPOCHS"]
    assignments = shell_assignments(loaded, without=without)
    for name, (value, origin) in loaded.passed_through.items():
        if origin in TYPED:
            assignments.append(f"{name}={shlex.quote(value)}")
    for name, value in changes.items():
        assignments.append(f"{name}={shlex.quote(value)}")
    start = start_words(TRAIN_SCRIPT, "train")
    options = [shlex.quote(arg) for arg in extra_args]
    return " ".join([*assignments, *start, *options])


def _become_trainer(
    loaded: LoadedSettings,
    settings_path: Path,
    extra_args: list[str],
    nodes: Nodes,
    say: Callable[[str], None],
) -> None:
    """Turn this process into the trainer, so that a signal from the terminal reaches it directly.

    Args:
        loaded: The settings.
        settings_path: The file from which the trainer reads them.
        extra_args: Options for ms-swift.
        nodes: The machines of the trainer.
        say: Prints a line.
    """
    command = trainer_argv(loaded.settings, settings_path, extra_args, nodes)
    say(f"starting {shlex.join(command)}")
    sys.stdout.flush()
    # The key is passed in a variable because it must not be written to a file.
    api_key = loaded.settings.api_key
    if api_key:
        os.environ["HANABI_API_KEY"] = api_key.get_secret_value()
    if is_one_process(loaded.settings, nodes):
        trainer_args = command[command.index("--settings") :]
        raise typer.Exit(trainer.main(trainer_args))
    os.execvp(command[0], command)


@contextmanager
def _run_folder(settings: Settings) -> Iterator[tuple[Path, ResumePlan | None]]:
    """Lock the run folder while the block runs; a new folder that stays unused is removed.

    Yields:
        The run folder, and the plan of the resume, if any.
    """
    resume = plan_resume(settings)
    is_new = resume is None or resume.needs_fresh_folder
    if resume is None:
        folder = prepare_run_folder(settings)
    else:
        folder = resume.run_folder
        make_run_folder(folder)
    settled = settings.model_copy(update={"output_dir": folder})
    with lock_run_folder(folder):
        try:
            # Another trainer may have used the folder before the lock was taken.
            newest = plan_resume(settled)
            if resume is None or newest is None or newest.checkpoint != resume.checkpoint:
                resume = newest
            if is_new:
                prepare_run_folder(settled)
            else:
                recover_checkpoints(folder)
            yield folder, _with_existing_checkpoint(resume, folder)
        finally:
            leave_run_folder(folder)


def _with_existing_checkpoint(resume: ResumePlan | None, folder: Path) -> ResumePlan | None:
    """Return the plan with the name that the checkpoint has after `recover_checkpoints`."""
    if resume is None or resume.checkpoint is None or resume.checkpoint.exists():
        return resume
    return replace(resume, checkpoint=folder / f"checkpoint-{resume.step}")
