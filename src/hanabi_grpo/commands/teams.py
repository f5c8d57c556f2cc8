"""`hanabi-grpo teams`: does a team pay? Workflows beside one seat alone and beside a vote at as
many tokens.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import TaskID

from hanabi_grpo.client.lineups import Lineup, parse_lineup
from hanabi_grpo.commands.console import bars, interruptible, make_console
from hanabi_grpo.commands.playing import AsJson, OwnServer, Suite, Temperature, choose, give_result
from hanabi_grpo.envs.workflows.environment import WORKFLOWS
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import check_tasks
from hanabi_grpo.evaluation.teams import (
    TeamResult,
    evaluate_team,
    shared_setup,
    team_document,
    team_sheet,
)
from hanabi_grpo.settings import load_settings
from hanabi_grpo.settings.refs import BASE, SERVED


def teams(
    entries: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKFLOW=LINEUP",
            help="Who answers how, e.g. debate=served summary=outputs/run vote=noisy; lineups as "
            "in evaluate. The "
            "chosen environment with served when left out.",
        ),
    ] = None,
    tasks: Annotated[int, typer.Option(help="Number of held-out problems.")] = 500,
    suite: Suite = "eval",
    temperature: Temperature = None,
    out: Annotated[Path | None, typer.Option(help="JSON file of the result.")] = None,
    as_json: AsJson = False,
    own_server: OwnServer = False,
) -> None:
    """Answer held-out problems in each workflow, by one seat alone, and by a vote at as many
    sampled tokens.

    A lineup of trained adapters stands behind the same workflow with base, the model before
    training.

    Environment: as for evaluate; HANABI_ENV names one of the workflows, and what its settings say
    of problems and
    prompts holds for all of them.
    """
    check_tasks(tasks, suite)
    env = load_settings().settings.env
    asked = [_entry(text) for text in entries or ([f"{env}={SERVED}"] if env in WORKFLOWS else [])]
    if not asked:
        raise SettingsError(
            f"no WORKFLOW=LINEUP: give one, e.g. debate=served; workflows: {', '.join(WORKFLOWS)}."
        )
    chosen = choose(None if env in WORKFLOWS else asked[0][0], None, None, temperature)
    setups = {workflow: shared_setup(chosen.game, workflow) for workflow, _ in asked}

    lineups: dict[tuple[str, str], Lineup] = {}
    for workflow, text in asked:
        typed, base = (
            parse_lineup(one, setups[workflow].spec.num_players, env=workflow)
            for one in (text, BASE)
        )
        lineups |= {(workflow, BASE): base} if typed.needs_server else {}
        lineups[workflow, text] = typed
    console = make_console(aside=as_json)
    results: list[TeamResult] = []
    needed = any(one.needs_server for one in lineups.values())
    with (
        interruptible(
            lambda: f"stopped: {len(results)} of {len(lineups)} lineups were done; nothing is kept."
        ),
        chosen.serving(console, needed=needed, own=own_server) as served,
        bars(make_console(aside=True)) as progress,
    ):
        for (workflow, text), lineup in lineups.items():
            bar = progress.add_task(f"{workflow}={text}: {tasks} problems", total=2 * tasks)

            def show(done: int, bar: TaskID = bar) -> None:
                progress.update(bar, completed=done)

            team = evaluate_team(
                lineup, setups[workflow], tasks, suite=suite, served=served, progress=show
            )
            results.append(team)
    heat = chosen.temperature if needed else None
    about = {
        "problems": chosen.game.config.problems,
        "suite": suite,
        "num_tasks": tasks,
        "temperature": heat,
    }
    title = f"{about['problems']}: {tasks} problems of suite {suite}" + (
        "" if heat is None else f", T={heat:g}"
    )
    table = team_sheet(results, title).rich()
    give_result(console, team_document(results, **about), [table], out=out, as_json=as_json)


def _entry(text: str) -> tuple[str, str]:
    workflow, equals, lineup = (part.strip() for part in text.partition("="))
    if workflow not in WORKFLOWS or not (equals and lineup):
        raise SettingsError(
            f"{text!r}: give WORKFLOW=LINEUP, e.g. debate=served; workflows: "
            f"{', '.join(WORKFLOWS)}."
        )
    return workflow, lineup
