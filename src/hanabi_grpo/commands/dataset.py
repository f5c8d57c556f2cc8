"""`hanabi-grpo dataset`: write a dataset, or add rows to one."""

import math
from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.dataset_rows import SHARE_RULE, dataset_row
from hanabi_grpo.rollout.datasets import write_dataset
from hanabi_grpo.settings import load_settings
from hanabi_grpo.texts import visible


def dataset(
    preset: Annotated[
        list[str],
        typer.Option(
            help="Preset, e.g. laptop. May be repeated; laptop=3 sets its share of the tasks."
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write.")],
    env: Annotated[str | None, typer.Option(help="Environment.", show_default="HANABI_ENV")] = None,
    players: Annotated[
        int | None, typer.Option(help="Number of players.", show_default="HANABI_PLAYERS")
    ] = None,
    observation: Annotated[
        str | None,
        typer.Option(help="Observation: compact or full.", show_default="HANABI_OBSERVATION"),
    ] = None,
    suite: Annotated[str, typer.Option(help="Suite that the tasks are drawn from.")] = "train",
    num_tasks: Annotated[
        int, typer.Option(help="Length of a fixed list of tasks; 0: unlimited fresh tasks.")
    ] = 0,
    add: Annotated[bool, typer.Option("--add", help="Append the rows to the file.")] = False,
) -> None:
    """Write a dataset with a row for each preset, or add rows to one."""
    env = env or load_settings().settings.env
    rows = []
    for text in preset:
        name, share = _parse_share(text)
        row = dataset_row(
            name,
            env=env,
            players=players,
            suite=suite,
            num_tasks=num_tasks,
            observation=observation,
            share=share,
        )
        rows.append(row)
    content = write_dataset(out, rows, add=add)
    print(visible(f"wrote {out} ({content}); train on it with DATASET={out}"))


def _parse_share(text: str) -> tuple[str, float]:
    """Parse "laptop=3" to ("laptop", 3); without a number the share is 1."""
    preset, equals, number = text.partition("=")
    if not equals:
        return preset, 1
    try:
        share = float(number)
    except ValueError:
        share = math.nan
    if not math.isfinite(share):
        raise SettingsError(f"--preset {text!r}: {SHARE_RULE}: {preset}=3.")
    return preset, int(share) if share.is_integer() else share
