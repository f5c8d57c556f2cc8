"""`hanabi-grpo warm-start`: supervised learning from games of scripts or from recorded games."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import TaskID
from rich.table import Table

from hanabi_grpo.commands.console import (
    INTERRUPTED,
    bars,
    give_environ,
    make_console,
    sayer,
    stop_flag,
)
from hanabi_grpo.commands.playing import Env, Players, Preset, game_setup
from hanabi_grpo.settings import load_settings


def warm_start(
    out: Annotated[Path, typer.Option(help="New folder of the result.")],
    lineups: Annotated[
        list[str] | None, typer.Argument(metavar="SOURCE", help="Scripts that play: iggi,piers.")
    ] = None,
    games: Annotated[
        list[Path] | None, typer.Option(help="Recorded games: a folder, a run or a file.")
    ] = None,
    env: Env = None,
    preset: Preset = None,
    players: Players = None,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks that each SOURCE plays.")] = 2000,
    noise: Annotated[
        float, typer.Option(min=0, max=1, help="Share of random moves, which are not learned.")
    ] = 0.2,
    learn_noise: Annotated[
        bool, typer.Option("--learn-noise", help="Learn those too: a start that explores.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Updates of each adapter.")] = 300,
    batch: Annotated[int, typer.Option(min=1, help="Conversations of one update.")] = 32,
    learning_rate: Annotated[
        float | None, typer.Option(min=0, help="At its peak; by size when left out.")
    ] = None,
    min_score: Annotated[
        float | None, typer.Option(help="Learn from games of this score or more.")
    ] = None,
    who: Annotated[
        str | None, typer.Option(help="Learn only what this seat said: iggi, player_0.")
    ] = None,
    shared: Annotated[bool, typer.Option("--shared", help="One adapter for all players.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Train the whole model instead of adapters.")
    ] = False,
    every_start: Annotated[
        bool, typer.Option("--every-start", help="Learn all starts, and hold none out.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted --out.")
    ] = False,
) -> None:
    """Teach adapters, or with --full a whole model, to play like a script or like recorded games.

    Environment: MODEL, HANABI_DTYPE, HANABI_THINKING, LORA_RANK, LORA_ALPHA, HANABI_ADAPTERS and
    SEED; DATASET,
    HANABI_PRESET, HANABI_PLAYERS and the other variables of a game choose the board.
    """
    give_environ(loaded := load_settings())
    settings = loaded.settings
    # After these switches: libraries read them once.
    from transformers.utils.logging import disable_progress_bar

    from hanabi_grpo.sft.run import StoppedError, WarmStart, Watcher
    from hanabi_grpo.sft.sources import Sources

    sources = Sources(
        lineups=tuple(lineups or ()),
        paths=tuple(games or ()),
        num_tasks=tasks,
        noise=noise,
        learn_noise=learn_noise,
        min_score=min_score,
        who=who,
    )
    work = WarmStart(
        settings=settings,
        setup=game_setup(settings, env, preset, players),
        sources=sources,
        out=out,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        shared=shared or settings.adapters == "shared",
        full=full,
        every_start=every_start,
        resume=resume,
    )
    disable_progress_bar()
    aside, console = make_console(aside=True), make_console()
    with stop_flag() as should_stop, bars(aside) as progress:
        bar_of: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int | None, text: str) -> None:
            if what not in bar_of:
                bar_of[what] = progress.add_task(text, total=total)
            progress.update(bar_of[what], completed=done, total=total, description=text)

        try:
            rows = work.run(Watcher(say=sayer(aside), show=show, should_stop=should_stop))
        except StoppedError as stopped:
            sayer(aside)(f"stopped: {stopped}; the same command with --resume goes on.")
            raise typer.Exit(INTERRUPTED) from None
    table = Table("learns", "after step", "held-out loss", "held-out accuracy", "replies")
    for label, row in rows:
        figures = f"{row['loss']:.4f}", f"{row['accuracy']:.3f}", str(row["num_replies"])
        table.add_row(f"{row['name']} ({label})", str(row["step"]), *figures)
    console.print(table)
    for line in work.next_steps():
        sayer(console)(line)
