"""`bash tools/bench.sh`: how close this software comes to what its parts can do.

The results are ratios of two arms, measured side by side.
"""

import asyncio
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hanabi_grpo.cli import Group
from hanabi_grpo.errors import SettingsError

if TYPE_CHECKING:
    from bench.row import Row


def main(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Fewer pairs of runs, and no R14."),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="A ratio, e.g. R3; may be given more than once.")
    ] = None,
    no_engine: Annotated[
        bool, typer.Option("--no-engine", help="Only ratios that do not need vLLM.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for bench.json and bench.md.")] = Path(
        "outputs/bench"
    ),
) -> None:
    """Measure the ratios R1 to R22 in one run and print them with their targets.

    docs/benchmarks.md explains them.

    Environment: MODEL, DATASET, HANABI_DTYPE, HANABI_MAX_MODEL_LEN, LORA_RANK, LORA_ALPHA,
    HANABI_TASKS_PER_STEP, NUM_GENERATIONS, MAX_COMPLETION_LENGTH, TEMPERATURE, SEED and the other
    settings of serve.
    """
    from hanabi_grpo.commands.console import give_environ, interruptible, make_console
    from hanabi_grpo.settings import load_settings

    loaded = load_settings()
    give_environ(loaded)
    # Threads that spin while waiting would be measured too; torch reads this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Imported here: the offline switches must be set before a hub library reads them.
    from bench.catalogue import chosen
    from bench.context import Bench, board_of
    from bench.run import measure_all
    from bench.show import as_json, markdown, notes, rich_table, title

    families = chosen(only or [])
    console = make_console()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True, style="dim")

    logger = logging.getLogger("hanabi_grpo")
    level = logger.level
    given = Bench(settings=loaded.settings, config=board_of(loaded.settings), quick=quick, say=say)
    _check_writable(out)
    with interruptible(
        lambda: "stopped; a table needs a complete run, but --only measures single ratios"
    ):
        # A line per task and arm would bury the table; warnings are kept.
        logger.setLevel(logging.WARNING)
        try:
            result = asyncio.run(
                measure_all(
                    given, families, use_engine=not no_engine, report=lambda row: say(_line(row))
                )
            )
        finally:
            logger.setLevel(level)
    console.print(rich_table(result.rows, title(result.facts)))
    for note in notes(result.rows):
        console.print(note, markup=False, soft_wrap=True)
    json_file = out / "bench.json"
    markdown_file = out / "bench.md"
    document = as_json(result.rows, result.facts, result.failed)
    text = json.dumps(document, indent=1, ensure_ascii=False)
    json_file.write_text(f"{text}\n", encoding="utf-8")
    markdown_file.write_text(markdown(result.rows, result.facts), encoding="utf-8")
    console.print(f"wrote {json_file} and {markdown_file}", markup=False, soft_wrap=True)
    if result.failed:
        raise typer.Exit(1)


def _line(row: "Row") -> str:
    median = "–" if row.median is None else f"{row.median:.3g}"
    return f"{row.id} {row.name}: {median}"


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Testing with bench.json would leave an empty one if the run is stopped.
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise SettingsError(
            f"--out {folder}: cannot be written ({error.strerror}); choose another folder."
        ) from error


app = typer.Typer(cls=Group, pretty_exceptions_enable=False, add_completion=False)
app.callback(invoke_without_command=True)(main)

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    app()
