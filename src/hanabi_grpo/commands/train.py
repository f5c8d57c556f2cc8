"""`hanabi-grpo train`: check everything, wait for the server, then become the trainer process."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from hanabi_grpo.client import waiting
from hanabi_grpo.client.rollout_client import each_server, server_name
from hanabi_grpo.commands.console import SECTIONS, TRAIN_SCRIPT, announce, make_console, server_command
from hanabi_grpo.commands.nodes import Nodes, check_nodes, read_nodes
from hanabi_grpo.rollout.datasets import check_rewards, mix_line, num_steps, played_setups, training_rows
from hanabi_grpo.rollout.vocabulary import boards_of
from hanabi_grpo.runs.checkpoints import recover_checkpoints
from hanabi_grpo.runs.cut_records import cut_records
from hanabi_grpo.runs.fingerprint import resolve_model
from hanabi_grpo.runs.resume import ResumePlan, plan_resume, resume_lines, write_resume
from hanabi_grpo.runs.resume_settings import dataset_sha256, keep_settings
from hanabi_grpo.runs.run_folder import (
    RESUME_COMMAND,
    leave_run_folder,
    lock_run_folder,
    make_run_folder,
    prepare_run_folder,
    write_json_atomic,
)
from hanabi_grpo.settings import LoadedSettings, Settings, batch_plan, settings_json, variables
from hanabi_grpo.settings.batch import plan_line
from hanabi_grpo.settings.board import tiny_model_command
from hanabi_grpo.settings.misspelt import check_names
from hanabi_grpo.settings.pass_through import check_options
from hanabi_grpo.settings.variables import is_secret, typed
from hanabi_grpo.tracking.used_checkpoints import KEY, fetch_used

_TRAINER = "hanabi_grpo.training.main"
_REMIND_SECONDS = 10.0
_POLL_SECONDS = 1.0


def train(extra_args: list[str]) -> None:
    """Check the settings, batch sizes, dataset, model and run folder; wait for the server; start the trainer.

    The trainer replaces this process, so that a signal from the terminal reaches it directly.

    Args:
        extra_args: ms-swift's own options, handed on.
    """
    check_names()
    check_options("trainer", extra_args)
    console = make_console()
    loaded = announce(console, SECTIONS["trainer"], "trainer")
    plan = batch_plan(loaded.settings)
    rows = training_rows(loaded.settings)
    check_rewards(loaded.settings, rows)
    steps = num_steps(loaded.settings, rows)
    boards = boards_of(played_setups(rows))
    resolve_model(loaded.settings.model, tiny_model_command(*boards))
    nodes = read_nodes()
    check_nodes(nodes, loaded.settings, plan)
    if nodes.joins and loaded.settings.output_dir is not None:
        _start(loaded, loaded.settings.output_dir / "settings.json", extra_args, nodes, console, "joining node 0")
        return
    with _run_folder(loaded.settings) as (folder, resume):
        loaded = replace(loaded, settings=loaded.settings.model_copy(update={"output_dir": folder}))
        console.print(plan_line(loaded.settings, plan, steps), soft_wrap=True)
        console.print(f"boards: {mix_line(rows, loaded.settings)}", soft_wrap=True, markup=False)
        console.print(f"run folder: {folder}", soft_wrap=True, markup=False)
        for line in resume_lines(resume, loaded.settings, steps):
            console.print(line, soft_wrap=True, markup=False)
        if resume is not None and resume.step >= steps:
            console.print(
                f"To go on: {resume_command(loaded, folder, extra_args, max_steps=2 * steps)}",
                soft_wrap=True,
                markup=False,
            )
            return
        used = fetch_used(
            loaded.settings,
            folder,
            is_resumed=resume is not None and resume.checkpoint is not None,
            say=lambda text: console.print(text, soft_wrap=True, markup=False),
        )
        for one in each_server(loaded.settings):
            wait_for_server(replace(loaded, settings=one), console)
        settings_path = folder / "settings.json"
        if resume is not None:
            _set_aside(resume, console)
        beside = {"dataset_sha256": dataset_sha256(loaded.settings), KEY: used}
        beside[RESUME_COMMAND] = resume_command(loaded, folder, extra_args)
        write_json_atomic(settings_path, {**settings_json(loaded), **beside})
        write_resume(resume, folder)
        # Inside the block: the trainer inherits the lock.
        _start(loaded, settings_path, extra_args, nodes, console, "server is ready")


def resume_command(
    loaded: LoadedSettings, folder: Path, extra_args: Sequence[str] = (), *, max_steps: int | None = None
) -> str:
    """Return the command that goes on with a run, as typed in this shell; keys are named, not shown.

    Args:
        loaded: The run's settings; what came from a file is read there again.
        folder: Of the run.
        extra_args: ms-swift's own options.
        max_steps: Steps of the whole run; None: as before.
    """
    given = {"OUTPUT_DIR": str(folder), "RESUME": "latest", **({"MAX_STEPS": str(max_steps)} if max_steps else {})}
    left_out = {*given, *(("NUM_TRAIN_EPOCHS",) if max_steps else ())}
    words = []
    for variable in variables(Settings):
        if loaded.origins[variable.field] == "shell" and variable.env not in left_out:
            secret = is_secret(Settings.model_fields[variable.field])
            value = typed(getattr(loaded.settings, variable.field))
            words.append(f"{variable.env}=" + (f'"${variable.env}"' if secret else shlex.quote(value)))
    passed = ((name, value) for name, (value, origin) in loaded.passed_through.items() if origin == "shell")
    words += [f"{name}={shlex.quote(value)}" for name, value in (*passed, *given.items())]
    here = Path(TRAIN_SCRIPT).is_file()
    start = ["bash", TRAIN_SCRIPT] if here else [shlex.quote(sys.executable), "-m", "hanabi_grpo.cli", "train"]
    return " ".join([*words, *start, *map(shlex.quote, extra_args)])


def trainer_argv(
    settings: Settings, settings_path: Path, extra_args: list[str], nodes: Nodes | None = None
) -> list[str]:
    """Return the trainer's command line: one process, or torchrun (by its module, so of this environment)."""
    launcher, nodes = [], nodes or Nodes()
    if settings.nproc_per_node > 1 or nodes.count > 1:
        processes = ["--nproc_per_node", str(settings.nproc_per_node)]
        launcher = ["-m", "torch.distributed.run", *nodes.launcher_options, *processes]
    return [sys.executable, *launcher, "-m", _TRAINER, "--settings", str(settings_path), *extra_args]


