"""`hanabi-grpo train`: check everything, wait for the server, then become the trainer process."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console

from hanabi_grpo.client import waiting
from hanabi_grpo.client.fleet import each_server, server_name
from hanabi_grpo.commands.console import (
    TRAIN_SCRIPT,
    announce,
    make_console,
    sayer,
    server_command,
    typed_words,
)
from hanabi_grpo.commands.dry_run import AsJson, DryRun, PrintConfig, look
from hanabi_grpo.commands.nodes import Nodes, check_nodes, is_one_process, read_nodes, trainer_argv
from hanabi_grpo.rollout.datasets import (
    check_payoffs,
    mix_line,
    num_steps,
    played_setups,
    training_rows,
)
from hanabi_grpo.rollout.vocabulary import boards_of
from hanabi_grpo.runs.checkpoints import recover_checkpoints
from hanabi_grpo.runs.fingerprint import resolve_model
from hanabi_grpo.runs.history import cut_records
from hanabi_grpo.runs.resume import ResumePlan, plan_resume, resume_lines, write_resume
from hanabi_grpo.runs.resume_settings import dataset_sha256, keep_settings
from hanabi_grpo.runs.run_folder import (
    leave_run_folder,
    lock_run_folder,
    make_run_folder,
    prepare_run_folder,
    write_json_atomic,
)
from hanabi_grpo.settings import LoadedSettings, Settings, batch_plan, settings_json
from hanabi_grpo.settings.defaults import tiny_model_command
from hanabi_grpo.settings.names import check_names
from hanabi_grpo.settings.pass_through import check_options
from hanabi_grpo.settings.saved import RESUME_COMMAND
from hanabi_grpo.settings.steps import plan_line
from hanabi_grpo.tracking.used_checkpoints import KEY, fetch_used
from hanabi_grpo.training import main as trainer


def train(
    ctx: typer.Context,
    print_config: PrintConfig = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Wait for the server, then train (terminal 2). Further options go to ms-swift, see
    docs/pass-through.md.

    Environment: MODEL, DATASET, OUTPUT_DIR, RESUME, MAX_STEPS, VLLM_SERVER_HOST, VLLM_SERVER_PORT,
    HANABI_API_KEY,
    NPROC_PER_NODE, DEEPSPEED, REPORT_TO, CUDA_VISIBLE_DEVICES and all others that --print-config
    shows."""
    extra_args = ctx.args
    check_names()
    check_options("trainer", extra_args)
    if print_config or dry_run or as_json:
        look("trainer", extra_args, print_config=print_config, dry_run=dry_run, as_json=as_json)
        return
    console = make_console()
    say = sayer(console)
    loaded = announce(console, "trainer")
    plan = batch_plan(loaded.settings)
    rows = training_rows(loaded.settings)
    check_payoffs(loaded.settings, played_setups(rows))
    steps = num_steps(loaded.settings, rows)
    boards = boards_of(played_setups(rows))
    resolve_model(loaded.settings.model, tiny_model_command(*boards))
    nodes = read_nodes()
    check_nodes(nodes, loaded.settings, plan)
    if nodes.rank and loaded.settings.output_dir is not None:
        say("joining node 0")
        _become_trainer(
            loaded, loaded.settings.output_dir / "settings.json", extra_args, nodes, say
        )
        return
    with _run_folder(loaded.settings) as (folder, resume):
        loaded = replace(loaded, settings=loaded.settings.model_copy(update={"output_dir": folder}))
        say(plan_line(loaded.settings, plan, steps))
        say(f"boards: {mix_line(rows)}")
        say(f"run folder: {folder}")
        for line in resume_lines(resume, loaded.settings, steps):
            say(line)
        if resume is not None and resume.step >= steps:
            say(f"To go on: {resume_command(loaded, folder, extra_args, max_steps=2 * steps)}")
            return
        is_resumed = resume is not None and resume.checkpoint is not None
        used = fetch_used(loaded.settings, folder, is_resumed=is_resumed, say=say)
        # A server's start takes as long as the trainer's imports do.
        parts = trainer.import_parts() if is_one_process(loaded.settings, nodes) else iter(())
        for one in each_server(loaded.settings):
            wait_for_server(
                replace(loaded, settings=one), console, poll=0.25, look=lambda: next(parts, None)
            )
        if resume is not None:
            moved, files = cut_records(resume.run_folder, resume.step)
            if moved or files:
                say(
                    f"records after step {resume.step} moved aside: {moved} rows to "
                    f"metrics.discarded.jsonl, {files} "
                    "files to episodes/discarded/"
                )
            if kept := keep_settings(resume.run_folder, resume.step):
                say(f"settings until here: {kept}")
        document = {
            **settings_json(loaded),
            "dataset_sha256": dataset_sha256(loaded.settings),
            KEY: used,
            RESUME_COMMAND: resume_command(loaded, folder, extra_args),
        }
        write_json_atomic(folder / "settings.json", document)
        write_resume(resume, folder)
        # Inside the block: the trainer inherits the lock.
        _become_trainer(loaded, folder / "settings.json", extra_args, nodes, say)


