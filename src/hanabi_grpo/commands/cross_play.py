"""`hanabi-grpo cross-play`: every policy with every other on common tasks, in both seat orders."""

import shlex
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from hanabi_grpo.client.lineups import Lineup
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
    Suite,
    Temperature,
    choose,
)
from hanabi_grpo.evaluation.crossplay.base_models import ServerGroup, group_cells
from hanabi_grpo.evaluation.crossplay.plan import (
    Plan,
    make_plan,
    parse_entries,
    play_cells,
    with_sampling,
)
from hanabi_grpo.evaluation.crossplay.summary import all_sheets, describe, summarise, summary_json
from hanabi_grpo.evaluation.evaluate import check_tasks
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.report.cross_play_page import write_cross_play
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.runs.run_folder import CROSS_PLAY, results_folder
from hanabi_grpo.settings.refs import ScriptRef
from hanabi_grpo.settings.zoo import use_zoo

_MAX_MATRIX = 6
"""Entries whose matrix still fits into 120 columns."""


def cross_play(
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="ENTRY",
            help="A policy: a script such as iggi, served, base, player_1@latest, the folder of a "
            "run or checkpoint, wandb:team/project/name:alias or hf:org/repo. :player_1 behind a "
            "checkpoint chooses one adapter of it. NAME=ENTRY gives it a name in the tables.",
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
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the result; continued if it exists.",
            show_default="a new one in OUTPUT_DIR, or in outputs/",
        ),
    ] = None,
    as_json: AsJson = False,
    own_server: OwnServer = False,
) -> None:
    """Play every policy with every other, in both seat orders.

    Shows a heat map, self-play minus cross-play, and the worst partners.

    Environment: HANABI_ENV, HANABI_PRESET, VLLM_SERVER_PORT, TEMPERATURE and the others of
    evaluate.
    """
    check_tasks(tasks, suite)
    own_server = use_zoo(texts) or own_server
    chosen = choose(env, preset, players, temperature)
    entries = parse_entries(texts, chosen.game)
    if out is None:
        name = f"{CROSS_PLAY}{chosen.game.spec.preset}-{datetime.now():%Y%m%d-%H%M%S}"
        folder = results_folder(chosen.loaded.settings) / name
    else:
        folder = out
    aside = make_console(aside=True)
    console = make_console(aside=as_json)
    cells: dict[str, EvaluationResult] = {}
    plan: Plan | None = None

    def stop_summary() -> str:
        if plan is None:
            return "stopped before the games began."
        if cells:
            write_cross_play(folder, summarise(plan, cells))
        return (
            f"stopped: {len(cells)} of {len(plan.cells)} pairs are done, and reported in {folder}; "
            "finished tasks are kept. To continue: the same command with "
            f"--out {shlex.quote(str(folder))}"
        )

    needs_server = any(not isinstance(entry.ref, ScriptRef) for entry in entries)
    say = sayer(console)

    def play(served: Served | None, names: Collection[str] | None = None) -> None:
        assert plan is not None, "cells are played once there is a plan"
        with progress_bars(aside) as bars:
            cells_bar = bars.add_task("pairs", total=len(plan.cells))
            tasks_bar = bars.add_task("tasks", total=plan.num_tasks)

            def begin(lineup: Lineup) -> None:
                bars.update(cells_bar, completed=len(cells))
                bars.update(tasks_bar, completed=0, description=lineup.label)

            def progress(num_done: int) -> None:
                bars.update(tasks_bar, completed=num_done)

            play_cells(
                plan, folder, cells, served=served, begin=begin, progress=progress, names=names
            )
            bars.update(cells_bar, completed=len(cells))
            bars.update(tasks_bar, completed=plan.num_tasks, description="tasks")

    with interruptible(stop_summary):
        groups: list[ServerGroup] = []
        if own_server:
            unresolved = make_plan(
                entries, chosen.game, tasks, suite=suite, served=None, resolve=False
            )
            groups = group_cells(unresolved, chosen.loaded.settings.model)
        if len({name for group in groups for name in group.models}) > 1:
            for number, group in enumerate(groups, start=1):
                say(
                    f"server {number} of {len(groups)}: MODEL={group.model} "
                    f"({len(group.cells)} pairs)"
                )
                is_needed = bool(group.models)
                with chosen.serving(
                    console, needed=is_needed, own=True, model=group.model if is_needed else None
                ) as served:
                    if plan is None or plan.temperature is None:
                        plan = with_sampling(unresolved, served)
                    play(served, group.cells)
        else:
            with chosen.serving(console, needed=needs_server, own=own_server) as served:
                plan = make_plan(entries, chosen.game, tasks, suite=suite, served=served)
                play(served)
        assert plan is not None, "there is a group"
        summary = summarise(plan, cells)
        files = write_cross_play(folder, summary)
    if as_json:
        print_json(summary_json(summary))
    else:
        for line in describe(summary):
            say(line)
        matrix, *other_sheets = all_sheets(summary)
        if len(summary.labels) <= _MAX_MATRIX:
            console.print(matrix.rich())
        for sheet in other_sheets:
            console.print(sheet.rich())
    for file in files:
        say(f"wrote {file}")
