"""`hanabi-grpo evaluate`: scores of lineups on held-out tasks, next to those of scripts."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hanabi_grpo.commands.console import (
    interruptible,
    make_console,
    print_json,
    progress_bars,
    sayer,
)
from hanabi_grpo.commands.playing import (
    AsJson,
    Env,
    OwnServer,
    Players,
    Preset,
    Temperature,
    choose_all,
    give_result,
    numbers_of_games,
)
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import SUITE, check_tasks, tasks_of_all_starts
from hanabi_grpo.evaluation.lineups import Evaluation, evaluate_lineups, parse_lineups
from hanabi_grpo.evaluation.result_files import check_out
from hanabi_grpo.rollout.datasets import setup_names
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.runs.run_folder import EVALUATIONS, results_folder
from hanabi_grpo.settings.refs import SERVED
from hanabi_grpo.settings.zoo import use_zoo
from hanabi_grpo.tracking.figure_log import FigureLog
from hanabi_grpo.types import ALL_STARTS

_TASKS = "1000"
"""Default of --tasks."""


def evaluate(
    lineups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LINEUP",
            help="Policies to play: one for all seats, or one per seat, separated by commas. A "
            "policy is served, player_1@latest, base, the folder of a checkpoint or run, "
            "wandb:team/project/name:alias, hf:org/repo, or a script such as iggi.",
            show_default="served",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Number of held-out tasks, each played in every seat order, or one number per "
            "game of DATASET: 500,200.",
            show_default=_TASKS,
        ),
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="Stream of held-out tasks.", show_default=SUITE)
    ] = None,
    all_starts: Annotated[
        bool,
        typer.Option(
            "--all-starts",
            help="For games with few starts: play every start twice, instead of --tasks of "
            "--suite. Scores are then exact, or have only the noise of random draws.",
        ),
    ] = False,
    env: Env = None,
    preset: Preset = None,
    players: Players = None,
    temperature: Temperature = None,
    label: Annotated[
        str | None, typer.Option(help="Name in the tables.", show_default="the lineup")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON to this file.")] = None,
    as_json: AsJson = False,
    no_rotate: Annotated[
        bool, typer.Option("--no-rotate", help="Play the given seat order only.")
    ] = False,
    own_server: OwnServer = False,
) -> None:
    """Play held-out tasks and compare with random and blind play of the same tasks.

    Run the same command again to continue an interrupted one; finished tasks are kept in
    evaluations/ of OUTPUT_DIR, or of outputs/ if that is not set. A DATASET with several games is
    evaluated game by game, and each game's name is added to that of OUT; --preset selects one game.
    Results of a run's checkpoints, or of the adapters that its trainer serves, are also kept in
    evaluations/ of the run folder. So are results of base on the run's server or beside its
    checkpoints; report shows them as the run before training.

    Environment: VLLM_SERVER_HOST, VLLM_SERVER_PORT, HANABI_API_KEY and HANABI_SERVER_TIMEOUT locate
    the server; with --own-server, MODEL and the other variables of serve configure it. DATASET,
    HANABI_PRESET and HANABI_PLAYERS select the board. TEMPERATURE and MAX_COMPLETION_LENGTH apply
    to replies. SEED makes them reproducible: the same command plays the same games. REPORT_TO logs
    metrics next to OUT, or in evaluations/ without it. WANDB_ENTITY, WANDB_MODE, OUTPUT_DIR and
    HF_HOME apply to wandb: and hf: policies.
    """
    specs = lineups or [SERVED]
    own_server = use_zoo(specs) or own_server
    chosen = choose_all(env, preset, players, temperature)
    games = [each.game for each in chosen]
    names = setup_names(games)
    suite, num_tasks = _chosen_tasks(games, names, tasks, suite, all_starts=all_starts)
    teams_of_games = []
    for game in games:
        teams_of_games.append(parse_lineups(specs, game, label=label, rotate=not no_rotate))
    is_one = len(games) == 1
    files: list[Path | None] = []
    for name in names:
        file = out
        if out is not None and not is_one:
            file = out.with_name(f"{out.stem}-{name}{out.suffix}")
        check_out(file)
        files.append(file)
    aside = make_console(aside=True)
    console = make_console(aside=as_json)
    num_done: dict[str, int] = {}
    for name, teams in zip(names, teams_of_games, strict=True):
        for team in teams:
            num_done[team.name if is_one else f"{name} {team.name}"] = 0
    total = sum(number * len(teams_of_games[0]) for number in num_tasks)
    needs_server = any(team.lineup.needs_server for teams in teams_of_games for team in teams)
    folder = results_folder(chosen[0].loaded.settings)
    place = f" in {folder / EVALUATIONS}" if out is None else ""
    figures_folder = folder / EVALUATIONS / f"figures-{datetime.now():%Y%m%d-%H%M%S}"
    if out is not None:
        figures_folder = out.with_name(f"{out.stem}-figures")
    figures = FigureLog(
        chosen[0].loaded,
        figures_folder,
        name=f"evaluate {','.join(specs)}",
        last_step=len(num_done),
    )

    with (
        interruptible(lambda: _stop_summary(num_done, total, place)),
        chosen[0].serving(console, needed=needs_server, own=own_server) as served,
        progress_bars(aside) as progress,
        figures as log,
    ):
        evaluations: list[Evaluation] = []
        num_results = 0
        for name, game, teams, number, file in zip(
            names, games, teams_of_games, num_tasks, files, strict=True
        ):

            def begin(title: str, total: int, team: str, name: str = name) -> Callable[[int], None]:
                bar = progress.add_task(title if is_one else f"{name}, {title}", total=total)

                def show(count: int) -> None:
                    if team:
                        num_done[team if is_one else f"{name} {team}"] = count
                    progress.update(bar, completed=count)

                return show

            evaluation = evaluate_lineups(
                teams,
                game,
                number,
                suite=suite,
                served=served,
                rotate=not no_rotate,
                out=file,
                folder=folder,
                begin=begin,
            )
            for result in evaluation.results:
                row = _figures(result, "" if is_one else f"{name}/")
                num_results += 1
                log.add(num_results, row)
            evaluations.append(evaluation)
        progress.stop()
        _give_all(console, evaluations, files, as_json=as_json)
        say = sayer(aside)
        for evaluation in evaluations:
            if not evaluation.keep_with_runs(served, say) and out is None:
                say("No file was written; use --out FILE to save the result.")
    if log.is_on:
        sayer(aside)(f"figures: {log.folder}")


def _chosen_tasks(
    games: Sequence[Setup[Any]],
    names: Sequence[str],
    tasks: str | None,
    suite: str | None,
    *,
    all_starts: bool,
) -> tuple[str, list[int]]:
    """Return the suite and, for each game, the number of its tasks.

    Args:
        games: The games to play.
        names: Their names.
        tasks: --tasks; None if it is not given.
        suite: --suite; None if it is not given.
        all_starts: Whether --all-starts is given.

    Raises:
        SettingsError: The options contradict each other, or cannot be satisfied.
    """
    if not all_starts:
        suite = suite or SUITE
        num_tasks = numbers_of_games("--tasks", tasks or _TASKS, names)
        for number in num_tasks:
            check_tasks(number, suite)
        return suite, num_tasks
    for option, value in (("--tasks", tasks), ("--suite", suite)):
        if value is not None:
            raise SettingsError(
                f"{option} {value} with --all-starts, which plays every start; remove one of the "
                "two options."
            )
    return ALL_STARTS, [tasks_of_all_starts(game) for game in games]


def _figures(result: EvaluationResult, prefix: str) -> dict[str, float]:
    """Return the metrics of a result that are sent to monitors.

    Args:
        result: The result of one lineup.
        prefix: Prefix of the lineup's name, e.g. "kuhn_poker/".
    """
    of_lineup = f"evaluate/{prefix}{result.label}"
    figures = {
        "games": float(result.num_tasks * len(result.orders)),
        f"{of_lineup}/score/mean": result.mean,
        f"{of_lineup}/score/se": result.standard_error,
        f"{of_lineup}/score/max": max(result.scores),
        f"{of_lineup}/score/min": min(result.scores),
    }
    for name, value in result.figures.items():
        figures[f"{of_lineup}/{name}"] = value
    return figures


def _give_all(
    console: Console,
    evaluations: Sequence[Evaluation],
    files: Sequence[Path | None],
    *,
    as_json: bool,
) -> None:
    """Write and print the evaluation of each game; several games are one JSON document.

    Args:
        console: Console for tables.
        evaluations: One per game.
        files: Output file of each game; None: no file.
        as_json: Whether --json was given.
    """
    for evaluation, file in zip(evaluations, files, strict=True):
        tables = [] if as_json else [sheet.rich() for sheet in evaluation.sheets()]
        give_result(
            console,
            evaluation.document(),
            tables,
            out=file,
            as_json=False,
            kept=evaluation.kept_document(),
        )
    if as_json:
        documents = [evaluation.document() for evaluation in evaluations]
        print_json(documents[0] if len(documents) == 1 else {"games": documents})


def _stop_summary(num_done: Mapping[str, int], total: int, place: str) -> str:
    """Return how many tasks are done, in total and by lineup, and how to continue."""
    by_lineup = ""
    if len(num_done) > 1:
        counts = ", ".join(f"{label}: {count}" for label, count in num_done.items())
        by_lineup = f" ({counts})"
    if not sum(num_done.values()):
        return f"stopped: none of the {total} tasks are done."
    return (
        f"stopped: {sum(num_done.values())} of {total} tasks are done{by_lineup} and kept"
        f"{place}; run the same command again to continue."
    )
