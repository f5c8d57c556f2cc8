"""Shared by the commands that play games: options, the choice of the game, and the model server."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import Progress, TaskID

from hanabi_grpo.client.lineups import Lineup
from hanabi_grpo.commands.console import print_json, progress_bars
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.chosen import Chosen as Chosen
from hanabi_grpo.evaluation.chosen import choose as choose
from hanabi_grpo.evaluation.chosen import choose_all as choose_all
from hanabi_grpo.evaluation.chosen import game_setup as game_setup
from hanabi_grpo.evaluation.result_files import write_result
from hanabi_grpo.runs.run_folder import results_folder
from hanabi_grpo.terminal import sayer

Env = Annotated[
    str | None,
    typer.Option(help="Environment, e.g. kuhn_poker.", show_default="as in training"),
]
Preset = Annotated[
    str | None,
    typer.Option(help="Preset of the environment.", show_default="as in training"),
]
Players = Annotated[
    int | None, typer.Option(help="Number of players.", show_default="as in training")
]
Suite = Annotated[str, typer.Option(help="Stream of held-out tasks.")]
Temperature = Annotated[
    float | None,
    typer.Option(help="Sampling temperature; 0 is greedy.", show_default="TEMPERATURE"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
OwnServer = Annotated[
    bool, typer.Option("--own-server", help="Start a rollout server for this command.")
]

ResultFolder = Annotated[
    Path | None,
    typer.Option(
        help="Output folder; continued if it exists.",
        show_default="a new one in OUTPUT_DIR, or in outputs/",
    ),
]


def result_folder(out: Path | None, chosen: Chosen, prefix: str) -> Path:
    """Return the folder of --out, else a new one.

    Args:
        out: Value of --out.
        chosen: The game, and where results go.
        prefix: Prefix of a new folder's name.
    """
    if out is not None:
        return out
    name = f"{prefix}{chosen.game.spec.preset}-{datetime.now():%Y%m%d-%H%M%S}"
    return results_folder(chosen.loaded.settings) / name


@dataclass(frozen=True, slots=True, kw_only=True)
class LineupBars:
    """Progress of lineups that are played one after the other, and of the tasks of each."""

    bars: Progress
    lineups: TaskID
    tasks: TaskID
    results: Sized
    """Results of the lineups that are done."""

    def begin(self, lineup: Lineup) -> None:
        """Show that a lineup starts."""
        self.bars.update(self.lineups, completed=len(self.results))
        self.bars.update(self.tasks, completed=0, description=lineup.label)

    def progress(self, num_done: int) -> None:
        """Show how many of its tasks are done."""
        self.bars.update(self.tasks, completed=num_done)


@contextmanager
def lineup_bars(
    console: Console, name: str, *, num_lineups: int, num_tasks: int, results: Sized
) -> Iterator[LineupBars]:
    """Show a bar of lineups and one of tasks, both full if the block ends without an error.

    Args:
        console: Where to show them.
        name: Label of the bar of lineups.
        num_lineups: Lineups to play.
        num_tasks: Tasks of each.
        results: Grows by one with each lineup that is done.
    """
    with progress_bars(console) as bars:
        lineups = bars.add_task(name, total=num_lineups)
        tasks = bars.add_task("tasks", total=num_tasks)
        yield LineupBars(bars=bars, lineups=lineups, tasks=tasks, results=results)
        bars.update(lineups, completed=len(results))
        bars.update(tasks, completed=num_tasks, description="tasks")


def numbers_of_games(option: str, text: str, names: Sequence[str]) -> list[int]:
    """Return an option's number for each game that is played.

    Args:
        option: Name of the option, e.g. "--tasks".
        text: One number for all games, or one per game, separated by commas.
        names: Names of the games, in the order of the dataset's rows.

    Raises:
        SettingsError: The text is neither.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (1, len(names)) or not all(part.isdecimal() for part in parts):
        allowed = "a whole number"
        if len(names) > 1:
            allowed += f" for all games, or {len(names)} separated by commas for {', '.join(names)}"
        raise SettingsError(f"{option} {text!r}: give {allowed}, e.g. {option} 16.")
    numbers = [int(part) for part in parts]
    if min(numbers) < 1:
        raise SettingsError(f"{option} {text!r}: must be 1 or more.")
    return numbers if len(numbers) > 1 else numbers * len(names)


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

    If another result is replaced, a line says which.

    Args:
        console: Console for messages and tables, made by `make_console(aside=as_json)`.
        document: The result as a JSON object; printed with --json.
        tables: The result as tables; printed without --json.
        out: File to write; None: no file.
        as_json: Whether --json was given.
        kept: Document for `out` if it differs from `document`.
    """
    if out is not None:
        say = sayer(console)
        note = write_result(out, kept or document)
        say(f"wrote {out}")
        if note:
            say(note, "yellow")
    if as_json:
        print_json(document)
        return
    for table in tables:
        console.print(table)
