"""`hanabi-grpo cross-play`: every pair of policies on the same tasks, in both seat orders."""

import shlex
from collections.abc import Collection
from typing import Annotated

import typer

from hanabi_grpo.commands.console import (
    interruptible,
    make_console,
    print_json,
    sayer,
)
from hanabi_grpo.commands.playing import (
    AsJson,
    Env,
    OwnServer,
    Players,
    Preset,
    ResultFolder,
    Suite,
    Temperature,
    choose,
    lineup_bars,
    result_folder,
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
from hanabi_grpo.evaluation.result_files import held_result, replaced_note
from hanabi_grpo.report.cross_play_page import JSON_FILE, write_cross_play
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.runs.run_folder import CROSS_PLAY
from hanabi_grpo.settings.refs import ScriptRef
from hanabi_grpo.settings.zoo import use_zoo

_MAX_MATRIX = 6
"""Maximum number of entries whose matrix fits into 120 columns."""


def cross_play(
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="ENTRY",
            help="A policy: a script such as iggi, served, base, player_1@latest, the folder of a "
            "run or checkpoint, wandb:team/project/name:alias or hf:org/repo. :player_1 after a "
            "checkpoint selects one of its adapters. NAME=ENTRY sets the name in the tables.",
        ),
    ],
    env: Env = None,
    preset: Preset = None,
    players: Players = None,
    tasks: Annotated[int, typer.Option(help="Number of held-out tasks per pair.")] = 1000,
    suite: Suite = "eval",
    temperature: Temperature = None,
    out: ResultFolder = None,
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
    folder = result_folder(out, chosen, CROSS_PLAY)
    aside = make_console(aside=True)
    console = make_console(aside=as_json)
    held = held_result(folder / JSON_FILE)
    cells: dict[str, EvaluationResult] = {}
    plan: Plan | None = None

    def stop_summary() -> str:
        if plan is None:
            return "stopped before the first game."
        note = ""
        if cells:
            summary = summarise(plan, cells)
            write_cross_play(folder, summary)
            note = replaced_note(folder / JSON_FILE, held, summary_json(summary))
        stopped = (
            f"stopped: {len(cells)} of {len(plan.cells)} pairs are done and reported in {folder}; "
            "finished tasks are kept. To continue, run the same command with "
            f"--out {shlex.quote(str(folder))}"
        )
        return f"{stopped}\n{note}".rstrip()

    needs_server = any(not isinstance(entry.ref, ScriptRef) for entry in entries)
    say = sayer(console)

    def play(served: Served | None, names: Collection[str] | None = None) -> None:
        assert plan is not None, "cells are played once there is a plan"
        with lineup_bars(
            aside,
            "pairs",
            num_lineups=len(plan.cells),
            num_tasks=plan.num_tasks,
            results=cells,
        ) as shown:
            play_cells(
                plan,
                folder,
                cells,
                served=served,
                begin=shown.begin,
                progress=shown.progress,
                names=names,
            )

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
    note = replaced_note(folder / JSON_FILE, held, summary_json(summary))
    if note:
        say(note, "yellow")
