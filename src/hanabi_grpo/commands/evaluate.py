"""`hanabi-grpo evaluate`: line-ups on held-out deals, beside what the scripts score on them."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from hanabi_grpo.commands.console import make_console, print_json
from hanabi_grpo.commands.interruption import interruptible
from hanabi_grpo.commands.playing import chosen_temperature, game_config, progress_bar, serving, stderr_console
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import REFERENCES
from hanabi_grpo.envs.hanabi.rules import is_held_out
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.evaluation.evaluate import default_label, evaluate_line_up, line_up_key
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.evaluation.tables import evaluation_document, evaluation_sheets, reference_results
from hanabi_grpo.rollout.lineups import LineUp, parse_line_up
from hanabi_grpo.runs.evaluation_result import EvaluationResult, result_to_json, write_document, write_result
from hanabi_grpo.runs.ledger import key_digest
from hanabi_grpo.runs.run_folder import EVALUATIONS
from hanabi_grpo.settings import load_settings
from hanabi_grpo.settings.refs import SERVED

__all__ = ["evaluate", "game_config"]

_FOLDER = Path("outputs/evaluations")


def evaluate(
    line_ups: Sequence[str],
    *,
    policy: str | None,
    checkpoint: Path | None,
    deals: int,
    suite: str,
    preset: str | None,
    players: int | None,
    temperature: float | None,
    label: str | None,
    out: Path | None,
    as_json: bool,
    rotate: bool,
    own: bool,
) -> None:
    """Play held-out deals, print the tables and write the result.

    Args:
        line_ups: Who plays, see `lineups`; none: "served".
        policy: The same as one line-up.
        checkpoint: The same as one line-up that is this folder.
        deals: Number of deals, each played once in every seat order.
        suite: Stream of held-out deals.
        preset: Board; None: the one of HANABI_PRESET or DATASET.
        players: Players; None: likewise.
        temperature: Of sampling, 0 for greedy; None: TEMPERATURE.
        label: What tables call the one line-up; None: its text.
        out: JSON file of the result.
        as_json: One JSON document on standard output instead of tables.
        rotate: Whether a list of different players changes seats.
        own: Start a rollout server for this command alone.

    Raises:
        SettingsError: Bad options, or a checkpoint that cannot be used.
        ServerError: No server, or one that does not fit.
        typer.Exit: With code 130 when it was interrupted.
    """
    if deals < 2:
        raise SettingsError(f"--deals {deals}: a mean with an error needs at least 2 deals.")
    if not is_held_out(suite):
        raise SettingsError(f"--suite {suite!r}: training may have seen its deals; evaluate on eval or test.")
    texts = _texts(line_ups, policy, checkpoint)
    if label is not None and len(texts) > 1:
        raise SettingsError(f"--label {label!r}: names one line-up, and {len(texts)} are given.")
    loaded = load_settings()
    heat = chosen_temperature(loaded.settings, temperature)
    config = game_config(loaded.settings, preset, players)
    teams = [parse_line_up(text, config.players) for text in texts]
    labels = [label] if label is not None else _labels(teams)
    aside = stderr_console()
    console = aside if as_json else make_console()
    done: dict[str, int] = dict.fromkeys(labels, 0)
    books: list[Path] = []
    digests: list[str] = []
    with interruptible(lambda: f"stopped: {_standing(done, deals)}"):
        with ExitStack() as stack:
            served = None
            if any(team.needs_server for team in teams):
                _, served = stack.enter_context(serving(loaded, config, heat, console, own=own))
            results = []
            try:
                for number, (team, name) in enumerate(zip(teams, labels, strict=True), start=1):
                    key = line_up_key(team, config, suite=suite, served=served, rotate=rotate)
                    digests.append(key_digest(key))
                    books.append(_ledger_path(out, number if len(teams) > 1 else None, config, key))
                    results.append(_measure(team, name, config, deals, suite, served, rotate, books[-1], done, aside))
            except ServerError:
                if any(done.values()):
                    aside.print(_standing(done, deals), markup=False, soft_wrap=True)
                raise
        # Not again what was evaluated anyway.
        names = [name for name in REFERENCES if name not in texts]
        with progress_bar(aside, f"references: {', '.join(names)}", deals * len(names)) as show:
            references = reference_results(results[0], names, progress=show)
        _publish(results, references, console, out, as_json=as_json)
        for team, result, digest in zip(teams, results, digests, strict=True):
            _keep(team, result, served, digest, None if len(teams) > 1 else out, aside)
        for book in books:
            book.unlink(missing_ok=True)


def _texts(line_ups: Sequence[str], policy: str | None, checkpoint: Path | None) -> list[str]:
    if checkpoint is not None and (line_ups or policy not in (None, SERVED)):
        raise SettingsError(f"--checkpoint {checkpoint}: is a line-up of its own; name it beside the others instead.")
    if policy is not None and line_ups:
        raise SettingsError(f"--policy {policy}: is a line-up of its own; name it beside the others instead.")
    if checkpoint is not None:
        # A word with a slash is a folder, whatever else has that name.
        return [str(checkpoint) if "/" in str(checkpoint) else f"./{checkpoint}"]
    texts = list(line_ups) or [policy or SERVED]
    for text in texts:
        if texts.count(text) > 1:
            raise SettingsError(f"line-up {text!r}: is named twice; once is enough.")
    return texts


def _labels(teams: Sequence[LineUp]) -> list[str]:
    """Return short labels where they differ, and what was typed where two would be the same."""
    short = [default_label(team) for team in teams]
    return [name if short.count(name) == 1 else team.text for name, team in zip(short, teams, strict=True)]


def _ledger_path(out: Path | None, number: int | None, config: EnvConfig, key: dict[str, Any]) -> Path:
    if out is None:
        return _FOLDER / f"{config.preset}-{key_digest(key)}.part.jsonl"
    return out.with_suffix(".part.jsonl" if number is None else f".{number}.part.jsonl")


def _measure(
    team: LineUp,
    label: str,
    config: EnvConfig,
    deals: int,
    suite: str,
    served: Served | None,
    rotate: bool,
    book: Path,
    done: dict[str, int],
    aside: Console,
) -> EvaluationResult:
    orders = len(team.orders(rotate=rotate))
    title = f"{label}: {deals} deals" + (f" in {orders} seat orders" if orders > 1 else "")
    with progress_bar(aside, title, deals) as show:

        def progress(count: int) -> None:
            done[label] = count
            show(count)

        return evaluate_line_up(
            team,
            config,
            deals,
            suite=suite,
            served=served,
            rotate=rotate,
            label=label,
            ledger=book,
            progress=progress,
            clear=False,
        )


def _keep(
    team: LineUp, result: EvaluationResult, served: Served | None, digest: str, out: Path | None, aside: Console
) -> None:
    """Leave a result with every run on this machine whose adapters played, for its page, its card and comparisons."""
    for run in served.resolver.run_folders(team.refs) if served else ():
        if out is not None and run.resolve() in out.resolve().parents:
            continue
        heat = "greedy" if result.temperature == 0 else f"T{result.temperature:g}"
        stem = re.sub(r"[^\w@.-]+", "_", result.label)[-60:]
        name = f"{stem}-{heat}-{result.num_deals}-{digest[:8]}.json"
        try:
            write_result(run / EVALUATIONS / name, result)
        except SettingsError as error:
            aside.print(f"not kept with the run: {error}", markup=False, soft_wrap=True)
        else:
            aside.print(f"kept with the run: {run / EVALUATIONS / name}", markup=False, soft_wrap=True)


def _standing(done: dict[str, int], deals: int) -> str:
    each = f" ({', '.join(f'{label}: {count}' for label, count in done.items())})" if len(done) > 1 else ""
    return (
        f"{sum(done.values())} of {len(done) * deals} deals are done{each} and kept; the same command goes on from "
        "there."
    )


def _publish(
    results: Sequence[EvaluationResult],
    references: Sequence[EvaluationResult],
    console: Console,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    document = evaluation_document(results, references)
    if out is not None:
        # One result is also one that `report` and others read; its references are rows of the run's page.
        one = {**result_to_json(results[0]), "references": document["references"]}
        write_document(out, one if len(results) == 1 else document)
    if as_json:
        print_json(document)
    else:
        for sheet in evaluation_sheets(results, references):
            console.print(sheet.rich())
    if out is not None:
        console.print(f"wrote {out}", markup=False, soft_wrap=True)
