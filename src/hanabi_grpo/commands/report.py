"""`hanabi-grpo report`: what a training changed, as a table and a picture."""

from pathlib import Path

import typer
from rich.console import Console

from hanabi_grpo.commands.console import make_console, print_json
from hanabi_grpo.commands.playing import stderr_console
from hanabi_grpo.evaluation.evaluate import paired_difference
from hanabi_grpo.evaluation.tables import evaluation_document, evaluation_sheets, reference_results, shortfall
from hanabi_grpo.report.charts import learning_curve
from hanabi_grpo.runs.evaluation_result import read_result
from hanabi_grpo.runs.run_folder import run_home


def report(
    before: Path,
    after: Path,
    *,
    run: Path | None,
    out_png: Path | None,
    out_markdown: Path | None,
    min_rise: float | None,
    min_sigma: float | None,
    as_json: bool = False,
) -> None:
    """Print the table, write it as Markdown, draw the learning curve.

    Args:
        before: Evaluation of the base model.
        after: Evaluation of the trained model, on the same deals.
        run: Run folder with `metrics.jsonl`; None: no picture.
        out_png: The picture; None: `learning_curve.png` beside `after`.
        out_markdown: The table; None: `report.md` beside `after`.
        min_rise: Least paired rise of the mean score.
        min_sigma: Least paired rise in standard errors.
        as_json: One JSON document on standard output instead of the table, as `evaluate --json` prints it.

    Raises:
        SettingsError: A file cannot be read, or the two evaluations are of different deals.
        typer.Exit: With code 1 when the rise is smaller than asked for.
    """
    console = stderr_console() if as_json else make_console()
    old, new = read_result(before), read_result(after)
    difference = paired_difference(old, new)
    references = reference_results(new)
    sheets = evaluation_sheets([old, new], references)
    if as_json:
        print_json(evaluation_document([old, new], references))
    else:
        for sheet in sheets:
            console.print(sheet.rich())
    markdown = out_markdown or after.with_name("report.md")
    markdown.parent.mkdir(parents=True, exist_ok=True)
    markdown.write_text("\n".join(sheet.markdown() for sheet in sheets), encoding="utf-8")
    console.print(f"table: {markdown}", markup=False, soft_wrap=True)
    if run is not None:
        picture = out_png or after.with_name("learning_curve.png")
        learning_curve(run_home(run) / "metrics.jsonl", picture, old, new, references=references)
        console.print(f"learning curve: {picture}", markup=False, soft_wrap=True)
    problem = shortfall(difference, min_rise=min_rise, min_sigma=min_sigma)
    if problem:
        Console(stderr=True, highlight=False).print(problem, style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1)
    if new.mean > old.mean:
        console.print(
            f"The mean score rose by {difference.mean:.3f} ± {difference.standard_error:.3f} "
            f"({difference.sigmas:.1f} standard errors; 95 % interval {difference.low:.3f} to {difference.high:.3f}).",
            markup=False,
            soft_wrap=True,
        )
