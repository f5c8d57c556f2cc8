"""`hanabi-grpo teams`: is a team worth its tokens?

Compares workflows with a single seat, and with a vote that samples at least as many tokens.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import TaskID

from hanabi_grpo.client.lineups import Lineup, parse_lineup
from hanabi_grpo.commands.console import interruptible, make_console, progress_bars
from hanabi_grpo.commands.playing import (
    AsJson,
    OwnServer,
    Suite,
    Temperature,
    choose,
    give_result,
)
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.workflows.environment import WORKFLOWS
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import check_tasks, describe_sampling
from hanabi_grpo.evaluation.puzzles import PUZZLES, evaluate_puzzle, puzzle_setup, puzzle_sheet
from hanabi_grpo.evaluation.result_files import check_out
from hanabi_grpo.evaluation.teams import (
    TeamResult,
    evaluate_team,
    shared_setup,
    team_document,
    team_sheet,
)
from hanabi_grpo.settings import load_settings
from hanabi_grpo.settings.refs import BASE, SERVED
from hanabi_grpo.token_filter import ALL_TOKENS

_GAMES = (*WORKFLOWS, *PUZZLES)
"""Environments that can be compared."""


def teams(
    entries: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORKFLOW=LINEUP",
            help="A workflow and the policies that play it, as in evaluate, e.g. debate=served "
            "summary=outputs/run vote=noisy.",
            show_default="HANABI_ENV=served",
        ),
    ] = None,
    tasks: Annotated[int, typer.Option(help="Number of held-out problems.")] = 500,
    suite: Suite = "eval",
    temperature: Temperature = None,
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON to this file.")] = None,
    as_json: AsJson = False,
    own_server: OwnServer = False,
) -> None:
    """Compare a team with a single seat, and with a vote that samples at least as many tokens.

    Each workflow answers held-out problems in all three ways. A lineup of trained adapters is
    also compared with base, the model before training, in the same workflow.

    The puzzles split_sum and hat_line, in which each seat holds a part of the problem, are compared
    with the best possible scores without and with messages, and with a seat and a vote that
    receive no messages.

    Environment: as for evaluate. HANABI_ENV names one of the workflows; its settings for problems
    and prompts apply to all of them.
    """
    check_out(out)
    check_tasks(tasks, suite)
    env = load_settings().settings.env
    default_entries = [f"{env}={SERVED}"] if env in _GAMES else []
    wanted = [_parse_entry(text) for text in entries or default_entries]
    if not wanted:
        raise SettingsError(
            "no WORKFLOW=LINEUP is given: give one, e.g. debate=served; workflows: "
            f"{', '.join(_GAMES)}."
        )
    first_workflow, _ = wanted[0]
    chosen = choose(None if env in _GAMES else first_workflow, None, None, temperature)
    setups = {workflow: _setup(chosen.game, workflow) for workflow, _ in wanted}
    lineups: dict[tuple[str, str], Lineup] = {}
    for workflow, spec in wanted:
        num_players = setups[workflow].spec.num_players
        lineup = parse_lineup(spec, num_players, env=workflow)
        if lineup.needs_server:
            lineups[workflow, BASE] = parse_lineup(BASE, num_players, env=workflow)
        lineups[workflow, spec] = lineup
    console = make_console(aside=as_json)
    results: list[TeamResult] = []
    needs_server = any(lineup.needs_server for lineup in lineups.values())

    def stop_summary() -> str:
        return f"stopped: {len(results)} of {len(lineups)} lineups are done; nothing was saved."

    with (
        interruptible(stop_summary),
        chosen.serving(console, needed=needs_server, own=own_server) as served,
        progress_bars(make_console(aside=True)) as progress,
    ):
        for (workflow, spec), lineup in lineups.items():
            # Each problem is answered by the team, and again by the vote.
            bar = progress.add_task(f"{workflow}={spec}: {tasks} problems", total=2 * tasks)

            def show(num_done: int, bar: TaskID = bar) -> None:
                progress.update(bar, completed=num_done)

            evaluate_one = evaluate_puzzle if workflow in PUZZLES else evaluate_team
            result = evaluate_one(
                lineup, setups[workflow], tasks, suite=suite, served=served, progress=show
            )
            results.append(result)
    # Scripts alone sample nothing.
    used_temperature = served.temperature if served is not None else None
    token_filter = served.token_filter if served is not None else ALL_TOKENS
    of_workflows = [result for result in results if result.workflow in WORKFLOWS]
    of_puzzles = [result for result in results if result.workflow in PUZZLES]
    sampled = f" of suite {suite}{describe_sampling(used_temperature, token_filter)}"
    problems = None
    if of_workflows:
        problems = setups[of_workflows[0].workflow].config.problems
    document = team_document(
        results,
        problems=problems,
        suite=suite,
        num_tasks=tasks,
        temperature=used_temperature,
        top_p=token_filter.top_p,
        top_k=token_filter.top_k,
    )
    tables = []
    if of_workflows:
        num_different = of_workflows[0].rows[0].right.num_starts
        different = f" ({num_different} different)" if num_different < tasks else ""
        title = f"{problems}: {tasks} problems{different}{sampled}"
        tables.append(team_sheet(of_workflows, title).rich())
    if of_puzzles:
        title = f"puzzles in parts: {tasks} problems{sampled}"
        tables.append(puzzle_sheet(of_puzzles, title).rich())
    for result in results:
        if result.num_too_long:
            make_console(aside=True).print(
                f"{result.workflow}={result.lineup}: {result.num_too_long} of {tasks} problems "
                "leave no room for a reply in HANABI_MAX_MODEL_LEN and count as wrong."
            )
    give_result(console, document, tables, out=out, as_json=as_json)


def _setup(game: Setup[Any], name: str) -> Setup[Any]:
    """Return the setup of one game, with the settings that it shares with the chosen game."""
    if name in PUZZLES:
        return puzzle_setup(game, name)
    if game.env in PUZZLES:
        workflow = registry.get(name)
        return registry.setup(
            name, workflow.presets[name].model_dump() | {"style": game.config.style}
        )
    return shared_setup(game, name)


def _parse_entry(text: str) -> tuple[str, str]:
    """Parse "debate=served" to ("debate", "served")."""
    workflow, equals, lineup = (part.strip() for part in text.partition("="))
    if workflow not in _GAMES or not equals or not lineup:
        raise SettingsError(
            f"{text!r}: give WORKFLOW=LINEUP, e.g. debate=served; workflows: {', '.join(_GAMES)}."
        )
    return workflow, lineup
