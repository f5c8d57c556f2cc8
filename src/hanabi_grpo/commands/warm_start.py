"""`hanabi-grpo warm-start`: supervised learning from games of scripts or from recorded games."""

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import TaskID

from hanabi_grpo.commands.console import (
    INTERRUPTED,
    give_environ,
    make_console,
    progress_bars,
    sayer,
    stop_flag,
)
from hanabi_grpo.commands.playing import Env, Players, Preset, game_setup
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import LoadedSettings, load_settings
from hanabi_grpo.settings.game import game_model
from hanabi_grpo.settings.shell import shell_assignments
from hanabi_grpo.settings.variables import variables_of
from hanabi_grpo.terminal import ColumnKind, FittedTable
from hanabi_grpo.training import quiet
from hanabi_grpo.types import player_names

_SET_BY_NEXT_STEPS = ("HANABI_START_FROM", "RESUME")
"""Settings of this shell that the commands at the end replace or contradict."""


def warm_start(
    out: Annotated[Path, typer.Option(help="New output folder.")],
    lineups: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE", help="Scripts that play the games, e.g. iggi,piers."),
    ] = None,
    games: Annotated[
        list[Path] | None, typer.Option(help="Recorded games: a folder, a run or a file.")
    ] = None,
    env: Env = None,
    preset: Preset = None,
    players: Players = None,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks that each SOURCE plays.")] = 2000,
    noise: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of random actions, which are not learned."),
    ] = 0.2,
    learn_noise: Annotated[
        bool,
        typer.Option(
            "--learn-noise", help="Learn the random actions too, for a policy that explores."
        ),
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Updates per adapter.")] = 300,
    batch: Annotated[int, typer.Option(min=1, help="Conversations per update.")] = 32,
    learning_rate: Annotated[
        float | None,
        typer.Option(min=0, help="Peak learning rate.", show_default="depends on the model size"),
    ] = None,
    min_score: Annotated[
        float | None, typer.Option(help="Learn only from games with at least this score.")
    ] = None,
    who: Annotated[
        str | None,
        typer.Option(
            help="Learn only the replies of this policy or person: iggi, player_0, human, Ann."
        ),
    ] = None,
    seats: Annotated[
        str | None,
        typer.Option(
            help="Learn only the replies of these seats, e.g. player_1 or player_0,player_2; "
            "without --shared, only their adapters are trained.",
            show_default="all",
        ),
    ] = None,
    beliefs: Annotated[
        str,
        typer.Option(
            help="Share of the learned replies that name a hidden card when asked: 0.3 or "
            "player_0=0.3,player_1=0. The labels are the true cards."
        ),
    ] = "0",
    shared: Annotated[
        bool, typer.Option("--shared", help="Train one adapter for all players.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Train the whole model instead of adapters.")
    ] = False,
    every_start: Annotated[
        bool, typer.Option("--every-start", help="Learn from all starts, and hold none out.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted warm start in --out.")
    ] = False,
) -> None:
    """Train adapters to play like a script or like recorded games, by supervised learning.

    With --full the whole model is trained.

    With --env, --preset or --players, the default of MODEL is the tiny model of that game. At the
    end, it prints the commands that evaluate the result and train from it on the same game.

    Environment: MODEL, HANABI_DTYPE, HANABI_THINKING, LORA_RANK, LORA_ALPHA, HANABI_ADAPTERS and
    SEED. DATASET, HANABI_PRESET, HANABI_PLAYERS and the other variables of a game select the board.
    """
    loaded = load_settings()
    setup = game_setup(loaded.settings, env, preset, players)
    chosen = _chosen_game(setup, env, preset, players)
    settings = loaded.settings.for_game(setup) if chosen else loaded.settings
    give_environ(replace(loaded, settings=settings))
    # Imported after the switches are set: libraries read them once.
    quiet.before_imports()
    from hanabi_grpo.sft.learning import belief_text
    from hanabi_grpo.sft.run import StoppedError, WarmStart, Watcher
    from hanabi_grpo.sft.sources import Sources

    quiet.after_imports()
    sources = Sources(
        lineups=tuple(lineups or ()),
        paths=tuple(games or ()),
        num_tasks=tasks,
        noise=noise,
        learn_noise=learn_noise,
        min_score=min_score,
        who=who,
        seats=_seats(seats, setup.spec.num_players),
    )
    work = WarmStart(
        settings=settings,
        setup=setup,
        sources=sources,
        out=out,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        shared=shared or settings.adapters == "shared",
        full=full,
        every_start=every_start,
        resume=resume,
        beliefs=beliefs,
    )
    console = make_console()
    aside = make_console(aside=True)
    with stop_flag() as should_stop, progress_bars(aside) as progress:
        bars: dict[str, TaskID] = {}

        def show(name: str, num_done: int, total: int | None, text: str) -> None:
            if name not in bars:
                bars[name] = progress.add_task(text, total=total)
            progress.update(bars[name], completed=num_done, total=total, description=text)

        try:
            rows = work.run(Watcher(say=sayer(aside), show=show, should_stop=should_stop))
        except StoppedError as error:
            sayer(aside)(f"stopped: {error}; to continue, run the same command with --resume.")
            raise typer.Exit(INTERRUPTED) from None
    console.print(_table(rows, belief_text))
    for line in work.next_steps(_assignments(loaded, chosen, full=full)):
        sayer(console)(line)
    if chosen and settings.dataset is not None:
        sayer(console)(
            f"DATASET={settings.dataset} selects other games; unset it for these commands."
        )


