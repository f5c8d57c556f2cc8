"""`hanabi-grpo dataset`: write a dataset, or add rows to one."""

from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.dataset_rows import SHARE_RULE, dataset_row
from hanabi_grpo.rollout.datasets import write_dataset
from hanabi_grpo.settings import load_settings


def dataset(
    preset: Annotated[
        list[str], typer.Option(help="Preset, e.g. laptop; may be repeated, with shares: laptop=3.")
    ],
    out: Annotated[Path, typer.Option(help="File to write.")],
    env: Annotated[str | None, typer.Option(help="Environment; HANABI_ENV when left out.")] = None,
    players: Annotated[
        int | None, typer.Option(help="Players; HANABI_PLAYERS when left out.")
    ] = None,
    observation: Annotated[
        str | None, typer.Option(help="compact or full; HANABI_OBSERVATION when left out.")
    ] = None,
    suite: Annotated[str, typer.Option(help="Stream of tasks.")] = "train",
    num_tasks: Annotated[
        int, typer.Option(help="Length of a fixed list of tasks; 0: fresh ones for ever.")
    ] = 0,
    add: Annotated[
        bool, typer.Option("--add", help="Put the rows behind those of the file.")
    ] = False,
) -> None:
    """Write a dataset: a row for each preset, with shares; --add puts more rows into one."""
    env = env or load_settings().settings.env
    rows = [
        dataset_row(
            board,
            env=env,
            players=players,
            suite=suite,
            num_tasks=num_tasks,
            observation=observation,
            share=share,
        )
        for board, share in map(_with_share, preset)
    ]
    print(f"wrote {out} ({write_dataset(out, rows, add=add)}); train on it with DATASET={out}")


def _with_share(given: str) -> tuple[str, float]:
    preset, mark, typed = given.partition("=")
    try:
        share = float(typed if mark else 1)
    except ValueError as error:
        raise SettingsError(f"--preset {given!r}: {SHARE_RULE}: {preset}=3.") from error
    return preset, int(share) if share.is_integer() else share
