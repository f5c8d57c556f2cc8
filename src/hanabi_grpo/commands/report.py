"""`hanabi-grpo report`: what training changed, as tables, charts and pages."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.commands.console import make_console, sayer
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.sheets import markdown_text
from hanabi_grpo.report.hanabi.conventions import (
    convention_sentence,
    convention_sheet,
    count_conventions,
)
from hanabi_grpo.report.page import write_page
from hanabi_grpo.report.run_page import run_page
from hanabi_grpo.report.run_report import RunReport, read_report
from hanabi_grpo.runs.run_folder import run_home, save_text

_BELOW_LIMIT = 1
"""Exit code if the score rose by less than --min-rise or --min-sigma."""
_PICTURE_SUFFIXES = (".png", ".svg")


def report(
    run: Annotated[Path, typer.Argument(help="Run folder; the run may still be in progress.")],
    html: Annotated[
        Path | None, typer.Option(help="Write one HTML page that works offline.")
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(help="Write the learning curve (*.png, *.svg), or all charts to a folder."),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables to this file.")] = None,
    alarms: Annotated[
        bool, typer.Option("--alarms", help="Show every alarm and when it was raised.")
    ] = False,
    conventions: Annotated[
        bool,
        typer.Option("--conventions", help="Show what hints mean; accepts games of collect too."),
    ] = False,
    min_rise: Annotated[
        float | None, typer.Option(help="Exit with 1 if the mean score rose by less than this.")
    ] = None,
    min_sigma: Annotated[
        float | None,
        typer.Option(help="Exit with 1 if the mean score rose by fewer standard errors than this."),
    ] = None,
) -> None:
    """Show what training changed: scores, alarms, curves and sample games.

    Evaluations are the files of evaluate --out in the run folder and in its evaluations/. The rise
    compares the same seats at step 0 (base) and at the last evaluated step, with the same
    opponents, tasks and temperature; lineups that differ in these are listed side by side.
    """
    console = make_console()
    say = sayer(console)
    convention_sheets = []
    if conventions:
        is_run = (run_home(run) / "metrics.jsonl").is_file()
        if not is_run:
            of_runs = {
                "--html": html,
                "--png": png,
                "--alarms": alarms or None,
                "--min-rise": min_rise,
                "--min-sigma": min_sigma,
            }
            _refuse_without_run(run, of_runs)
        counts, lines = count_conventions(run)
        convention_sheets.append(convention_sheet(counts))
        for line in [*lines, convention_sentence(counts)]:
            if line:
                say(line)
        if not is_run:
            for sheet in convention_sheets:
                console.print(sheet.rich())
            if markdown is not None:
                tables = [sheet.markdown() for sheet in convention_sheets]
                _write_tables(markdown, "\n".join(tables), say)
            return
    run_report = read_report(run)
    _print_head(run_report, say)
    alarm_sheets = [run_report.alarm_sheet()] if alarms else []
    for sheet in [*run_report.sheets, *alarm_sheets, *convention_sheets]:
        console.print(sheet.rich())
    if alarms:
        for change in run_report.state.changes:
            say(f"step {change.step}: " + "\n    ".join(change.lines))
    notes: Sequence[str] = run_report.notes
    if html is not None:
        page, notes = run_page(run_report)
        say(write_page(html, page, "--html"))
    for note in notes:
        say(note, "yellow")
    if png is not None:
        _draw(run_report, png, say)
    if markdown is not None:
        tables = [sheet.markdown() for sheet in [*run_report.sheets, *convention_sheets]]
        text = "\n".join(tables)
        for line in (*reversed(run_report.validation_lines), run_report.lead):
            if line:
                text = f"{markdown_text(line)}\n\n{text}"
        _write_tables(markdown, text, say)
    if min_rise is not None or min_sigma is not None:
        problem = run_report.shortfall(min_rise=min_rise, min_sigma=min_sigma)
        if problem:
            sayer(make_console(aside=True))(problem, "red")
            raise typer.Exit(_BELOW_LIMIT)


def _refuse_without_run(run: Path, options: Mapping[str, object]) -> None:
    """Refuse options that need a run if there are only games.

    Args:
        run: The folder or file of games.
        options: Value of each option; None: not given.

    Raises:
        SettingsError: One of them was given.
    """
    for option, value in options.items():
        if value is not None:
            raise SettingsError(
                f"{option} with {run}: needs metrics.jsonl of a run, and there are only games; "
                "omit it, or give a run."
            )


def _write_tables(file: Path, text: str, say: Callable[..., None]) -> None:
    save_text(file, text, "--markdown")
    say(f"tables: {file}")


def _print_head(run_report: RunReport, say: Callable[..., None]) -> None:
    """Print the run's step, its result, and the active alarms."""
    state = run_report.state
    of_all = f" of {state.max_steps}" if state.max_steps else ""
    say(f"{state.name}: step {state.step}{of_all}", "bold")
    for line in (run_report.lead, *run_report.validation_lines):
        if line:
            say(line)
    raised = []
    for (name, subject), since in state.raised.items():
        of_subject = f" ({subject})" if subject else ""
        raised.append(f"{name}{of_subject} since step {since}")
    if raised:
        say(f"alarms: {', '.join(raised)}", "red")
    else:
        say("alarms: none")


def _draw(run_report: RunReport, path: Path, say: Callable[..., None]) -> None:
    """Write the learning curve to a file, or every picture to a folder."""
    if path.suffix in _PICTURE_SUFFIXES:
        files = {"score": path}
    else:
        if path.exists() and not path.is_dir():
            raise SettingsError(
                f"--png {path}: give a name that ends in .png or .svg, or a folder."
            )
        files = {name: path / f"{name}.png" for name in run_report.pictures.names}
    left_out = run_report.pictures.save_all(files)
    for name, file in files.items():
        if name in left_out:
            say(f"no picture {name}: {left_out[name]}")
        else:
            say(f"picture: {file}")
