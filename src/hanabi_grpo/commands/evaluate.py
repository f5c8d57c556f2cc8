"""`hanabi-grpo evaluate`: lineups on held-out tasks, beside what the scripts score on them."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import TaskID

from hanabi_grpo.client.lineups import Lineup, parse_lineup
from hanabi_grpo.commands.console import bars, interruptible, make_console, sayer
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
from hanabi_grpo.evaluation.tables import (
    evaluation_document,
    evaluation_sheets,
    reference_names,
    reference_results,
)
from hanabi_grpo.runs.evaluation_result import EvaluationResult, result_to_json, write_document
from hanabi_grpo.runs.ledger import key_digest
from hanabi_grpo.runs.run_folder import EVALUATIONS
from hanabi_grpo.settings.refs import SERVED


def evaluate(
    lineups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LINEUP",
            help="Who plays, one word for every seat or one each with commas: served, "
            "player_1@latest, base, a "
            "checkpoint's or run's folder, wandb:team/project/name:alias, hf:org/repo, or a "
            "script such as iggi. "
            "served when left out.",
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
        str | None, typer.Option(help="Name in tables; what was typed when left out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file of the result.")] = None,
    as_json: AsJson = False,
    no_rotate: Annotated[
        bool, typer.Option("--no-rotate", help="Only the seat order that was typed.")
    ] = False,
    own_server: OwnServer = False,
) -> None:
    """Play held-out tasks, beside random and blind play of the same tasks; rerun the same command
    to continue.

    A result of a run's checkpoint, or of what its trainer serves, is also left in evaluations/ of
    the run folder.

    Environment: VLLM_SERVER_HOST, VLLM_SERVER_PORT, HANABI_API_KEY and HANABI_SERVER_TIMEOUT find
    the server, or MODEL
    and the others of serve with --own-server; DATASET, HANABI_PRESET and HANABI_PLAYERS choose the
    board; TEMPERATURE and MAX_COMPLETION_LENGTH hold for replies, WANDB_ENTITY, WANDB_MODE,
    OUTPUT_DIR, HF_HOME for wandb: and hf: words."""
    check_tasks(tasks, suite)
    texts = lineups or [SERVED]
    for text in texts:
        if texts.count(text) > 1:
            raise SettingsError(f"lineup {text!r}: is named twice; once is enough.")
    if label is not None and len(texts) > 1:
        raise SettingsError(f"--label {label!r}: names one lineup, and {len(texts)} are given.")
    chosen = choose(env, preset, players, temperature)
    game = chosen.game
    teams = [parse_lineup(text, game.spec.num_players, env=game.env) for text in texts]
    labels = [label] if label is not None else _labels(teams)
    aside, console = make_console(aside=True), make_console(aside=as_json)
    done: dict[str, int] = dict.fromkeys(labels, 0)
    books: list[Path] = []
    digests: list[str] = []
    results: list[EvaluationResult] = []
    needed = any(team.needs_server for team in teams)

    def standing() -> str:
        each = (
            f" ({', '.join(f'{label}: {count}' for label, count in done.items())})"
            if len(done) > 1
            else ""
        )
        total = f"{sum(done.values())} of {len(done) * tasks}"
        return (
            f"stopped: {total} tasks are done{each} and kept; the same command goes on from there."
        )

    with (
        interruptible(standing),
        chosen.serving(console, needed=needed, own=own_server) as served,
        bars(aside) as progress,
    ):
        for number, (team, name) in enumerate(zip(teams, labels, strict=True), start=1):
            key = lineup_key(team, game, suite=suite, served=served, rotate=not no_rotate)
            digests.append(key_digest(key))
            part = f".{number}.part.jsonl" if len(teams) > 1 else ".part.jsonl"
            unfinished = (
                Path("outputs/evaluations") / f"{game.spec.preset}-{digests[-1]}.part.jsonl"
            )
            books.append(out.with_suffix(part) if out else unfinished)
            orders = len(team.orders(rotate=not no_rotate))
            title = f"{name}: {tasks} tasks" + (f" in {orders} seat orders" if orders > 1 else "")
            bar = progress.add_task(title, total=tasks)

            def show(count: int, name: str = name, bar: TaskID = bar) -> None:
                done[name] = count
                progress.update(bar, completed=count)

            result = evaluate_lineup(
                team,
                game,
                tasks,
                suite=suite,
                served=served,
                rotate=not no_rotate,
                label=name,
                ledger=books[-1],
                progress=show,
            )
            results.append(result)
        # Not again what was evaluated anyway.
        names = [name for name in reference_names(game) if name not in texts]
        bar = progress.add_task(f"references: {', '.join(names)}", total=tasks * len(names))
        references = reference_results(
            results[0], names, progress=lambda count: progress.update(bar, completed=count)
        )
        progress.stop()
        document = evaluation_document(results, references)
        # One result as `report` and others read it; its references are rows of its run's tables.
        each = [{**result_to_json(one), "references": document["references"]} for one in results]
        kept = each[0] if len(each) == 1 else document
        tables = (sheet.rich() for sheet in evaluation_sheets(results, references))
        give_result(console, document, tables, out=out, as_json=as_json, kept=kept)
        for team, own, digest in zip(teams, each, digests, strict=True):
            runs = served.resolver.run_folders(team.refs) if served else ()
            _keep(runs, own, digest, None if len(teams) > 1 else out, sayer(aside))
        for book in books:
            book.unlink(missing_ok=True)


def _labels(teams: Sequence[Lineup]) -> list[str]:
    """Return short labels where they differ, and what was typed where two would be the same."""
    short = [team.label for team in teams]
    return [
        name if short.count(name) == 1 else team.text
        for name, team in zip(short, teams, strict=True)
    ]


def _keep(
    runs: Iterable[Path],
    document: dict[str, Any],
    digest: str,
    out: Path | None,
    tell: Callable[[str], None],
) -> None:
    """Leave a result with every run on this machine whose adapters played, for its page, its card
    and comparisons.
    """
    temperature, num_tasks = document["temperature"], len(document["scores"])
    heat = (
        f"T{temperature:g}" if temperature else "greedy"
    )  # None: scripts alone, whose result no run keeps
    stem = re.sub(r"[^\w@.-]+", "_", document["label"])[-60:]
    for run in runs:
        if out is not None and run.resolve() in out.resolve().parents:
            continue
        path = run / EVALUATIONS / f"{stem}-{heat}-{num_tasks}-{digest[:8]}.json"
        try:
            write_document(path, document)
        except SettingsError as error:
            tell(f"not kept with the run: {error}")
        else:
            tell(f"kept with the run: {path}")
