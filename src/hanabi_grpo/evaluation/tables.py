"""Tables of evaluations: scores, figures, paired differences and seat orders."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

from hanabi_grpo.client.lineups import parse_lineup, short_name
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.registry import setup as make_setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import evaluate_lineup, paired_difference
from hanabi_grpo.evaluation.outcomes import AS, outcome_sheets
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet, figure, figure_sheets, with_error
from hanabi_grpo.runs.evaluation_result import EvaluationResult, result_to_json
from hanabi_grpo.runs.task_statistics import Interval
from hanabi_grpo.settings.refs import is_frozen

BEST_KNOWN = "best known"
"""Row of the best mean score that is known."""
BEST_KNOWN_SOURCE = (
    "best known: highest known mean score of any players; not measured here, not a proven maximum."
)
_NUM_REFERENCES = 3
"""Number of scripts shown beside a team's result."""
ALL_PAIRS_UP_TO = 4
"""Up to this many lineups, all pairs are compared; with more, each is compared with the first."""
_SCORE_COLUMNS = ("lineup", "mean score ± SE", "95 % interval")
_DIFFERENCE_COLUMNS = ("paired difference", "mean ± SE", "95 % interval", "in SE")
_ORDER_COLUMNS = ("lineup", "seat order", "mean score ± SE")
Pair = tuple[EvaluationResult, EvaluationResult]
"""Two results of the same tasks; their difference is the second minus the first."""


def reference_names(setup: Setup[Any]) -> tuple[str, ...]:
    """Return the scripts shown beside a team's result: the environment's first three.

    A competitive game has none: there a script's score against itself is not a useful reference.
    """
    if not setup.spec.has_common_score:
        return ()
    return tuple(setup.environment.policies)[:_NUM_REFERENCES]


