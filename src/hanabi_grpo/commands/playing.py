"""Shared by the commands that play games: options, the choice of the game, and the model server."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from hanabi_grpo.commands.console import print_json
from hanabi_grpo.evaluation.chosen import Chosen as Chosen
from hanabi_grpo.evaluation.chosen import choose as choose
from hanabi_grpo.evaluation.chosen import game_setup as game_setup
from hanabi_grpo.runs.evaluation_result import write_document
from hanabi_grpo.terminal import sayer

Env = Annotated[
    str | None, typer.Option(help="Environment, e.g. kuhn_poker; as in training when left out.")
]
Preset = Annotated[str | None, typer.Option(help="Preset of it; as in training when left out.")]
Players = Annotated[int | None, typer.Option(help="Players; as in training when left out.")]
Suite = Annotated[str, typer.Option(help="Stream of held-out tasks.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy; TEMPERATURE when left out.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
OwnServer = Annotated[
    bool, typer.Option("--own-server", help="Start a rollout server for this command.")
]


def give_result(
    console: Console,
    document: Mapping[str, Any],
    tables: Iterable[RenderableType],
    *,
    out: Path | None,
    as_json: bool,
    kept: Mapping[str, Any] | None = None,
) -> None:
    """Write a command's result to --out, and print it as JSON or as tables.

    Args:
        console: Console for people, made by `make_console(aside=as_json)`.
        document: The result as a JSON object; printed with --json.
        tables: The result as tables; printed without --json.
        out: File to write; None: no file.
        as_json: Whether --json was given.
        kept: Document for `out` where it differs from `document`.
    """
    if out is not None:
        write_document(out, kept or document)
        sayer(console)(f"wrote {out}")
    if as_json:
        print_json(document)
        return
    for table in tables:
        console.print(table)
