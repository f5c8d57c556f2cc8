"""`hanabi-grpo collect`: games of a lineup as JSON lines, without a trainer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import TaskID

from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.commands.console import interruptible, make_console, progress_bars, sayer
from hanabi_grpo.commands.playing import (
    Env,
    OwnServer,
    Players,
    Preset,
    Temperature,
    choose_all,
    numbers_of_games,
)
from hanabi_grpo.envs.base import Setup, is_held_out
from hanabi_grpo.evaluation.collect import Progress, check_folder, collect_games, game_figures
from hanabi_grpo.rollout.datasets import setup_names
from hanabi_grpo.settings.zoo import use_zoo
from hanabi_grpo.tracking.figure_log import FigureLog
from hanabi_grpo.types import Episode


def collect(
    lineup: Annotated[str, typer.Argument(help="Policies to play, as in evaluate.")],
    out: Annotated[Path, typer.Option(help="Output folder of the games; continued if it exists.")],
    tasks: Annotated[
        str, typer.Option(help="Number of tasks, or one number per game of DATASET: 16,16,16.")
    ] = "100",
    games: Annotated[
        str, typer.Option(help="Episodes per task (the group), or one number per game: 8,4,4.")
    ] = "1",
    suite: Annotated[str, typer.Option(help="Suite that the tasks are drawn from.")] = "collect",
    env: Env = None,
    preset: Preset = None,
    players: Players = None,
    temperature: Temperature = None,
    no_rotate: Annotated[
        bool, typer.Option("--no-rotate", help="Play every task in the given seat order only.")
    ] = False,
    own_server: OwnServer = False,
) -> None:
    """Record games of a lineup as JSON lines, without training.

    Run the same command again to continue an interrupted one. A DATASET with several games is
    played completely, each game in a folder of OUT named after its preset; --preset selects one.

    Environment: HANABI_ENV, HANABI_PRESET, DATASET, VLLM_SERVER_PORT, TEMPERATURE and the others
    of evaluate. REPORT_TO logs metrics to OUT/figures.
    """
    own_server = use_zoo([lineup]) or own_server
    chosen = choose_all(env, preset, players, temperature)
    setups = [each.game for each in chosen]
    names = setup_names(setups)
    num_tasks = numbers_of_games("--tasks", tasks, names)
    num_games = numbers_of_games("--games", games, names)
    folders = check_folder(out, names)
    teams = []
    for setup in setups:
        # Refuses a malformed suite name before anything is written.
        setup.environment.reset(setup.config, split=suite, seed=0)
        teams.append(parse_lineup(lineup, setup.spec.num_players, env=setup.env))
    aside = make_console(aside=True)
    if is_held_out(suite):
        warning = (
            f"warning: suite {suite} is held out; training on these games contaminates evaluations "
            "on it."
        )
        aside.print(warning, style="yellow")
    num_done = dict.fromkeys(names, 0)
    total = sum(num_tasks)

    def summary() -> str:
        done = f"stopped: {sum(num_done.values())} of {total} tasks are done and kept"
        return f"{done}; run the same command again to continue."

    needs_server = any(team.needs_server for team in teams)
    say = sayer(make_console())
    with (
        interruptible(summary),
        chosen[0].serving(aside, needed=needs_server, own=own_server) as served,
        progress_bars(aside) as progress,
        FigureLog(chosen[0].loaded, out / "figures", name=out.name, last_step=total) as log,
    ):
        for number, (name, setup, team) in enumerate(zip(names, setups, teams, strict=True)):
            of_game = f" of {name}" if len(names) > 1 else ""
            title = f"{lineup}: {num_tasks[number]} tasks × {num_games[number]} games{of_game}"
            bar = progress.add_task(title, total=num_tasks[number])
            prefix = f"{name}/" if len(names) > 1 else ""
            num_orders = len(team.orders(rotate=not no_rotate))

            def show(count: int, name: str = name, bar: TaskID = bar) -> None:
                num_done[name] = count
                progress.update(bar, completed=count)

            def record(
                state: Progress,
                played: Sequence[Episode],
                setup: Setup[Any] = setup,
                prefix: str = prefix,
                num_orders: int = num_orders,
            ) -> None:
                figures = {"games": float(len(played))}
                for figure, value in game_figures(setup, played, num_orders).items():
                    figures[f"{prefix}{figure}"] = value
                log.add(sum(num_done.values()), figures)

            collected = collect_games(
                team,
                setup,
                folders[number],
                suite=suite,
                num_tasks=num_tasks[number],
                num_games=num_games[number],
                rotate=not no_rotate,
                served=served,
                progress=show,
                record=record,
            )
            mean_score = collected.score / collected.games
            say(
                f"{folders[number]}: {collected.games} games of {collected.tasks} tasks, mean "
                f"score {mean_score:.3f}"
            )
    if log.is_on:
        say(f"figures: {log.folder}")
