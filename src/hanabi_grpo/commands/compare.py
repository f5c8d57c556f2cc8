"""`hanabi-grpo compare`: learning curves and scores of several arms, each with several seeds."""

from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.commands.console import make_console, sayer
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.comparison.arms import SCORE, load_arms, parse_arms
from hanabi_grpo.evaluation.comparison.tables import (
    compare_arms,
    comparison_notes,
    comparison_sheets,
)
from hanabi_grpo.evaluation.sheets import markdown_text
from hanabi_grpo.report.charts.canvas import is_picture_name
from hanabi_grpo.report.own_files import Mark, check_replaceable, save_tables


def compare(
    arms: Annotated[
        list[str],
        typer.Argument(
            metavar="ARM",
            help="NAME=RUN,RUN,…: run folders that differ only in their seed. * matches several "
            "folders: 'a=runs/a-*'.",
        ),
    ],
    window: Annotated[
        int,
        typer.Option(min=1, help="Steps over which curves and the training mean are averaged."),
    ] = 10,
    metric: Annotated[str, typer.Option(help="Metric of metrics.jsonl to compare.")] = SCORE,
    out_png: Annotated[Path | None, typer.Option(help="Write the chart to this file.")] = None,
    out_markdown: Annotated[
        Path | None, typer.Option(help="Write the tables to this file.")
    ] = None,
) -> None:
    """Compare runs with several seeds: curves with bands, held-out scores, differences.

    Every difference is shown with its standard error. Files are written before anything is
    printed; only those of earlier comparisons are replaced.
    """
    if out_png is not None and not is_picture_name(out_png):
        raise SettingsError(f"--out-png {out_png}: give a name that ends in .png or .svg.")
    check_replaceable(out_png, Mark.PICTURE, "--out-png")
    check_replaceable(out_markdown, Mark.TABLES, "--out-markdown")
    name, loaded = load_arms(parse_arms(arms), metric=metric)
    comparison = compare_arms(name, loaded, window=window, metric=metric)
    sheets = comparison_sheets(comparison)
    notes = comparison_notes(comparison)
    # Before anything is printed: a reader that has seen enough, e.g. head, ends this process.
    written = []
    if out_png is not None:
        from hanabi_grpo.report.charts.bands import draw_bands

        draw_bands(out_png, comparison)
        written.append(f"picture: {out_png}")
    if out_markdown is not None:
        tables = [sheet.markdown() for sheet in sheets]
        note_lines = "".join(f"- {markdown_text(note)}\n" for note in notes)
        written.append(
            save_tables(out_markdown, "\n".join([*tables, note_lines]), "--out-markdown")
        )
    console = make_console()
    say = sayer(console)
    for sheet in sheets:
        console.print(sheet.rich())
    for note in notes:
        say(f"- {note}")
    for line in written:
        say(line)
