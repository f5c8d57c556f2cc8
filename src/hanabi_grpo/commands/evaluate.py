"""`hanabi-grpo evaluate`: scores of lineups on held-out tasks, beside those of scripts."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import TaskID

from hanabi_grpo.client.lineups import Lineup, parse_lineup
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
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import check_tasks, evaluate_lineup, lineup_key
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.evaluation.tables import (
    evaluation_document,
    evaluation_sheets,
    reference_names,
    reference_results,
)
from hanabi_grpo.runs.evaluation_result import EvaluationResult, result_to_json, write_document
from hanabi_grpo.runs.ledger import key_digest
from hanabi_grpo.runs.run_folder import EVALUATIONS
from hanabi_grpo.settings.refs import SERVED, Role

_MAX_STEM = 60
"""Characters of a label that the name of a kept result has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluated:
    """One lineup and its result."""

    team: Lineup
    digest: str
    """Of everything that the result depends on."""
    ledger: Path
    """Keeps finished tasks, so that an interrupted evaluation can be continued."""
    result: EvaluationResult


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

    The same command continues an interrupted one. A result of a run's checkpoint, or of what its
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
    _check_names(specs, label)
    chosen = choose(env, preset, players, temperature)
    game = chosen.game
    teams = [parse_lineup(spec, game.spec.num_players, env=game.env) for spec in specs]
    labels = _labels(teams) if label is None else [label]
    aside = make_console(aside=True)
    console = make_console(aside=as_json)
    num_done: dict[str, int] = dict.fromkeys(labels, 0)
    evaluated: list[_Evaluated] = []
    needs_server = any(team.needs_server for team in teams)

    with (
        interruptible(lambda: _stop_summary(num_done, tasks)),
        chosen.serving(console, needed=needs_server, own=own_server) as served,
        progress_bars(aside) as progress,
    ):
        for number, (team, name) in enumerate(zip(teams, labels, strict=True), start=1):
            key = lineup_key(team, game, suite=suite, served=served, rotate=not no_rotate)
            digest = key_digest(key)
            if out is None:
                ledger = Path("outputs/evaluations") / f"{game.spec.preset}-{digest}.part.jsonl"
            elif len(teams) > 1:
                ledger = out.with_suffix(f".{number}.part.jsonl")
            else:
                ledger = out.with_suffix(".part.jsonl")
            title = f"{name}: {tasks} tasks"
            num_orders = len(team.orders(rotate=not no_rotate))
            if num_orders > 1:
                title += f" in {num_orders} seat orders"
            bar = progress.add_task(title, total=tasks)

            def show(count: int, name: str = name, bar: TaskID = bar) -> None:
                num_done[name] = count
                progress.update(bar, completed=count)

            result = evaluate_lineup(
                team,
                game,
                tasks,
                suite=suite,
                served=served,
                rotate=not no_rotate,
                label=name,
                ledger=ledger,
                progress=show,
            )
            evaluated.append(_Evaluated(team=team, digest=digest, ledger=ledger, result=result))
        results = [one.result for one in evaluated]
        # A script that was evaluated anyway is not played again.
        scripts = [name for name in reference_names(game) if name not in specs]
        references: list[EvaluationResult] = []
        if scripts:
            bar = progress.add_task(f"references: {', '.join(scripts)}", total=tasks * len(scripts))
            references = reference_results(
                results[0], scripts, progress=lambda count: progress.update(bar, completed=count)
            )
        progress.stop()
        document = evaluation_document(results, references)
        # Documents of one result are what `report` and others read; the references in them become
        # rows of the tables of a run.
        documents = []
        for result in results:
            documents.append({**result_to_json(result), "references": document["references"]})
        tables = [sheet.rich() for sheet in evaluation_sheets(results, references)]
        kept = documents[0] if len(documents) == 1 else document
        give_result(console, document, tables, out=out, as_json=as_json, kept=kept)
        for one, own_document in zip(evaluated, documents, strict=True):
            runs = _runs_of(one.team, teams, served) if served else ()
            written = out if len(teams) == 1 else None
            _keep_with_runs(runs, own_document, one.digest, written, sayer(aside))
        for one in evaluated:
            one.ledger.unlink(missing_ok=True)


def _check_names(specs: Sequence[str], label: str | None) -> None:
    """Refuse a lineup that is named twice, and one label for several lineups."""
    for spec in specs:
        if specs.count(spec) > 1:
            raise SettingsError(f"lineup {spec!r}: is named twice; once is enough.")
    if label is not None and len(specs) > 1:
        raise SettingsError(f"--label {label!r}: names one lineup, and {len(specs)} are given.")


def _stop_summary(num_done: Mapping[str, int], num_tasks: int) -> str:
    """Say how many tasks of each lineup are done, and how to continue."""
    by_lineup = ""
    if len(num_done) > 1:
        counts = ", ".join(f"{label}: {count}" for label, count in num_done.items())
        by_lineup = f" ({counts})"
    total = len(num_done) * num_tasks
    return (
        f"stopped: {sum(num_done.values())} of {total} tasks are done{by_lineup} and kept; run the "
        "same command again to continue."
    )


def _labels(teams: Sequence[Lineup]) -> list[str]:
    """Return short labels where they differ, and the whole lineup where two would be equal."""
    short = [team.label for team in teams]
    labels = []
    for team in teams:
        labels.append(team.label if short.count(team.label) == 1 else team.text)
    return labels


def _runs_of(team: Lineup, teams: Sequence[Lineup], served: Served) -> list[Path]:
    """Return the runs that keep a lineup's result.

    These are the runs whose adapters play. The base model alone, or with scripts, is what a run
    was before its first step: its result is kept by the run of the server's session, and by the
    runs whose adapters play in the other lineups of the command.
    """
    resolver = served.resolver
    runs = dict.fromkeys(resolver.run_folders(team.refs))
    if not runs and Role.BASE in team.refs:
        session_run = resolver.session_run()
        if session_run is not None:
            runs[session_run] = None
        for other in teams:
            runs |= dict.fromkeys(resolver.run_folders(other.refs))
    return list(runs)


def _keep_with_runs(
    runs: Iterable[Path],
    document: dict[str, Any],
    digest: str,
    out: Path | None,
    say: Callable[[str], None],
) -> None:
    """Keep a result with its runs on this machine.

    The page and the model card of a run and comparisons of runs read it there.

    Args:
        runs: Run folders, see `_runs_of`.
        document: The result.
        digest: Of everything that the result depends on.
        out: Where the user wanted the result; a run that holds it already gets no second copy.
        say: Receives what was kept, or why it was not.
    """
    temperature = document["temperature"]
    num_tasks = len(document["scores"])
    # Without a temperature scripts alone played, whose result no run keeps.
    sampling = f"T{temperature:g}" if temperature else "greedy"
    stem = re.sub(r"[^\w@.-]+", "_", document["label"])[-_MAX_STEM:]
    for run in runs:
        if out is not None and run.resolve() in out.resolve().parents:
            continue
        path = run / EVALUATIONS / f"{stem}-{sampling}-{num_tasks}-{digest[:8]}.json"
        try:
            write_document(path, document)
        except SettingsError as error:
            say(f"not kept with the run: {error}")
        else:
            say(f"kept with the run: {path}")
