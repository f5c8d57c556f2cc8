"""`hanabi-grpo evaluate`: scores of lineups on held-out tasks, beside those of scripts."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.commands.console import interruptible, make_console, progress_bars, sayer
from hanabi_grpo.commands.playing import (
    AsJson,
    Env,
    OwnServer,
    Players,
    Preset,
    Suite,
    Temperature,
    choose,
    give_result,
)
from hanabi_grpo.evaluation.evaluate import check_tasks
from hanabi_grpo.evaluation.lineups import evaluate_lineups, parse_lineups
from hanabi_grpo.runs.run_folder import EVALUATIONS, results_folder
from hanabi_grpo.settings.refs import SERVED
from hanabi_grpo.settings.zoo import use_zoo


def evaluate(
    lineups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LINEUP",
            help="Policies that play: one for all seats, or one for each seat with commas. A "
            "policy is served, player_1@latest, base, the folder of a checkpoint or run, "
            "wandb:team/project/name:alias, hf:org/repo, or a script such as iggi.",
            show_default="served",
        ),
    ] = None,
    tasks: Annotated[
        int, typer.Option(help="Number of held-out tasks, each played in every seat order.")
    ] = 1000,
    suite: Suite = "eval",
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

    The same command continues an interrupted one, whose finished tasks are in evaluations/ of
    OUTPUT_DIR, or of outputs/ where that is not set. A result of a run's checkpoint, or of what its
    trainer serves, is also kept in evaluations/ of the run folder, and so is one of base on its
    server or beside its checkpoints: report shows it as the run before training.

    Environment: VLLM_SERVER_HOST, VLLM_SERVER_PORT, HANABI_API_KEY and HANABI_SERVER_TIMEOUT find
    the server; with --own-server MODEL and the others of serve start one. DATASET, HANABI_PRESET
    and HANABI_PLAYERS choose the board. TEMPERATURE and MAX_COMPLETION_LENGTH hold for replies,
    SEED decides them: the same command gives the same games. WANDB_ENTITY, WANDB_MODE, OUTPUT_DIR
    and HF_HOME for wandb: and hf: policies.
    """
    check_tasks(tasks, suite)
    specs = lineups or [SERVED]
    own_server = use_zoo(specs) or own_server
    chosen = choose(env, preset, players, temperature)
    teams = parse_lineups(specs, chosen.game, label=label)
    aside = make_console(aside=True)
    console = make_console(aside=as_json)
    num_done = {team.name: 0 for team in teams}
    needs_server = any(team.lineup.needs_server for team in teams)

    folder = results_folder(chosen.loaded.settings)
    place = f" in {folder / EVALUATIONS}" if out is None else ""

    with (
        interruptible(lambda: _stop_summary(num_done, tasks, place)),
        chosen.serving(console, needed=needs_server, own=own_server) as served,
        progress_bars(aside) as progress,
    ):

        def begin(title: str, total: int, name: str) -> Callable[[int], None]:
            bar = progress.add_task(title, total=total)

            def show(count: int) -> None:
                if name:
                    num_done[name] = count
                progress.update(bar, completed=count)

            return show

        evaluation = evaluate_lineups(
            teams,
            chosen.game,
            tasks,
            suite=suite,
            served=served,
            rotate=not no_rotate,
            out=out,
            folder=folder,
            begin=begin,
        )
        progress.stop()
        tables = [sheet.rich() for sheet in evaluation.sheets()]
        give_result(
            console,
            evaluation.document(),
            tables,
            out=out,
            as_json=as_json,
            kept=evaluation.kept_document(),
        )
        say = sayer(aside)
        if not evaluation.keep_with_runs(served, say) and out is None:
            say("No file was written; --out FILE keeps the result.")


def _stop_summary(num_done: Mapping[str, int], num_tasks: int, place: str) -> str:
    """Say how many tasks of each lineup are done, where they are, and how to continue."""
    by_lineup = ""
    if len(num_done) > 1:
        counts = ", ".join(f"{label}: {count}" for label, count in num_done.items())
        by_lineup = f" ({counts})"
    total = len(num_done) * num_tasks
    if not sum(num_done.values()):
        return f"stopped: none of {total} tasks is done."
    return (
        f"stopped: {sum(num_done.values())} of {total} tasks are done{by_lineup} and kept"
        f"{place}; run the same command again to continue."
    )
