"""`hanabi-grpo report-page`: a run as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer


def report_page(
    run: Annotated[Path, typer.Argument(help="Run folder; of a run that is going on too.")],
    out: Annotated[Path | None, typer.Option(help="The page; RUN/report.html when left out.")] = None,
    replays: Annotated[int, typer.Option(help="Most sample games; 0: none.")] = 6,
) -> None:
    """Write one page of a run that works offline: settings, curves, evaluations, sample games, alarms, incidents.

    Evaluations are files of evaluate --out in the run folder or in its evaluations/.
    """
    from hanabi_grpo.commands.console import make_console
    from hanabi_grpo.errors import SettingsError
    from hanabi_grpo.report.run_views.page import run_page
    from hanabi_grpo.runs.run_folder import run_home, write_text_atomic

    if not 0 <= replays <= 100:
        raise SettingsError(f"--replays {replays}: must be 0 to 100.")
    page, notes = run_page(run, num_replays=replays)
    target = out or run_home(run) / "report.html"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(target, page)
    except OSError as error:
        raise SettingsError(f"--out {target}: cannot be written ({error.strerror}).") from error
    console = make_console()
    for note in notes:
        console.print(note, style="yellow", markup=False, soft_wrap=True)
    size = target.stat().st_size
    console.print(f"wrote {target} ({size / 1000:.0f} kB); open it in a browser.", markup=False, soft_wrap=True)