def _chosen_game(
    setup: Setup[Any], env: str | None, preset: str | None, players: int | None
) -> dict[str, str]:
    """Return the variables that choose the same game as the options; empty without options.

    Args:
        setup: The game.
        env: Option --env; None: not given, like the others.
        preset: Option --preset.
        players: Option --players.
    """
    chosen = {}
    if env is not None:
        chosen["HANABI_ENV"] = setup.env
    if env is not None or preset is not None:
        chosen["HANABI_PRESET"] = str(setup.config.preset)
    if players is not None:
        chosen["HANABI_PLAYERS"] = str(players)
    return chosen


def _assignments(loaded: LoadedSettings, chosen: Mapping[str, str], *, full: bool) -> list[str]:
    """Return NAME=value of the settings that the commands at the end need from this shell.

    Args:
        loaded: The settings.
        chosen: The variables of the game that options chose.
        full: Whether the commands set MODEL.
    """
    without = {*chosen, *_SET_BY_NEXT_STEPS}
    if full:
        without.add("MODEL")
    if chosen:
        without.add("DATASET")
    env = loaded.settings.env
    if chosen.get("HANABI_ENV", env) != env:
        without |= {variable.env for variable in variables_of(game_model(env))}
    assignments = shell_assignments(loaded, without=without)
    for name, value in chosen.items():
        assignments.append(f"{name}={shlex.quote(value)}")
    return assignments


def _seats(text: str | None, num_players: int) -> tuple[int, ...] | None:
    """Return the seats of --seats, each once, in their order; None for all.

    Raises:
        SettingsError: One of them is not a seat of the game.
    """
    if text is None:
        return None
    names = player_names(num_players)
    chosen = {name.strip() for name in text.split(",")}
    if not chosen <= set(names):
        raise SettingsError(
            f"--seats {text!r}: this game has the seats {', '.join(names)}; give one or more of "
            "them, separated by commas."
        )
    return tuple(seat for seat, name in enumerate(names) if name in chosen)


def _table(
    rows: Iterable[tuple[str, Mapping[str, Any]]],
    belief_text: Callable[[Mapping[str, Any]], str],
) -> FittedTable:
    rows = list(rows)
    columns = ["learner", "after step", "held-out loss", "held-out accuracy", "replies"]
    has_beliefs = any("beliefs" in row for _, row in rows)
    if has_beliefs:
        columns.append("held-out belief loss")
    kinds = (ColumnKind.NAME, *[ColumnKind.FIGURE] * (len(columns) - 1))
    table = FittedTable("", columns, kinds)
    for label, row in rows:
        cells = [
            f"{row['name']} ({label})",
            str(row["step"]),
            f"{row['loss']:.4f}",
            f"{row['accuracy']:.3f}",
            str(row["num_replies"]),
        ]
        if has_beliefs:
            cells.append(belief_text(row))
        table.add_row(*cells)
    return table
