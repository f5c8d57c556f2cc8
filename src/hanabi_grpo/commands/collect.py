"""`hanabi-grpo collect`: games of a lineup as JSON lines, without a trainer."""

from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.commands.console import bars, interruptible, make_console, sayer
from hanabi_grpo.commands.playing import Env, OwnServer, Players, Preset, Temperature, choose
from hanabi_grpo.envs.base import is_held_out
from hanabi_grpo.evaluation.collect import collect_games


def collect(
    lineup: Annotated[str, typer.Argument(help="Who plays, as in evaluate.")],
    out: Annotated[Path, typer.Option(help="Folder of the games; continues it if it exists.")],
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 100,
    games: Annotated[int, typer.Option(min=1, help="Games of each task.")] = 1,
    suite: Annotated[str, typer.Option(help="Stream of tasks.")] = "collect",
    env: Env = None,
    preset: Preset = None,
    players: Players = None,
    temperature: Temperature = None,
    no_rotate: Annotated[
        bool, typer.Option("--no-rotate", help="Every task in the seat order typed.")
    ] = False,
    own_server: OwnServer = False,
) -> None:
    """Record games of a lineup as JSON lines, without training; rerun the same command to
    continue.

    Environment: HANABI_ENV, HANABI_PRESET, VLLM_SERVER_PORT, TEMPERATURE and the others of
    evaluate.
    """
    chosen = choose(env, preset, players, temperature)
    game = chosen.game
    game.environment.reset(
        game.config, split=suite, seed=0
    )  # refuses a malformed name before anything is written
    team = parse_lineup(lineup, game.spec.num_players, env=game.env)
    aside = make_console(aside=True)
    if is_held_out(suite):
        said = (
            f"warning: suite {suite} is held out; training on these games spoils evaluations on it."
        )
        aside.print(said, style="yellow")
    done = 0
    stopped = "stopped: {} of {} tasks are done and kept; the same command goes on."
    with (
        interruptible(lambda: stopped.format(done, tasks)),
        chosen.serving(aside, needed=team.needs_server, own=own_server) as served,
        bars(aside) as shown,
    ):
        bar = shown.add_task(f"{lineup}: {tasks} tasks × {games} games", total=tasks)

        def progress(num_tasks: int) -> None:
            nonlocal done
            done = num_tasks
            shown.update(bar, completed=num_tasks)

        state = collect_games(
            team,
            game,
            out,
            suite=suite,
            num_tasks=tasks,
            num_games=games,
            rotate=not no_rotate,
            served=served,
            progress=progress,
        )
    mean = f"mean score {state.score / state.games:.3f}"
    sayer(make_console())(f"{out}: {state.games} games of {state.tasks} tasks, {mean}")
