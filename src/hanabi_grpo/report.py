"""The demo's table: before, after, their difference, and what the scripts score on the same deals."""

from collections.abc import Sequence

from rich.table import Table

from hanabi_grpo.env_config import EnvConfig
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation import evaluate_scripted, paired_difference
from hanabi_grpo.evaluation_result import EvaluationResult, PairedDifference
from hanabi_grpo.policies import REFERENCES

COLUMNS = (
    "team",
    "mean score ± SE",
    "kept",
    "illegal",
    "unparsable",
    "bombs",
    "perfect",
    "hints",
    "turns",
)
"""Of those without a per cent sign, all but the scores are counts per game."""


def reference_results(result: EvaluationResult, names: Sequence[str] = REFERENCES) -> list[EvaluationResult]:
    """Let scripts play exactly the deals of a result.

    Raises:
        SettingsError: The preset of this name has other rules by now, or the deals are not 0 to n-1.
    """
    config = EnvConfig.parse({"preset": result.preset, "players": result.num_players, "observation": "compact"})
    if config.spec().hash != result.spec_hash:
        raise SettingsError(
            f"{result.label}: played on {result.preset} {result.spec_hash}, which is {config.spec().hash} in this "
            "version; evaluate it again."
        )
    references = [evaluate_scripted(name, config, result.num_deals, result.suite) for name in names]
    for reference in references:
        paired_difference(result, reference)  # refuses other deals
    return references


def result_cells(result: EvaluationResult) -> tuple[str, ...]:
    """Return one row of the table."""
    how = (
        "" if result.temperature is None else " (greedy)" if result.temperature == 0 else f" (T={result.temperature:g})"
    )
    return (
        f"{result.label}{how}",
        f"{result.mean:.3f} ± {result.standard_error:.3f}",
        f"{result.mean_kept:.3f}",
        f"{result.illegal_per_game:.3f}",
        f"{result.unparsable_per_game:.3f}",
        f"{result.bomb_share:.1%}",
        f"{result.perfect_share:.1%}",
        f"{result.hints_per_game:.2f}",
        f"{result.turns_per_game:.2f}",
    )


def difference_cells(
    difference: PairedDifference, before: EvaluationResult, after: EvaluationResult
) -> tuple[str, ...]:
    """Return the row of the paired difference, after minus before."""
    return (
        "paired difference",
        f"{difference.mean:+.3f} ± {difference.standard_error:.3f}",
        f"{after.mean_kept - before.mean_kept:+.3f}",
        f"{after.illegal_per_game - before.illegal_per_game:+.3f}",
        f"{after.unparsable_per_game - before.unparsable_per_game:+.3f}",
        f"{100 * (after.bomb_share - before.bomb_share):+.1f} pts",
        f"{100 * (after.perfect_share - before.perfect_share):+.1f} pts",
        f"{after.hints_per_game - before.hints_per_game:+.2f}",
        f"{after.turns_per_game - before.turns_per_game:+.2f}",
    )


def board_title(result: EvaluationResult) -> str:
    """Return which game and deals a table is about."""
    return (
        f"{result.preset}, {result.num_players} players, board {result.spec_hash}, most points {result.reachable_max}: "
        f"{result.num_deals} deals of suite {result.suite}; "
        "illegal, unparsable, hints and turns per game"
    )


def rich_table(title: str, groups: Sequence[Sequence[Sequence[str]]]) -> Table:
    """Return a table for the terminal; a line is drawn between groups of rows."""
    table = Table(title=title, title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "team" else "right", no_wrap=True)
    for group in groups:
        for row in group:
            table.add_row(*row)
        table.add_section()
    return table


def markdown_table(title: str, groups: Sequence[Sequence[Sequence[str]]]) -> str:
    """Return the same table as Markdown."""
    lines = [f"**{title}**", "", _line(COLUMNS), _line(["---", *["---:"] * (len(COLUMNS) - 1)])]
    lines += [_line(row) for group in groups for row in group]
    return "\n".join(lines) + "\n"


def shortfall(difference: PairedDifference, *, min_rise: float | None, min_sigma: float | None) -> str | None:
    """Return why a rise is too small, or None when it meets both limits that are given."""
    problems = []
    if min_rise is not None and not difference.mean >= min_rise:
        problems.append(f"the mean score rose by {difference.mean:+.3f}, wanted at least {min_rise:+.3f}")
    if min_sigma is not None and not difference.sigmas >= min_sigma:
        problems.append(f"the rise is {difference.sigmas:.1f} standard errors, wanted at least {min_sigma:g}")
    return f"not enough learnt on {difference.num_deals} deals: {'; '.join(problems)}." if problems else None


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
