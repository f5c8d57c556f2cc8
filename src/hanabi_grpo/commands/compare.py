"""`hanabi-grpo compare`: learning curves and scores of several arms, each with several seeds."""

from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.commands.console import make_console, sayer
from hanabi_grpo.evaluation.comparison.arms import SCORE, load_arms, parse_arms
from hanabi_grpo.evaluation.comparison.tables import (
    compare_arms,
    comparison_notes,
    comparison_sheets,
)
from hanabi_grpo.runs.run_folder import save_text


def compare(
    arms: Annotated[
        list[str],
        typer.Argument(
            metavar="ARM",
            help="NAME=RUN,RUN,…: run folders that differ in their seed only; * matches, "
            "'a=runs/a-*'.",
        ),
    ],
    window: Annotated[
        int, typer.Option(min=1, help="Steps of which a curve and the training mean are the mean.")
    ] = 10,
    metric: Annotated[
        str, typer.Option(help="Figure of metrics.jsonl whose curves are compared.")
    ] = SCORE,
    out_png: Annotated[Path | None, typer.Option(help="The picture.")] = None,
    out_markdown: Annotated[Path | None, typer.Option(help="The tables.")] = None,
) -> None:
    """Compare runs over seeds: curves with bands, held-out scores, differences with their
    errors.
    """
    name, loaded = load_arms(parse_arms(arms), metric=metric)
    found = compare_arms(name, loaded, window=window, metric=metric)
    console = make_console()
    say, sheets, notes = (
        sayer(console),
        comparison_sheets(found),
        [f"- {note}" for note in comparison_notes(found)],
    )
    for sheet in sheets:
        console.print(sheet.rich())
    for note in notes:
        say(note)
    if out_png is not None:
        from hanabi_grpo.report.charts.bands import draw_bands

        draw_bands(out_png, found)
        say(f"picture: {out_png}")
    if out_markdown is not None:
        tables = [*(sheet.markdown() for sheet in sheets), "".join(f"{note}\n" for note in notes)]
        save_text(out_markdown, "\n".join(tables), "--out-markdown")
        say(f"tables: {out_markdown}")