def trainer_environ(loaded: LoadedSettings) -> dict[str, str]:
    """Return the trainer's environment; the key travels here because no file may hold it."""
    key = loaded.settings.api_key
    return {**os.environ, **({"HANABI_API_KEY": key.get_secret_value()} if key else {})}


def wait_for_server(
    loaded: LoadedSettings, console: Console, *, remind: float = _REMIND_SECONDS, poll: float = _POLL_SECONDS
) -> None:
    """Return once the server answers that it is healthy; remind of the command that starts it meanwhile.

    Where VLLM_SERVER_HOST lists several, it is the first one, which commands that only play use; they say so.

    Args:
        loaded: VLLM_SERVER_HOST, VLLM_SERVER_PORT, HANABI_SERVER_TIMEOUT and the key.
        console: Where reminders go.
        remind: Seconds between reminders.
        poll: Seconds between questions.

    Raises:
        ServerError: The time is up, or the server refuses the key.
    """
    servers = each_server(loaded.settings)
    if len(servers) > 1:
        first = f"VLLM_SERVER_HOST lists {len(servers)} servers; this command uses the first, {server_name(servers[0])}"
        console.print(first, soft_wrap=True, markup=False)
    waiting.wait_for_server(
        servers[0],
        lambda text: console.print(text, soft_wrap=True, markup=False),
        server_command=server_command(replace(loaded, settings=servers[0])),
        remind=remind,
        poll=poll,
    )


def _start(
    loaded: LoadedSettings, settings_path: Path, extra_args: list[str], nodes: Nodes, console: Console, why: str
) -> None:
    command = trainer_argv(loaded.settings, settings_path, extra_args, nodes)
    console.print(f"{why}; starting {shlex.join(command)}", soft_wrap=True, markup=False)
    sys.stdout.flush()
    os.execvpe(command[0], command, trainer_environ(loaded))


@contextmanager
def _run_folder(settings: Settings) -> Iterator[tuple[Path, ResumePlan | None]]:
    """Give the run folder, locked, and what to go on from; an unused new folder is removed again."""
    resume = plan_resume(settings)
    fresh = resume is None or resume.fork
    if resume is None:
        folder = prepare_run_folder(settings)
    else:
        folder = resume.run_folder
        make_run_folder(folder)
    settled = settings.model_copy(update={"output_dir": folder})
    with lock_run_folder(folder):
        try:
            # Again: until the lock was taken, another trainer may have worked here.
            again = plan_resume(settled)
            if resume is None or again is None or again.checkpoint != resume.checkpoint:
                resume = again
            if fresh:
                prepare_run_folder(settled)
            else:
                recover_checkpoints(folder)
            if resume is not None and resume.checkpoint is not None and not resume.checkpoint.exists():
                resume = replace(resume, checkpoint=folder / f"checkpoint-{resume.step}")
            yield folder, resume
        finally:
            leave_run_folder(folder)


def _set_aside(resume: ResumePlan, console: Console) -> None:
    cut = cut_records(resume.run_folder, resume.step)
    if cut.rows or cut.episodes:
        console.print(
            f"records after step {resume.step} moved aside: {cut.rows} rows to metrics.discarded.jsonl, "
            f"{cut.episodes} files to episodes/discarded/",
            soft_wrap=True,
        )
    if kept := keep_settings(resume.run_folder, resume.step):
        console.print(f"settings until here: {kept}", soft_wrap=True, markup=False)