def reference_results(
    result: EvaluationResult,
    names: Sequence[str] | None = None,
    *,
    setup: Setup[Any] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[EvaluationResult]:
    """Let scripts play exactly the tasks of a result.

    Args:
        result: The result to compare with.
        names: The scripts; None: those of `reference_names`.
        setup: What was played; None: as the result names it.
        progress: Receives the number of tasks done by all scripts together.

    Raises:
        SettingsError: The rules of the preset have changed since, or the tasks are not 0 to n-1.
    """
    setup = setup or make_setup(result.env, result.env_config)
    if setup.spec.hash != result.spec_hash:
        raise SettingsError(
            f"{result.label}: played on {result.preset} with rules {result.spec_hash}, but "
            f"its rules are {setup.spec.hash} in this version; evaluate it again."
        )
    references: list[EvaluationResult] = []
    for name in reference_names(setup) if names is None else names:
        num_before = len(references) * result.num_tasks

        def count(done: int, num_before: int = num_before) -> None:
            progress(num_before + done)

        team = parse_lineup(name, setup.spec.num_players, env=setup.env)
        reference = evaluate_lineup(
            team, setup, result.num_tasks, suite=result.suite, progress=count
        )
        # Raises an error where the tasks differ.
        paired_difference(result, reference)
        references.append(reference)
    return references


def compared_pairs(results: Sequence[EvaluationResult]) -> list[Pair]:
    """Return the pairs of lineups to compare: all pairs of up to four, else each with the first."""
    if len(results) <= ALL_PAIRS_UP_TO:
        return list(combinations(results, 2))
    return [(results[0], result) for result in results[1:]]


def evaluation_sheets(
    results: Sequence[EvaluationResult],
    references: Sequence[EvaluationResult],
    *,
    pairs: Sequence[Pair] | None = None,
) -> list[Sheet]:
    """Return every table of an evaluation.

    A difference is a later result minus an earlier one.

    Args:
        results: The lineups, at least one, all on the same tasks.
        references: Scripts on the same tasks; tables show them from low to high, before the
            lineups.
        pairs: The results whose differences are shown; None: see `compared_pairs`.
    """
    groups = [list(results)]
    if references:
        groups.insert(0, sorted(references, key=lambda reference: reference.mean))
    sheets = [_score_sheet(results[0], groups)]
    sheets += outcome_sheets(results)
    figures_of_groups = []
    for group in groups:
        rows = [(_name(result), _plain_figures(result)) for result in group]
        figures_of_groups.append(rows)
    sheets += figure_sheets(
        "Figures, mean over tasks", "lineup", figures_of_groups, without=results[0].score
    )
    sheets += _difference_sheets(compared_pairs(results) if pairs is None else pairs)
    sheets += _order_sheets(results)
    return sheets


def _score_sheet(example: EvaluationResult, groups: Sequence[Sequence[EvaluationResult]]) -> Sheet:
    """Return the table of mean scores, with the best known one below."""
    rows: list[list[tuple[str, ...]]] = []
    for group in groups:
        group_rows: list[tuple[str, ...]] = []
        for result in group:
            group_rows.append((_name(result), *estimate_cells(result.estimate)))
        rows.append(group_rows)
    note = ""
    if example.attainable is not None:
        rows.append([best_known_row(example.attainable, len(_SCORE_COLUMNS))])
        note = BEST_KNOWN_SOURCE
    return Sheet(title=game_title(example), columns=_SCORE_COLUMNS, groups=rows, note=note)


def _plain_figures(result: EvaluationResult) -> dict[str, float]:
    """Return the figures without outcomes, which have a table of their own."""
    figures = {}
    for name, value in result.figures.items():
        if AS not in name:
            figures[name] = value
    return figures


def _difference_sheets(pairs: Sequence[Pair]) -> list[Sheet]:
    rows = []
    for before, after in pairs:
        difference = paired_difference(before, after)
        name = f"{after.label} − {before.label}"
        sigmas = f"{difference.sigmas:+.1f}" if difference.has_variation else UNKNOWN
        rows.append((name, *estimate_cells(difference, "+"), sigmas))
    if not rows:
        return []
    return [Sheet(title="Differences, paired by task", columns=_DIFFERENCE_COLUMNS, groups=[rows])]


def _order_sheets(results: Sequence[EvaluationResult]) -> list[Sheet]:
    """Return the table of seat orders, for lineups that the score table does not fully describe."""
    groups = []
    for result in results:
        first = result.orders[0]
        num_orders = len(result.orders)
        if num_orders > 1 or first.seats != first.words:
            groups.append([_order_row(result, number) for number in range(num_orders)])
    if not groups:
        return []
    sheet = Sheet(
        title="Seat orders; the first seat is player_0",
        columns=_ORDER_COLUMNS,
        groups=groups,
        num_names=2,
    )
    return [sheet]


def evaluation_document(
    results: Sequence[EvaluationResult], references: Sequence[EvaluationResult]
) -> dict[str, Any]:
    """Return an evaluation as `--json` prints it: results, references, differences, attainable."""
    differences = []
    for before, after in compared_pairs(results):
        difference = paired_difference(before, after)
        differences.append({"of": after.label, "minus": before.label, **difference.to_json()})
    return {
        "results": [result_to_json(result) for result in results],
        "references": [result_to_json(result) for result in references],
        "differences": differences,
        "attainable": results[0].attainable,
    }


def best_known_row(attainable: float, num_columns: int) -> tuple[str, ...]:
    """Return the row of the best known players; only their score is known here."""
    return (BEST_KNOWN, f"{attainable:.2f}", *[UNKNOWN] * (num_columns - 2))


def game_title(result: EvaluationResult) -> str:
    """Return the game and the tasks of a table, for its title."""
    num_starts = len(set(result.starts))
    tasks = f"{result.num_tasks} tasks"
    if result.covers_all_starts:
        tasks += f" (all {num_starts} starts, each equally often)"
    elif num_starts < result.num_tasks:
        tasks += f" ({num_starts} different starts)"
    return (
        f"{_board_name(result)}, {result.num_players} players, rules {result.spec_hash}, "
        f"{result.score} at most {result.score_range[1]:g}: {tasks} of suite {result.suite}"
    )


def _board_name(result: EvaluationResult) -> str:
    """Return environment and preset, e.g. "hanabi laptop"; once where they have one name."""
    if result.preset == result.env:
        return result.env
    return f"{result.env} {result.preset}"


def temperature_name(temperature: float | None) -> str:
    """Return "greedy", or e.g. "T=0.7"; "" where scripts played."""
    if temperature is None:
        return ""
    return "greedy" if temperature == 0 else f"T={temperature:g}"


def sampling_name(result: EvaluationResult) -> str:
    """Return how models sampled, e.g. "T=1, top-p 0.9"; "" where scripts played."""
    parts = [temperature_name(result.temperature), str(result.token_filter)]
    return ", ".join(part for part in parts if part)


def _name(result: EvaluationResult) -> str:
    """Return the label with the sampling, e.g. "after (T=1)" or "after (T=1, top-p 0.9)"."""
    sampling = sampling_name(result)
    return f"{result.label} ({sampling})" if sampling else result.label


def estimate_cells(interval: Interval, sign: str = "") -> tuple[str, str]:
    """Return the cells "mean ± error" and "low to high"; `sign="+"` writes signs.

    A figure without an error is "mean exact", and its interval a dash.
    """
    if interval.is_exact:
        return f"{figure(interval.mean, sign)} exact", UNKNOWN
    ends = f"{figure(interval.low, sign)} to {figure(interval.high, sign)}"
    return with_error(interval.mean, interval.standard_error, sign), ends


def _order_row(result: EvaluationResult, number: int) -> tuple[str, ...]:
    order = result.orders[number]
    seats = []
    for spec, seat in zip(order.words, order.seats, strict=True):
        # The seat of a guest adapter is named by a digest; its folder says more.
        seats.append(short_name(spec) if is_frozen(seat) else seat)
    label = result.label if number == 0 else ""
    return label, ", ".join(seats), with_error(order.mean, order.standard_error)
