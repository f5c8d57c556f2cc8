"""`hanabi-grpo cross-play`: every entry with every other on common tasks, in both orders."""

import shlex
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.client.lineups import Lineup
from hanabi_grpo.commands.console import bars, interruptible, make_console, print_json, sayer
from hanabi_grpo.commands.playing import (
    AsJson,
    Env,
    OwnServer,
    Players,
    Preset,
    Suite,
    Temperature,
    choose,
)
from hanabi_grpo.evaluation.crossplay.plan import Plan, make_plan, parse_entries, play_cells
from hanabi_grpo.evaluation.crossplay.summary import all_sheets, describe, summarise, summary_json
from hanabi_grpo.evaluation.evaluate import check_tasks
from hanabi_grpo.report.cross_play_page import write_cross_play
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.settings.refs import ScriptRef


def cross_play(
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="ENTRY",
            help="One word each: a script such as iggi, served, base, player_1@latest, a run's or "
            "checkpoint's folder, "
            "wandb:team/project/name:alias, hf:org/repo, or one of these and an adapter, "
            "FOLDER:player_1. "
            "NAME=WORD names it.",
        ),
    ],
    env: Env = None,
    preset: Preset = None,
    players: Players = None,
    tasks: Annotated[
        int, typer.Option(help="Number of held-out tasks that every pair plays.")
    ] = 1000,
    suite: Suite = "eval",
    temperature: Temperature = None,
    out: Annotated[Path | None, typer.Option(help="Folder; continues it if it exists.")] = None,
    as_json: AsJson = False,
    own_server: OwnServer = False,
) -> None:
    """Play every entry with every other in both orders: heat map, self-play minus cross-play, worst
    partners.

    Environment: HANABI_ENV, HANABI_PRESET, VLLM_SERVER_PORT, TEMPERATURE and the others of
    evaluate.
    """
    check_tasks(tasks, suite)
    chosen = choose(env, preset, players, temperature)
    entries = parse_entries(texts, chosen.game)
    folder = (
        out
        or Path("outputs") / f"cross-play-{chosen.game.spec.preset}-{datetime.now():%Y%m%d-%H%M%S}"
    )
    aside, console = make_console(aside=True), make_console(aside=as_json)
    cells: dict[str, EvaluationResult] = {}
    plan: Plan | None = None

    def standing() -> str:
        if plan is None:
            return "stopped before the games began."
        if cells:
            write_cross_play(folder, summarise(plan, cells))
        done = (
            f"stopped: {len(cells)} of {len(plan.cells)} pairs are done, and reported in {folder}"
        )
        return (
            f"{done}; finished tasks are kept. To go on: the same command with --out "
            f"{shlex.quote(str(folder))}"
        )

    needed = any(not isinstance(entry.ref, ScriptRef) for entry in entries)
    with interruptible(standing), chosen.serving(console, needed=needed, own=own_server) as served:
        plan = make_plan(entries, chosen.game, tasks, suite=suite, served=served)
        with bars(aside) as shown:
            of_cells = shown.add_task("cells", total=len(plan.cells))
            of_tasks = shown.add_task("tasks", total=plan.num_tasks)

            def begin(lineup: Lineup) -> None:
                shown.update(of_cells, completed=len(cells))
                shown.update(of_tasks, completed=0, description=lineup.label)

            def progress(done: int) -> None:
                shown.update(of_tasks, completed=done)

            play_cells(plan, folder, cells, served=served, begin=begin, progress=progress)
            shown.update(of_cells, completed=len(cells))
            shown.update(of_tasks, completed=plan.num_tasks, description="tasks")
        summary = summarise(plan, cells)
        files = write_cross_play(folder, summary)
    say = sayer(console)
    if as_json:
        print_json(summary_json(summary))
    else:
        for line in describe(summary):
            say(line)
        # The matrix of more than six entries does not fit into 120 columns.
        for sheet in all_sheets(summary)[0 if len(summary.labels) <= 6 else 1 :]:
            console.print(sheet.rich())
    for file in files:
        say(f"wrote {file}")
