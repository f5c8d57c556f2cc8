"""`hanabi-grpo upload`: send a run folder to W&B after its training."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.commands.console import interruptible, make_console, sayer
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.run_folder import run_home
from hanabi_grpo.settings import load_settings


def upload(
    run: Annotated[Path, typer.Argument(help="Run folder (OUTPUT_DIR); nobody may be training in it.")],
    evaluation: Annotated[
        list[Path] | None, typer.Option(help="Result of evaluate --out that goes into the artifact; may be repeated.")
    ] = None,
) -> None:
    """Send a run to W&B afterwards: what it does not have yet, and the newest adapters; may be repeated.

    WANDB_PROJECT, WANDB_ENTITY, WANDB_NAME, CKPT_ARTIFACT_NAME and CKPT_ARTIFACT_ALIASES of this shell win over those
    of the run; WANDB_MODE=offline records on this disk. Exits with 1 when not everything went up.
    """
    from hanabi_grpo.report import samples
    from hanabi_grpo.runs.evaluation_result import read_result
    from hanabi_grpo.tracking.senders import upload_run

    run = run_home(run)
    if not (run / "settings.json").is_file():
        raise SettingsError(f"{run}: no settings.json in it; give the folder of a run (OUTPUT_DIR).")
    for path in evaluation or []:
        read_result(path)
    say = sayer(make_console())
    again = f"hanabi-grpo upload {shlex.quote(str(run))}"
    with interruptible(lambda: f"Stopped; what went up stays there. To go on: {again}"):
        if not upload_run(run, load_settings(), say, showcase=samples, evaluations=evaluation or []):
            say(f"Not everything went up. To try again: {again}")
            raise typer.Exit(1)
