"""`hanabi-grpo report`: what training changed, as tables, pictures and pages."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.commands.console import make_console, sayer
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.charts.run import PICTURES
from hanabi_grpo.report.hanabi.conventions import (
    convention_sentence,
    convention_sheet,
    count_conventions,
)
from hanabi_grpo.report.page import write_page
from hanabi_grpo.report.run_page import run_page
from hanabi_grpo.report.run_report import RunReport, read_report
from hanabi_grpo.runs.run_folder import run_home, save_text


def report(
    run: Annotated[Path, typer.Argument(help="Run folder; of a run that is going on too.")],
    html: Annotated[Path | None, typer.Option(help="Write one page that works offline.")] = None,
    png: Annotated[
        Path | None, typer.Option(help="Write the learning curve (*.png, *.svg); a folder: all.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables.")] = None,
    alarms: Annotated[
        bool, typer.Option("--alarms", help="Also every alarm, and when each was raised.")
    ] = False,
    conventions: Annotated[
        bool, typer.Option("--conventions", help="What hints mean; of collect's games too.")
    ] = False,
    min_rise: Annotated[
        float | None, typer.Option(help="Exit with 1 below this rise of the mean score.")
    ] = None,
    min_sigma: Annotated[
        float | None, typer.Option(help="Exit with 1 below this rise in standard errors.")
    ] = None,
) -> None:
    """Show what training changed: held-out scores against scripts, alarms of collapse, curves,
    sample games.

    Evaluations are files of evaluate --out in the run folder and in its evaluations/. The rise is
    from the first to the last one of the same tasks, in the order of training."""
    console = make_console()
    say = sayer(console)
    sheets = []
    if conventions:
        counted, lines = count_conventions(run)
        sheets = [convention_sheet(counted)]
        for line in filter(None, [*lines, convention_sentence(counted)]):
            say(line)
        if not (run_home(run) / "metrics.jsonl").is_file():
            for sheet in sheets:
                console.print(sheet.rich())
            return
    found = read_report(run)
    state = found.state
    say(
        f"{state.name}: step {state.step}" + (f" of {state.max_steps}" if state.max_steps else ""),
        "bold",
    )
    for line in filter(None, (found.lead, found.validation)):
        say(line)
    raised = [
        f"{name}{f' ({subject})' if subject else ''} since step {since}"
        for (name, subject), since in state.raised.items()
    ]
    say(f"alarms: {', '.join(raised) or 'none is raised'}", "red" if raised else "")
    for sheet in [*found.sheets, *([found.alarm_sheet()] if alarms else []), *sheets]:
        console.print(sheet.rich())
    for change in state.changes if alarms else ():
        say(f"step {change.step}: {change.message}")
    notes = list(found.notes)
    if html is not None:
        page, notes = run_page(found)
        say(write_page(html, page, "--html"))
    for note in notes:
        say(note, "yellow")
    if png is not None:
        _draw(found, png, say)
    if markdown is not None:
        line = f"{found.validation}\n\n" if found.validation else ""
        save_text(
            markdown,
            line + "\n".join(sheet.markdown() for sheet in [*found.sheets, *sheets]),
            "--markdown",
        )
        say(f"tables: {markdown}")
    is_limited = min_rise is not None or min_sigma is not None
    if is_limited and (problem := found.shortfall(min_rise=min_rise, min_sigma=min_sigma)):
        sayer(make_console(aside=True))(problem, "red")
        raise typer.Exit(1)


def _draw(found: RunReport, path: Path, say: Callable[..., None]) -> None:
    if path.suffix in (".png", ".svg"):
        files = {"score": path}
    else:
        if path.exists() and not path.is_dir():
            raise SettingsError(
                f"--png {path}: give a name that ends in .png or .svg, or a folder."
            )
        files = {name: path / f"{name}.png" for name in PICTURES}
    left_out = found.pictures.save_all(files)
    for name, file in files.items():
        say(f"no picture {name}: {left_out[name]}" if name in left_out else f"picture: {file}")
