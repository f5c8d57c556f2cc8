"""`hanabi-grpo report`: what training changed, as tables, charts and pages."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.commands.console import make_console, sayer
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.sheets import markdown_text
from hanabi_grpo.report.charts.canvas import is_picture_name
from hanabi_grpo.report.charts.run import SCORE_CHART
from hanabi_grpo.report.hanabi.conventions import (
    convention_sentence,
    convention_sheet,
    count_conventions,
)
from hanabi_grpo.report.own_files import Mark, check_replaceable, save_tables
from hanabi_grpo.report.page import write_page
from hanabi_grpo.report.run_page import run_page
from hanabi_grpo.report.run_report import RunReport, read_report
from hanabi_grpo.runs.run_folder import run_home

_BELOW_LIMIT = 1
"""Exit code if the score rose by less than --min-rise or --min-sigma."""


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

    Files are written before anything is printed; only those of earlier reports are replaced.
    """
    console = make_console()
    say = sayer(console)
    convention_sheets = []
    convention_lines = []
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
        convention_lines = [*lines, convention_sentence(counts)]
        if not is_run:
            written = []
            if markdown is not None:
                tables = [sheet.markdown() for sheet in convention_sheets]
                written.append(save_tables(markdown, "\n".join(tables), "--markdown"))
            _print_lines(convention_lines, say)
            for sheet in convention_sheets:
                console.print(sheet.rich())
            _print_lines(written, say)
            return
    run_report = read_report(run)
    alarm_sheets = [run_report.alarm_sheet()] if alarms else []
    sheets = [*run_report.sheets, *alarm_sheets, *convention_sheets]
    picture_files = _picture_files(run_report, png) if png is not None else {}
    check_replaceable(html, Mark.PAGE, "--html")
    check_replaceable(markdown, Mark.TABLES, "--markdown")
    for file in picture_files.values():
        check_replaceable(file, Mark.PICTURE, "--png")
    # Before anything is printed: a reader that has seen enough, e.g. head, ends this process.
    notes: Sequence[str] = run_report.notes
    written = []
    if html is not None:
        page, notes = run_page(run_report)
        written.append(write_page(html, page, "--html"))
    written += _draw(run_report, picture_files)
    if markdown is not None:
        text = "\n".join(sheet.markdown() for sheet in sheets)
        for line in (*reversed(run_report.validation_lines), run_report.lead):
            if line:
                text = f"{markdown_text(line)}\n\n{text}"
        written.append(save_tables(markdown, text, "--markdown"))
    _print_lines(convention_lines, say)
    _print_head(run_report, say)
    for sheet in sheets:
        console.print(sheet.rich())
    if alarms:
        for change in run_report.state.changes:
            say(f"step {change.step}: " + "\n    ".join(change.lines))
    for note in notes:
        say(note, "yellow")
    _print_lines(written, say)
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


def _print_lines(lines: Sequence[str], say: Callable[..., None]) -> None:
    """Print the lines that are not empty."""
    for line in lines:
        if line:
            say(line)


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


def _picture_files(run_report: RunReport, path: Path) -> dict[str, Path]:
    """Return the file of each chart: of the learning curve alone, or of all charts in a folder.

    Args:
        run_report: The run.
        path: The path that --png names.

    Raises:
        SettingsError: The path is neither a picture's nor a folder's.
    """
    is_folder = path.is_dir()
    if is_picture_name(path) and not is_folder:
        return {SCORE_CHART: path}
    if (path.suffix and not is_folder) or path.is_file():
        raise SettingsError(
            f"--png {path}: give a name that ends in .png or .svg, or a folder; one with a dot in "
            "its name has to exist."
        )
    return {name: path / f"{name}.png" for name in run_report.pictures.names}


def _draw(run_report: RunReport, files: Mapping[str, Path]) -> list[str]:
    """Draw charts and return a line about each.

    Args:
        run_report: The run.
        files: The file of each chart.

    Raises:
        SettingsError: A file cannot be written.
    """
    left_out = run_report.pictures.save_all(files)
    lines = []
    for name, file in files.items():
        if name in left_out:
            lines.append(f"no picture {name}: {left_out[name]}")
        else:
            lines.append(f"picture: {file}")
    return lines