def resume_command(
    loaded: LoadedSettings, folder: Path, extra_args: list[str], *, max_steps: int | None = None
) -> str:
    """Return the command that goes on with a run, as typed in this shell; keys are named, not
    shown.

    What came from a file is read there again. `max_steps` are those of the whole run; None: as
    before."""
    given = {
        "OUTPUT_DIR": str(folder),
        "RESUME": "latest",
        **({"MAX_STEPS": str(max_steps)} if max_steps else {}),
    }
    words = typed_words(loaded, without={*given, *(("NUM_TRAIN_EPOCHS",) if max_steps else ())})
    passed = (
        (name, value)
        for name, (value, origin) in loaded.passed_through.items()
        if origin == "shell"
    )
    words += [f"{name}={shlex.quote(value)}" for name, value in (*passed, *given.items())]
    here = Path(TRAIN_SCRIPT).is_file()
    start = (
        ["bash", TRAIN_SCRIPT]
        if here
        else [shlex.quote(sys.executable), "-m", "hanabi_grpo.cli", "train"]
    )
    return " ".join([*words, *start, *map(shlex.quote, extra_args)])


def wait_for_server(
    loaded: LoadedSettings,
    console: Console,
    *,
    remind: float = 10.0,
    poll: float = 1.0,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Return once the server answers that it is healthy; see `waiting.wait_for_server`.

    Where VLLM_SERVER_HOST lists several, it is the first one, which commands that only play use;
    they say so."""
    servers, say = each_server(loaded.settings), sayer(console)
    if len(servers) > 1:
        say(
            f"VLLM_SERVER_HOST lists {len(servers)} servers; this command uses the first, "
            f"{server_name(servers[0])}"
        )
    command = server_command(replace(loaded, settings=servers[0]))
    waiting.wait_for_server(
        servers[0], say, server_command=command, remind=remind, poll=poll, look=look
    )


def _become_trainer(
    loaded: LoadedSettings,
    settings_path: Path,
    extra_args: list[str],
    nodes: Nodes,
    say: Callable[[str], None],
) -> None:
    # This process becomes the trainer, so that a signal from the terminal reaches it directly.
    command = trainer_argv(loaded.settings, settings_path, extra_args, nodes)
    say(f"starting {shlex.join(command)}")
    sys.stdout.flush()
    # The key travels here because no file may hold it.
    if key := loaded.settings.api_key:
        os.environ["HANABI_API_KEY"] = key.get_secret_value()
    if is_one_process(loaded.settings, nodes):
        raise typer.Exit(trainer.main(command[command.index("--settings") :]))
    os.execvp(command[0], command)


@contextmanager
def _run_folder(settings: Settings) -> Iterator[tuple[Path, ResumePlan | None]]:
    """Give the run folder, locked, and what to go on from; an unused new folder is removed
    again.
    """
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
            if (
                resume is not None
                and resume.checkpoint is not None
                and not resume.checkpoint.exists()
            ):
                resume = replace(resume, checkpoint=folder / f"checkpoint-{resume.step}")
            yield folder, resume
        finally:
            leave_run_folder(folder)
