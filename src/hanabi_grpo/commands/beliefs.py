"""`hanabi-grpo beliefs`: what players believe about hidden cards, and what they should believe."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import TaskID

from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.commands.console import make_console, progress_bars
from hanabi_grpo.commands.playing import (
    AsJson,
    Env,
    OwnServer,
    Preset,
    Suite,
    choose,
    give_result,
)
from hanabi_grpo.evaluation.belief_results import (
    SAMPLING_TEMPERATURE,
    SeatOrder,
    belief_sheets,
    check_lineup,
    lineup_beliefs,
)
from hanabi_grpo.evaluation.evaluate import SUITE, check_tasks
from hanabi_grpo.evaluation.lineups import distinct_labels
from hanabi_grpo.evaluation.result_files import BELIEFS, check_out
from hanabi_grpo.settings.refs import SERVED
from hanabi_grpo.settings.zoo import use_zoo

_TASKS = 200


def beliefs(
    lineups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LINEUP",
            help="Policies to measure, as in evaluate: scripts, served, base, a run or its "
            "checkpoints.",
            show_default="served",
        ),
    ] = None,
    tasks: Annotated[
        int, typer.Option(help="Number of held-out tasks, each played in every seat order.")
    ] = _TASKS,
    suite: Suite = SUITE,
    env: Env = None,
    preset: Preset = None,
    no_rotate: Annotated[
        bool, typer.Option("--no-rotate", help="Play the given seat order only.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON to this file.")] = None,
    as_json: AsJson = False,
    own_server: OwnServer = False,
) -> None:
    """Compare players' beliefs about hidden cards with exact posteriors.

    Supports Hanabi on boards with 2 colors and 2 ranks, Kuhn poker and Leduc poker. At every turn
    of held-out tasks played at temperature 1, it computes the posterior given the rules alone and
    the posterior given the other players' policies, and asks the model about each card in a
    conversation that is then discarded. Also shows the bits that a hint carries by the rules and
    by convention. Models must remember only the current turn (HANABI_MEMORY=turn); scripts cannot
    be asked.

    Environment: as for evaluate. VLLM_SERVER_HOST, VLLM_SERVER_PORT, HANABI_API_KEY and
    HANABI_SERVER_TIMEOUT locate the server; DATASET, HANABI_PRESET and HANABI_PLAYERS select the
    game; SEED makes replies reproducible.
    """
    specs = lineups or [SERVED]
    own_server = use_zoo(specs) or own_server
    chosen = choose(env, preset, None, SAMPLING_TEMPERATURE)
    game = chosen.game
    num_players = game.spec.num_players
    check_out(out)
    check_tasks(tasks, suite)
    teams = {}
    for spec in specs:
        teams[spec] = parse_lineup(spec, num_players=num_players, env=game.env)
        check_lineup(game, teams[spec], suite=suite)
    console = make_console(aside=as_json)
    results: dict[str, list[SeatOrder]] = {}
    needs_server = any(team.needs_server for team in teams.values())
    with (
        chosen.serving(console, needed=needs_server, own=own_server) as served,
        progress_bars(make_console(aside=True)) as bars,
    ):
        for spec, team in teams.items():
            num_games = tasks * len(team.orders(rotate=not no_rotate))
            bar = bars.add_task(team.label, total=num_games)

            def show(count: int, bar: TaskID = bar) -> None:
                bars.update(bar, completed=count)

            results[spec] = lineup_beliefs(
                team,
                game,
                tasks,
                suite=suite,
                served=served,
                rotate=not no_rotate,
                progress=show,
            )
    document: dict[str, Any] = {
        **game.row(),
        "spec_hash": game.spec.hash,
        "suite": suite,
        "num_tasks": tasks,
        BELIEFS: {spec: [_row(order) for order in orders] for spec, orders in results.items()},
    }
    labels = distinct_labels(list(teams.values()))
    named = dict(zip(labels, results.values(), strict=True))
    sheets = belief_sheets(game.spec.preset, named, num_players)
    give_result(console, document, [sheet.rich() for sheet in sheets], out=out, as_json=as_json)


def _row(order: SeatOrder) -> dict[str, Any]:
    return {"seats": list(order.seats), **order.figures}
