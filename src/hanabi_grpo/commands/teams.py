"""`hanabi-grpo teams`: does a team pay? Workflows beside one seat alone and beside a vote at as many tokens."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import TaskID

from hanabi_grpo.client.lineups import LineUp, parse_line_up
from hanabi_grpo.commands.console import bars, interruptible, make_console
from hanabi_grpo.commands.playing import AsJson, OwnServer, Suite, Temperature, choose, give_result
from hanabi_grpo.envs.workflows.environment import WORKFLOWS
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import check_deals
from hanabi_grpo.evaluation.teams import TeamResult, evaluate_team, shared_setup, team_document, team_sheet
from hanabi_grpo.settings import load_settings
from hanabi_grpo.settings.refs import BASE, SERVED


def teams(
    entries: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKFLOW=LINE_UP",
            help="Who answers how, e.g. debate=served summary=outputs/run vote=noisy; line-ups as in evaluate. The "
            "chosen environment with served when left out.",
        ),
    ] = None,
    deals: Annotated[int, typer.Option(help="Number of held-out problems.")] = 500,
    suite: Suite = "eval",
    temperature: Temperature = None,
    out: Annotated[Path | None, typer.Option(help="JSON file of the result.")] = None,
    as_json: AsJson = False,
    own_server: OwnServer = False,
) -> None:
    """Answer held-out problems in each workflow, by one seat alone, and by a vote at as many sampled tokens.

    A line-up of trained adapters stands behind the same workflow with base, the model before training.

    Environment: as for evaluate; HANABI_ENV names one of the workflows, and what its settings say of problems and
    prompts holds for all of them.
    """
    check_deals(deals, suite)
    env = load_settings().settings.env
    asked = [_entry(text) for text in entries or ([f"{env}={SERVED}"] if env in WORKFLOWS else [])]
    if not asked:
        raise SettingsError(f"no WORKFLOW=LINE_UP: give one, e.g. debate=served; workflows: {', '.join(WORKFLOWS)}.")
    chosen = choose(None if env in WORKFLOWS else asked[0][0], None, None, temperature)
    setups = {workflow: shared_setup(chosen.game, workflow) for workflow, _ in asked}

    line_ups: dict[tuple[str, str], LineUp] = {}
    for workflow, text in asked:
        typed, base = (parse_line_up(one, setups[workflow].spec.num_players, env=workflow) for one in (text, BASE))
        line_ups |= {(workflow, BASE): base} if typed.needs_server else {}
        line_ups[workflow, text] = typed
    console = make_console(aside=as_json)
    results: list[TeamResult] = []
    needed = any(one.needs_server for one in line_ups.values())
    with (
        interruptible(lambda: f"stopped: {len(results)} of {len(line_ups)} line-ups were done; nothing is kept."),
        chosen.serving(console, needed=needed, own=own_server) as served,
        bars(make_console(aside=True)) as progress,
    ):
        for (workflow, text), line_up in line_ups.items():
            bar = progress.add_task(f"{workflow}={text}: {deals} problems", total=2 * deals)

            def show(done: int, bar: TaskID = bar) -> None:
                progress.update(bar, completed=done)

            team = evaluate_team(line_up, setups[workflow], deals, suite=suite, served=served, progress=show)
            results.append(team)
    heat = chosen.temperature if needed else None
    about = {"problems": chosen.game.config.problems, "suite": suite, "num_deals": deals, "temperature": heat}
    title = f"{about['problems']}: {deals} problems of suite {suite}" + ("" if heat is None else f", T={heat:g}")
    table = team_sheet(results, title).rich()
    give_result(console, team_document(results, **about), [table], out=out, as_json=as_json)


def _entry(text: str) -> tuple[str, str]:
    workflow, equals, line_up = (part.strip() for part in text.partition("="))
    if workflow not in WORKFLOWS or not (equals and line_up):
        raise SettingsError(f"{text!r}: give WORKFLOW=LINE_UP, e.g. debate=served; workflows: {', '.join(WORKFLOWS)}.")
    return workflow, line_up
