"""Tables of evaluations: scores, the way of playing, paired differences, seat orders; for terminals and as Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rich.table import Table
from rich.text import Text

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import REFERENCES
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import evaluate_line_up, paired_difference
from hanabi_grpo.rollout.lineups import parse_line_up, short_name
from hanabi_grpo.runs.deal_statistics import Estimate
from hanabi_grpo.runs.evaluation_result import EvaluationResult, result_to_json
from hanabi_grpo.settings.refs import is_frozen

ATTAINABLE = "attainable"
ATTAINABLE_SOURCE = (
    "attainable: the best players known for this board, found by alternating exact best response with restarts and "
    "replayed on 2000 deals; not played here, and no proven maximum."
)
_ALL_PAIRS = 4
"""Most line-ups of which every two are compared; of more, each with the first."""
_SCORES = ("line-up", "mean score ± SE", "95 % interval", "score kept", "perfect", "bombs", "truncated")
_PLAY = ("line-up", "illegal/game", "unparsable/game", "hints/turn", "misplays/turn", "turns/game")
_DIFFERENCES = ("paired difference", "mean ± SE", "95 % interval", "in SE")
_ORDERS = ("line-up", "seat order", "mean score ± SE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table, as text."""

    title: str
    columns: tuple[str, ...]
    groups: Sequence[Sequence[Sequence[str]]]
    """Groups of rows of cells; a line is drawn between groups."""
    num_names: int = 1
    """How many of the first columns hold names, not figures."""
    note: str = ""
    """A sentence below the table."""

    def rich(self) -> Table:
        """Return the table for the terminal."""
        caption = Text(self.note) if self.note else None
        table = Table(title=Text(self.title), title_justify="left", caption=caption, caption_justify="left")
        for number, column in enumerate(self.columns):
            is_name = number < self.num_names
            # A long name is broken, a figure never.
            table.add_column(
                column,
                justify="left" if is_name else "right",
                no_wrap=not is_name,
                overflow="fold" if is_name else "ellipsis",
            )
        for group in self.groups:
            for row in group:
                # Labels are people's: a bracket in one is no markup.
                table.add_row(*map(Text, row))
            table.add_section()
        return table

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rule = ["---"] * self.num_names + ["---:"] * (len(self.columns) - self.num_names)
        lines = [f"**{self.title}**", "", _line(self.columns), _line(rule)]
        lines += [_line(row) for group in self.groups for row in group]
        lines += ["", self.note] if self.note else []
        return "\n".join(lines) + "\n"


def reference_results(
    result: EvaluationResult, names: Sequence[str] = REFERENCES, *, progress: Callable[[int], None] = lambda done: None
) -> list[EvaluationResult]:
    """Let scripts play exactly the deals of a result.

    Args:
        result: Says board and deals.
        names: Of the scripts.
        progress: Receives the number of deals done by all of them together.

    Raises:
        SettingsError: The preset of this name has other rules by now, or the deals are not 0 to n-1.
    """
    config = EnvConfig.parse(result.env_config)
    if config.spec().hash != result.spec_hash:
        raise SettingsError(
            f"{result.label}: played on {result.preset} {result.spec_hash}, which is {config.spec().hash} in this "
            "version; evaluate it again."
        )
    references: list[EvaluationResult] = []
    for name in names:
        before = len(references) * result.num_deals

        def count(done: int, before: int = before) -> None:
            progress(before + done)

        team = parse_line_up(name, config.players)
        references.append(evaluate_line_up(team, config, result.num_deals, suite=result.suite, progress=count))
        paired_difference(result, references[-1])  # refuses other deals
    return references


def compared_pairs(results: Sequence[EvaluationResult]) -> list[tuple[EvaluationResult, EvaluationResult]]:
    """Return which line-ups are compared, as (one, the other): all pairs of up to four, else each with the first."""
    if len(results) <= _ALL_PAIRS:
        return list(combinations(results, 2))
    return [(results[0], result) for result in results[1:]]


