"""Held-out tasks: who plays them, what comes out, and the paired difference of two lineups.

Every lineup plays the same tasks, so a difference is taken task by task and the luck of the task
drops out."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from hanabi_grpo.client.lineups import Lineup
from hanabi_grpo.envs.base import EnvSpec, Setup, is_held_out
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.matches import HALF, Served, Table, play_tables, start_numbers
from hanabi_grpo.evaluation.outcomes import is_versus, outcome_figures, seat_of
from hanabi_grpo.runs.evaluation_result import EvaluationResult, SeatOrder, mean_figures
from hanabi_grpo.runs.ledger import Ledger
from hanabi_grpo.runs.task_statistics import Estimate, difference, estimate
from hanabi_grpo.settings.refs import is_frozen, is_url, seat_adapter
from hanabi_grpo.types import Episode, ReplyKind

SUITE = "eval"
_FORMAT = 2
"""Of a ledger's rows."""
RETURN = "return"
"""`EnvSpec.score` where lineups are compared by what their players earn."""


class TaskFigures(BaseModel):
    """What one task's games come to."""

    seed: int
    scores: list[float]
    """Per seat order."""
    figures: dict[str, float]
    """See `EvaluationResult.figures`."""


def evaluate_lineup(
    lineup: Lineup,
    setup: Setup[Any],
    num_tasks: int,
    *,
    suite: str = SUITE,
    served: Served | None = None,
    rotate: bool = True,
    label: str | None = None,
    ledger: Path | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> EvaluationResult:
    """Let a lineup play tasks 0 to `num_tasks - 1` of a held-out suite, each once in every seat
    order.

    `served` is needed unless scripts fill every seat; with `rotate` a list of different players
    changes seats. Tables call it by `label`; None: see `Lineup.label`. `ledger` is a file for
    finished tasks, from which an interrupted evaluation goes on; the caller removes it, once the
    result is kept. `progress` receives the number of tasks done.

    Raises:
        SettingsError: Fewer than two tasks, a suite that training uses, or a ledger of other work.
        ServerError: The server failed, holds other adapters, or dropped a game.
    """
    check_tasks(num_tasks, suite)
    key = lineup_key(lineup, setup, suite=suite, served=served, rotate=rotate)
    orders = lineup.orders(rotate=rotate)
    with Ledger(ledger, key) if ledger else nullcontext() as book:
        tasks = _finished(book, len(orders)) if book else {}
        missing = [
            Table(seed, order) for seed in range(num_tasks) if seed not in tasks for order in orders
        ]
        progress(num_tasks - len(missing) // len(orders))
        for groups in play_tables(
            missing, setup, suite=suite, label=lineup.text, served=served, together=len(orders)
        ):
            games = [game for [game] in groups]
            starts = range(0, len(games), len(orders))
            fresh = [
                task_figures(setup.spec, games[start : start + len(orders)]) for start in starts
            ]
            if book:
                book.add(*(task.model_dump() for task in fresh))
            tasks |= {task.seed: task for task in fresh}
            progress(sum(seed < num_tasks for seed in tasks))
    return summarise(
        lineup, setup, [tasks[seed] for seed in range(num_tasks)], key=key, label=label
    )


def check_tasks(num_tasks: int, suite: str) -> None:
    """Refuse, by a SettingsError, fewer than two tasks and those of a suite that training uses."""
    if num_tasks < 2:
        raise SettingsError(f"--tasks {num_tasks}: a mean with an error needs at least 2 tasks.")
    if not is_held_out(suite):
        raise SettingsError(
            f"--suite {suite!r}: training may have seen its tasks; play on eval or test."
        )


def lineup_key(
    lineup: Lineup,
    setup: Setup[Any],
    *,
    suite: str = SUITE,
    served: Served | None = None,
    rotate: bool = True,
) -> dict[str, Any]:
    """Return everything that a task's games depend on; two evaluations of one key are the same
    work.

    Players who learned the preset otherwise are warned of, see `SeatResolver.compare_messages`.

    Raises:
        SettingsError: A model has to play and there is no server, or a checkpoint cannot be used.
        ServerError: The server lacks one of the adapters.
    """
    orders = lineup.orders(rotate=rotate)
    key: dict[str, Any] = {
        "format": _FORMAT,
        "lineup": lineup.text,
        "seats": [tuple(map(str, order)) for order in orders],
        "policies": {},
        **setup.row(),
        "spec_hash": setup.spec.hash,
        "suite": suite,
        "rotate": rotate,
    }
    if not lineup.needs_server:
        return key
    if served is None:
        raise SettingsError(
            f"lineup {lineup.text!r}: needs a rollout server: start one, or add --own-server."
        )
    seats = [served.resolver.seats(order) for order in orders]
    served.resolver.compare_messages(lineup.refs, setup)
    digests = served.resolver.digests()
    names = {
        named[0]
        for order in seats
        for seat in order
        if not is_frozen(seat) and (named := seat_adapter(seat))
    }
    names |= {seat for order in seats for seat in order if is_url(seat)}
    return {
        **key,
        "seats": seats,
        # A lent adapter's name is a digest of its weights; a served one's says nothing about the
        # run that made it.
        "policies": {
            "base": served.resolver.model(),
            **{name: digests[name] for name in sorted(names)},
        },
        "temperature": served.temperature,
        "max_tokens": served.max_tokens,
    }


def task_figures(spec: EnvSpec, games: Sequence[Episode]) -> TaskFigures:
    """Return what one task's games come to, one game per seat order."""
    count = len(games)
    scores = [lineup_score(spec, game, number) for number, game in enumerate(games)]
    kinds = [turn.kind for game in games for turn in game.turns]
    figures = {
        **mean_figures(game.result for game in games),
        "truncated": sum(game.status.is_truncated for game in games) / count,
        "illegal_per_game": kinds.count(ReplyKind.ILLEGAL) / count,
        "unparsable_per_game": kinds.count(ReplyKind.UNPARSABLE) / count,
        "turns_per_game": len(kinds) / count,
    }
    if is_versus(spec):
        figures |= outcome_figures(spec, games)
    if spec.has_common_score:
        figures["perfect"] = sum(score >= score_range(spec)[1] for score in scores) / count
    return TaskFigures(seed=games[0].seed, scores=scores, figures=figures)


def lineup_score(spec: EnvSpec, game: Episode, order: int) -> float:
    """Return the figure by which lineups are compared.

    Where that is the return, it is the same for all of a team; elsewhere it is that of the
    lineup's first word, which moves one seat to the left from seat order to seat order."""
    if spec.score != RETURN:
        return float(game.result[spec.score])
    return game.reward(0 if spec.payoff == "team" else seat_of(order, spec.num_players))


def score_range(spec: EnvSpec) -> tuple[float, float]:
    """Return least and most of `EnvSpec.score`; figures of other names begin at 0."""
    low, high = spec.return_range
    return low if spec.score == RETURN else min(
        0.0, low
    ), high if spec.max_score is None else float(spec.max_score)


def summarise(
    lineup: Lineup,
    setup: Setup[Any],
    tasks: Sequence[TaskFigures],
    *,
    key: dict[str, Any],
    label: str | None = None,
) -> EvaluationResult:
    """Return the figures of one lineup, given those of its tasks 0 to n-1 and its
    `lineup_key`.
    """
    spec, suite = setup.spec, key["suite"]
    seeds = tuple(task.seed for task in tasks)
    starts = start_numbers(setup, suite, seeds)
    orders = []
    for number, order in enumerate(lineup.orders(rotate=key["rotate"])):
        found = estimate(tuple(task.scores[number] for task in tasks), starts)
        words, seats = tuple(map(str, order)), tuple(key["seats"][number])
        orders.append(
            SeatOrder(
                words=words, seats=seats, mean=found.mean, standard_error=found.standard_error
            )
        )
    return EvaluationResult(
        label=label or lineup.label,
        lineup=lineup.text,
        orders=tuple(orders),
        policies=key["policies"],
        **setup.row(),
        preset=spec.preset,
        num_players=spec.num_players,
        spec_hash=spec.hash,
        score=spec.score,
        score_range=score_range(spec),
        attainable=None if suite.startswith(HALF) else spec.attainable,
        suite=suite,
        temperature=key.get("temperature"),
        seeds=seeds,
        starts=starts,
        scores=tuple(fmean(task.scores) for task in tasks),
        figures=mean_figures(task.figures for task in tasks),
    )


def paired_difference(a: EvaluationResult, b: EvaluationResult) -> Estimate:
    """Return mean, error and interval of `b - a` over the tasks that both played, which must be the
    same.

    The error is clustered by start. A SettingsError where they did not play the same tasks.
    """
    for what, mine, theirs in (
        ("games", f"{a.preset} {a.spec_hash}", f"{b.preset} {b.spec_hash}"),
        ("suites", a.suite, b.suite),
        ("tasks", a.seeds, b.seeds),
    ):
        if mine != theirs:
            shown = f"{len(a.seeds)}; {len(b.seeds)}" if what == "tasks" else f"{mine}; {theirs}"
            raise SettingsError(
                f"{a.label} and {b.label} played different {what} ({shown}); "
                "evaluate both with the same --preset and --tasks."
            )
    return difference(a.scores, b.scores, a.starts)


def _finished(book: Ledger, num_orders: int) -> dict[int, TaskFigures]:
    try:
        rows = TypeAdapter(list[TaskFigures]).validate_python(book.rows)
    except ValidationError as error:
        raise SettingsError(
            f"{book.path}: damaged ({error.errors()[0]['msg']}); move it away."
        ) from error
    if any(len(row.scores) != num_orders for row in rows):
        raise SettingsError(
            f"{book.path}: damaged (a task without one game per seat order); move it away."
        )
    return {row.seed: row for row in rows}
