"""`hanabi-grpo compare`: learning curves and scores of several arms, each with several seeds."""

import json
from pathlib import Path
from typing import Annotated

import typer


def compare(
    arms: Annotated[
        list[str],
        typer.Argument(
            metavar="ARM...",
            help="NAME=RUN,RUN,…: run folders that differ in their seed only; * matches, 'a=runs/a-*'.",
        ),
    ],
    title: Annotated[str, typer.Option(help="Heading of picture and table.")] = "",
    x: Annotated[str, typer.Option("--x", help="steps or games: what curves are drawn against, and cut at.")] = "steps",
    window: Annotated[int, typer.Option(help="Steps of which a curve and the training mean are the mean.")] = 10,
    reference: Annotated[list[str] | None, typer.Option(help="Level line, NAME=SCORE; may be repeated.")] = None,
    out_png: Annotated[Path | None, typer.Option(help="The picture.")] = None,
    out_markdown: Annotated[Path | None, typer.Option(help="The tables.")] = None,
    out_json: Annotated[Path | None, typer.Option(help="All figures.")] = None,
) -> None:
    """Compare trainings over seeds: curves with bands, held-out scores, differences with their errors."""
    from hanabi_grpo.commands.console import make_console, sayer
    from hanabi_grpo.errors import SettingsError
    from hanabi_grpo.evaluation.comparison.arms import load_arms, parse_arms, parse_reference
    from hanabi_grpo.evaluation.comparison.tables import (
        compare_arms,
        comparison_markdown,
        comparison_notes,
        comparison_sheets,
        comparison_to_json,
    )
    from hanabi_grpo.report.page import save_text
    from hanabi_grpo.runs.run_folder import finite

    if x not in ("steps", "games"):
        raise SettingsError(f"--x {x}: must be steps or games.")
    if window < 1:
        raise SettingsError(f"--window {window}: must be at least 1 step.")
    name, loaded = load_arms(parse_arms(arms), by_games=x == "games")
    found = compare_arms(
        name,
        loaded,
        axis=x,
        window=window,
        references=dict(map(parse_reference, reference or [])),
    )
    console = make_console()
    say = sayer(console)
    for sheet in comparison_sheets(found):
        console.print(sheet.rich())
    for note in comparison_notes(found):
        say(f"- {note}")
    if out_png is not None:
        from hanabi_grpo.report.charts.bands import draw_bands

        draw_bands(out_png, found, title=title)
        say(f"picture: {out_png}")
    if out_markdown is not None:
        save_text(out_markdown, comparison_markdown(found, title), "--out-markdown")
        say(f"tables: {out_markdown}")
    if out_json is not None:
        save_text(
            out_json,
            json.dumps(finite(comparison_to_json(found, title)), indent=2, ensure_ascii=False) + "\n",
            "--out-json",
        )
        say(f"figures: {out_json}")