def evaluation_sheets(results: Sequence[EvaluationResult], references: Sequence[EvaluationResult]) -> list[Sheet]:
    """Return every table of an evaluation: reference scripts from low to high, line-ups, what is attainable.

    Args:
        results: At least one, in the order wanted; a difference is a later one minus an earlier one.
        references: On the same deals.
    """
    groups = [group for group in (sorted(references, key=lambda one: one.mean), results) if group]
    scores = [[_scores(result) for result in group] for group in groups]
    play = [[_play(result) for result in group] for group in groups]
    most = results[0].attainable
    if most is not None:
        scores.append([attainable_row(most, len(_SCORES))])
    sheets = [
        Sheet(
            title=board_title(results[0]),
            columns=_SCORES,
            groups=scores,
            note="" if most is None else ATTAINABLE_SOURCE,
        ),
        Sheet(title="How they play", columns=_PLAY, groups=play),
    ]
    pairs = compared_pairs(results)
    if pairs:
        rows = [_difference(paired_difference(one, other), one, other) for one, other in pairs]
        sheets.append(Sheet(title="Differences, deal by deal", columns=_DIFFERENCES, groups=[rows]))
    told = [result for result in results if len(result.orders) > 1 or result.orders[0].seats != result.orders[0].words]
    if told:
        rows_of = [[_order(result, number) for number in range(len(result.orders))] for result in told]
        sheets.append(Sheet(title="Seat orders; the first moves first", columns=_ORDERS, groups=rows_of, num_names=2))
    return sheets


def evaluation_document(results: Sequence[EvaluationResult], references: Sequence[EvaluationResult]) -> dict[str, Any]:
    """Return all that an evaluation found, as `--json` prints it: results with their deals, comparisons, attainable."""
    differences = []
    for one, other in compared_pairs(results):
        found = paired_difference(one, other)
        differences.append(
            {
                "of": other.label,
                "minus": one.label,
                "mean": found.mean,
                "standard_error": found.standard_error,
                "interval_95": [found.low, found.high],
                "num_deals": found.num_deals,
                "num_decks": found.num_decks,
            }
        )
    return {
        "results": [result_to_json(result) for result in results],
        "references": [result_to_json(result) for result in references],
        "differences": differences,
        "attainable": results[0].attainable,
    }


def attainable_row(most: float, num_columns: int) -> tuple[str, ...]:
    """Return the row that says what the best known players score; nothing else of them is known here."""
    return (ATTAINABLE, f"{most:.2f}", *["–"] * (num_columns - 2))


def board_title(result: EvaluationResult) -> str:
    """Return which game and deals a table is about."""
    decks = f" ({result.num_decks} different decks)" if result.num_decks < result.num_deals else ""
    return (
        f"{result.preset}, {result.num_players} players, board {result.spec_hash}, most points {result.reachable_max}: "
        f"{result.num_deals} deals{decks} of suite {result.suite}"
    )


def shortfall(difference: Estimate, *, min_rise: float | None, min_sigma: float | None) -> str | None:
    """Return why a rise is too small, or None when it meets both limits that are given."""
    problems = []
    if min_rise is not None and not difference.mean >= min_rise:
        problems.append(f"the mean score rose by {difference.mean:+.3f}, wanted at least {min_rise:+.3f}")
    if min_sigma is not None and not difference.sigmas >= min_sigma:
        problems.append(f"the rise is {difference.sigmas:.1f} standard errors, wanted at least {min_sigma:g}")
    return f"not enough learnt on {difference.num_deals} deals: {'; '.join(problems)}." if problems else None


def _name(result: EvaluationResult) -> str:
    heat = result.temperature
    return result.label + ("" if heat is None else " (greedy)" if heat == 0 else f" (T={heat:g})")


def _scores(result: EvaluationResult) -> tuple[str, ...]:
    found = result.estimate
    return (
        _name(result),
        f"{found.mean:.3f} ± {found.standard_error:.3f}",
        f"{found.low:.3f} to {found.high:.3f}",
        f"{result.mean_kept:.3f}",
        f"{result.perfect_share:.1%}",
        f"{result.bomb_share:.1%}",
        f"{result.truncated_share:.1%}",
    )


def _play(result: EvaluationResult) -> tuple[str, ...]:
    return (
        _name(result),
        f"{result.illegal_per_game:.3f}",
        f"{result.unparsable_per_game:.3f}",
        f"{result.hints_per_turn:.3f}",
        f"{result.misplays_per_turn:.3f}",
        f"{result.turns_per_game:.2f}",
    )


def _difference(found: Estimate, one: EvaluationResult, other: EvaluationResult) -> tuple[str, ...]:
    return (
        f"{other.label} − {one.label}",
        f"{found.mean:+.3f} ± {found.standard_error:.3f}",
        f"{found.low:+.3f} to {found.high:+.3f}",
        f"{found.sigmas:+.1f}",
    )


def _order(result: EvaluationResult, number: int) -> tuple[str, ...]:
    order = result.orders[number]
    # A lent adapter is called by its digest; its folder says more.
    seats = (short_name(word) if is_frozen(seat) else seat for word, seat in zip(order.words, order.seats, strict=True))
    return (
        result.label if number == 0 else "",
        ", ".join(seats),
        f"{order.mean:.3f} ± {order.standard_error:.3f}",
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
