"""`hanabi-grpo export`: folders that are ready for a hub."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.commands.console import interruptible, make_console, sayer
from hanabi_grpo.errors import SettingsError


def export(
    source: Annotated[
        str,
        typer.Argument(
            help="Run folder, RUN@best, checkpoint-N, artifacts/step_N, "
            "wandb:entity/project/name:alias or hf:org/repo. Append :player_1 to select one "
            "adapter."
        ),
    ],
    out: Annotated[Path, typer.Option(help="New output folder.")],
    base_model: Annotated[
        str | None,
        typer.Option(help="Hub name of the base model if MODEL was a folder."),
    ] = None,
) -> None:
    """Write a folder for a hub: a PEFT adapter per player, a model card, a manifest.

    For a run, the newest complete checkpoint is exported. The model card shows limits and
    results, with evaluations of exactly these weights from the run folder or its evaluations/.
    Nothing is uploaded.

    Environment: WANDB_MODE and WANDB_ENTITY apply to wandb: sources; HF_HOME, HF_TOKEN and
    HF_HUB_OFFLINE apply to hf: sources.
    """
    from hanabi_grpo.report.export.folder import export as write_export
    from hanabi_grpo.report.export.origin import read_origin
    from hanabi_grpo.settings.refs import parse_checkpoint
    from hanabi_grpo.tracking.artifact import HUB_NAME
    from hanabi_grpo.tracking.checkpoints import local_folder

    if base_model is not None and not HUB_NAME.fullmatch(base_model):
        raise SettingsError(
            f"--base-model {base_model!r}: give the name on the hub, e.g. Qwen/Qwen3-4B."
        )
    say = sayer(make_console())
    with interruptible(lambda: f"Stopped; nothing was written to {out}."):
        checkpoint = parse_checkpoint(source)
        origin = read_origin(local_folder(checkpoint.place))
        if checkpoint.adapter is None:
            players = list(origin.saved.adapters)
        else:
            # Refuses an adapter that the checkpoint does not have.
            origin.saved.choose(checkpoint.adapter, checkpoint.adapter)
            players = [checkpoint.adapter]
        write_export(origin, out, players=players, base_model=base_model, say=say)
    step = origin.saved.step
    num_results = len(origin.results)
    say(f"wrote {out}: {', '.join(players)} at step {step}, {num_results} evaluations")
    say(f"to publish: .venv/bin/hf upload ORG/NAME {shlex.quote(str(out))}")
