"""`hanabi-grpo adhoc`: a run's players with unseen partners, and bounds on the scores."""

import shlex
from typing import Annotated

import typer

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
    ResultFolder,
    Suite,
    Temperature,
    choose,
    lineup_bars,
    result_folder,
)
from hanabi_grpo.envs.starts import HALF
from hanabi_grpo.evaluation.adhoc.bounds import ExactBound, bounds_file, compute_bounds
from hanabi_grpo.evaluation.adhoc.plan import (
    AdhocPlan,
    make_adhoc_plan,
    parse_adhoc,
    play_lineups,
)
from hanabi_grpo.evaluation.adhoc.summary import (
    adhoc_json,
    adhoc_sheets,
    describe_adhoc,
    summarise_adhoc,
)
from hanabi_grpo.evaluation.evaluate import check_tasks
from hanabi_grpo.evaluation.result_files import held_result, replaced_note
from hanabi_grpo.report.adhoc_page import JSON_FILE, write_adhoc
from hanabi_grpo.runs.evaluation_result import EvaluationResult
from hanabi_grpo.runs.run_folder import ADHOC
from hanabi_grpo.settings.refs import ScriptRef
from hanabi_grpo.settings.zoo import use_zoo


def adhoc(
    candidates: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Policies to evaluate: the folder of a run or checkpoint, served, base, a script, "
            "zoo:NAME, wandb: or hf:. Several are compared; without any, only the partners and "
            "their bounds are shown. NAME=RUN sets the name in the tables.",
        ),
    ] = None,
    partners: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="PARTNER", help="Add a partner to the scripts. May be repeated."
        ),
    ] = None,
    only: Annotated[
        bool, typer.Option("--only", help="Use only the partners of --with, no scripts.")
    ] = False,
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            "--bound",
            metavar="NAME=SCORE",
            help="Score that counts as 100 % with a partner: a number, or a run trained as a best "
            "response to it. May be repeated.",
        ),
    ] = None,
    env: Env = None,
    preset: Preset = None,
    players: Players = None,
    tasks: Annotated[int, typer.Option(help="Number of held-out tasks per pairing.")] = 500,
    suite: Suite = "eval",
    temperature: Temperature = None,
    out: ResultFolder = None,
    as_json: AsJson = False,
    own_server: OwnServer = False,
) -> None:
    """Evaluate a run's players with partners that they did not train with.

    Shows the score with each partner next to the partner's self-play score and the score of a best
    response to it (100 %): exact on small boards, otherwise the best score seen.

    Environment: HANABI_ENV, HANABI_PRESET, VLLM_SERVER_PORT, TEMPERATURE and the others of
    evaluate.
    """
    candidates = candidates or []
    partners = partners or []
    bounds = bounds or []
    check_tasks(tasks, suite)
    responses = [text.partition("=")[2] for text in bounds]
    own_server = use_zoo([*candidates, *partners, *responses]) or own_server
    chosen = choose(env, preset, players, temperature)
    pool = parse_adhoc(candidates, partners, bounds, chosen.game, only=only)
    folder = result_folder(out, chosen, ADHOC)
    aside = make_console(aside=True)
    console = make_console(aside=as_json)
    held = held_result(folder / JSON_FILE)
    results: dict[str, EvaluationResult] = {}
    exact: dict[str, ExactBound] = {}
    plan: AdhocPlan | None = None

    def stop_summary() -> str:
        if plan is None:
            return "stopped before the first game; computed bounds are kept."
        note = ""
        if results:
            summary = summarise_adhoc(plan, results, exact)
            write_adhoc(folder, summary)
            note = replaced_note(folder / JSON_FILE, held, adhoc_json(summary))
        stopped = (
            f"stopped: {len(results)} of {len(plan.lineups)} lineups are done and reported in "
            f"{folder}; finished tasks are kept. To continue, run the same command with "
            f"--out {shlex.quote(str(folder))}"
        )
        return f"{stopped}\n{note}".rstrip()

    entries = [*pool.candidates, *pool.partners]
    entries += [given for given in pool.given.values() if not isinstance(given, float)]
    needs_server = any(not isinstance(entry.ref, ScriptRef) for entry in entries)
    scripts = []
    for entry in pool.partners:
        # Given bounds are not computed.
        if isinstance(entry.ref, ScriptRef) and entry.label not in pool.given:
            scripts.append(str(entry.ref))
    say = sayer(console)
    with interruptible(stop_summary):
        # Exact bounds are means over all starts, and these suites hold only half of them.
        if not suite.startswith(HALF):
            with progress_bars(aside) as bars:
                bounds_bar = bars.add_task("bounds", total=None)

                def computed(num_done: int, total: int) -> None:
                    bars.update(bounds_bar, completed=num_done, total=total)

                exact = compute_bounds(chosen.game, scripts, progress=computed)
                bars.update(bounds_bar, completed=1, total=1)
        with chosen.serving(console, needed=needs_server, own=own_server) as served:
            plan = make_adhoc_plan(pool, chosen.game, tasks, suite=suite, served=served)
            with lineup_bars(
                aside,
                "lineups",
                num_lineups=len(plan.lineups),
                num_tasks=plan.num_tasks,
                results=results,
            ) as shown:
                play_lineups(
                    plan,
                    folder,
                    results,
                    served=served,
                    begin=shown.begin,
                    progress=shown.progress,
                )
        summary = summarise_adhoc(plan, results, exact)
        files = write_adhoc(folder, summary)
    if as_json:
        print_json(adhoc_json(summary))
    else:
        for line in describe_adhoc(summary):
            say(line)
        for sheet in adhoc_sheets(summary):
            console.print(sheet.rich())
    for file in files:
        say(f"wrote {file}")
    note = replaced_note(folder / JSON_FILE, held, adhoc_json(summary))
    if note:
        say(note, "yellow")
    kept = bounds_file(chosen.game)
    if exact and kept is not None:
        say(f"exact bounds are kept in {kept}")
