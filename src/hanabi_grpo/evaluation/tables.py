"""Tables of evaluations: scores, figures, paired differences, seat orders; for terminals and as
Markdown.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from hanabi_grpo.client.lineups import parse_lineup, short_name
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.registry import setup as setup_of
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import evaluate_lineup, paired_difference
from hanabi_grpo.evaluation.outcomes import AS, outcome_sheets
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet, figure, figure_sheets, with_error
from hanabi_grpo.runs.evaluation_result import EvaluationResult, result_to_json
from hanabi_grpo.runs.task_statistics import Interval
from hanabi_grpo.settings.refs import is_frozen

ATTAINABLE = "attainable"
ATTAINABLE_SOURCE = (
    "attainable: the best mean that players are known to reach; not played here, "
    "and no proven maximum."
)
_SCORES = ("lineup", "mean score ± SE", "95 % interval")
_DIFFERENCES = ("paired difference", "mean ± SE", "95 % interval", "in SE")
_ORDERS = ("lineup", "seat order", "mean score ± SE")


def reference_names(setup: Setup[Any]) -> tuple[str, ...]:
    """Return the scripts that stand beside a team's result: the environment's first three.

    Where one player wins what another loses, a script that plays itself is no level to compare
    with."""
    return tuple(setup.environment.policies)[:3] if setup.spec.has_common_score else ()


def reference_results(
    result: EvaluationResult,
    names: Sequence[str] | None = None,
    *,
    progress: Callable[[int], None] = lambda done: None,
) -> list[EvaluationResult]:
    """Let scripts, those of `reference_names` where none are named, play exactly the tasks of a
    result.

    `progress` receives the number of tasks done by all of them together.

    Raises: SettingsError: The preset of this name has other rules by now, or the tasks are not 0 to
        n-1.
    """
    found = setup_of(result.env, result.env_config)
    if found.spec.hash != result.spec_hash:
        raise SettingsError(
            f"{result.label}: played on {result.preset} {result.spec_hash}, which is "
            f"{found.spec.hash} in this "
            "version; evaluate it again."
        )
    references: list[EvaluationResult] = []
    for name in reference_names(found) if names is None else names:
        before = len(references) * result.num_tasks

        def count(done: int, before: int = before) -> None:
            progress(before + done)

        team = parse_lineup(name, found.spec.num_players, env=found.env)
        references.append(
            evaluate_lineup(team, found, result.num_tasks, suite=result.suite, progress=count)
        )
        paired_difference(result, references[-1])  # refuses other tasks
    return references


def compared_pairs(
    results: Sequence[EvaluationResult],
) -> list[tuple[EvaluationResult, EvaluationResult]]:
    """Return which lineups are compared, as (one, the other): all pairs of up to four, else each
    with the first.
    """
    if len(results) <= 4:
        return list(combinations(results, 2))
    return [(results[0], result) for result in results[1:]]


def evaluation_sheets(
    results: Sequence[EvaluationResult], references: Sequence[EvaluationResult]
) -> list[Sheet]:
    """Return every table of an evaluation: reference scripts from low to high, lineups, what is
    attainable.

    A difference is a later one of the results, of which there is at least one, minus an earlier
    one."""
    groups = [group for group in (sorted(references, key=lambda one: one.mean), results) if group]
    scores: list[list[tuple[str, ...]]] = [
        [(_name(result), *estimate_cells(result.estimate)) for result in group] for group in groups
    ]
    most, note = results[0].attainable, ""
    if most is not None:
        scores.append([attainable_row(most, len(_SCORES))])
        note = ATTAINABLE_SOURCE
    sheets = [Sheet(title=game_title(results[0]), columns=_SCORES, groups=scores, note=note)]
    sheets += outcome_sheets(results)
    figures = [
        [
            (_name(one), {name: value for name, value in one.figures.items() if AS not in name})
            for one in group
        ]
        for group in groups
    ]
    sheets += figure_sheets("Figures, mean over tasks", "lineup", figures, without=results[0].score)
    differences = []
    for one, other in compared_pairs(results):
        found = paired_difference(one, other)
        differences.append(
            (f"{other.label} − {one.label}", *estimate_cells(found, "+"), f"{found.sigmas:+.1f}")
        )
    if differences:
        sheets.append(
            Sheet(title="Differences, task by task", columns=_DIFFERENCES, groups=[differences])
        )
    told = [
        result
        for result in results
        if len(result.orders) > 1 or result.orders[0].seats != result.orders[0].words
    ]
    if told:
        rows_of = [
            [_order(result, number) for number in range(len(result.orders))] for result in told
        ]
        sheets.append(
            Sheet(
                title="Seat orders; the first is player_0",
                columns=_ORDERS,
                groups=rows_of,
                num_names=2,
            )
        )
    return sheets


def evaluation_document(
    results: Sequence[EvaluationResult], references: Sequence[EvaluationResult]
) -> dict[str, Any]:
    """Return all that an evaluation found, as `--json` prints it: results with their tasks,
    comparisons, attainable.
    """
    return {
        "results": [result_to_json(result) for result in results],
        "references": [result_to_json(result) for result in references],
        "differences": [
            {"of": other.label, "minus": one.label, **paired_difference(one, other).to_json()}
            for one, other in compared_pairs(results)
        ],
        "attainable": results[0].attainable,
    }


def attainable_row(most: float, num_columns: int) -> tuple[str, ...]:
    """Return the row that says what the best known players score; nothing else of them is known
    here.
    """
    return (ATTAINABLE, f"{most:.2f}", *[UNKNOWN] * (num_columns - 2))


def game_title(result: EvaluationResult) -> str:
    """Return which game and tasks a table is about."""
    num_starts = len(set(result.starts))
    starts = f" ({num_starts} different starts)" if num_starts < result.num_tasks else ""
    return (
        f"{result.env} {result.preset}, {result.num_players} players, rules {result.spec_hash}, "
        f"{result.score} at most "
        f"{result.score_range[1]:g}: {result.num_tasks} tasks{starts} of suite {result.suite}"
    )


def _name(result: EvaluationResult) -> str:
    heat = result.temperature
    return result.label + ("" if heat is None else " (greedy)" if heat == 0 else f" (T={heat:g})")


def estimate_cells(found: Interval, sign: str = "") -> tuple[str, str]:
    """Return "mean ± error" and "low to high"."""
    interval = f"{figure(found.low, sign)} to {figure(found.high, sign)}"
    return with_error(found.mean, found.standard_error, sign), interval


def _order(result: EvaluationResult, number: int) -> tuple[str, ...]:
    order = result.orders[number]
    # A lent adapter is called by its digest; its folder says more.
    seats = (
        short_name(word) if is_frozen(seat) else seat
        for word, seat in zip(order.words, order.seats, strict=True)
    )
    return (
        result.label if number == 0 else "",
        ", ".join(seats),
        with_error(order.mean, order.standard_error),
    )
