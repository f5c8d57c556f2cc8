"""`hanabi-grpo collect`: games of a lineup as JSON lines, without a trainer."""

from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.commands.console import interruptible, make_console, progress_bars, sayer
from hanabi_grpo.commands.playing import Env, OwnServer, Players, Preset, Temperature, choose
from hanabi_grpo.envs.base import is_held_out
from hanabi_grpo.evaluation.collect import collect_games
from hanabi_grpo.settings.zoo import use_zoo


def collect(
    lineup: Annotated[str, typer.Argument(help="Policies that play, as in evaluate.")],
    out: Annotated[Path, typer.Option(help="Folder of the games; continued if it exists.")],
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 100,
    games: Annotated[int, typer.Option(min=1, help="Games of each task.")] = 1,
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

    The same command continues an interrupted one.

    Environment: HANABI_ENV, HANABI_PRESET, VLLM_SERVER_PORT, TEMPERATURE and the others of
    evaluate.
    """
    own_server = use_zoo([lineup]) or own_server
    chosen = choose(env, preset, players, temperature)
    game = chosen.game
    # Refuses a malformed name of a suite before anything is written.
    game.environment.reset(game.config, split=suite, seed=0)
    team = parse_lineup(lineup, game.spec.num_players, env=game.env)
    aside = make_console(aside=True)
    if is_held_out(suite):
        warning = (
            f"warning: suite {suite} is held out; training on these games spoils evaluations on it."
        )
        aside.print(warning, style="yellow")
    num_done = 0

    def summary() -> str:
        done = f"stopped: {num_done} of {tasks} tasks are done and kept"
        return f"{done}; run the same command again to continue."

    with (
        interruptible(summary),
        chosen.serving(aside, needed=team.needs_server, own=own_server) as served,
        progress_bars(aside) as progress,
    ):
        bar = progress.add_task(f"{lineup}: {tasks} tasks × {games} games", total=tasks)

        def show(num_tasks: int) -> None:
            nonlocal num_done
            num_done = num_tasks
            progress.update(bar, completed=num_tasks)

        collected = collect_games(
            team,
            game,
            out,
            suite=suite,
            num_tasks=tasks,
            num_games=games,
            rotate=not no_rotate,
            served=served,
            progress=show,
        )
    mean_score = collected.score / collected.games
    sayer(make_console())(
        f"{out}: {collected.games} games of {collected.tasks} tasks, mean score {mean_score:.3f}"
    )
