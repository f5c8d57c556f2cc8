"""Print the results of `hanabi-grpo teams --out` for several seeds as one table.

python tools/recipes/teams_table.py FILE.json ...
"""

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

FIGURES = ("corrected", "misled", "agreement")
"""Figures in addition to the share of right answers and the tokens."""
GAIN = "team - that vote"
"""Name of the row with a team's gain over the vote."""


@dataclass(frozen=True, slots=True)
class RowName:
    """What a row of the table is about."""

    workflow: str
    """How the team works, e.g. "debate"."""
    lineup: str
    """"start" for the base model, "trained" for any other lineup."""
    way: str
    """Who answers, e.g. "vote, at least as many tokens"."""


def main(files: list[str]) -> None:
    """Print a row for each workflow, lineup and way to answer.

    Its figures are means over the files, +- their standard error.
    """
    table: dict[RowName, list[dict[str, float | None]]] = defaultdict(list)
    for file in files:
        for result in json.loads(Path(file).read_text())["results"]:
            _add_result(table, result)
    print("| workflow | lineup | who answers | right | tokens | corrected | misled | agreement |")
    print("|---|---|---|---|---|---|---|---|")
    for name, rows in table.items():
        cells = [name.workflow, name.lineup, name.way]
        for figure in ("right", "tokens", *FIGURES):
            values = [row.get(figure) for row in rows]
            cells.append(_cell(values, with_error=figure == "right"))
        print("| " + " | ".join(cells) + " |")


def _add_result(
    table: dict[RowName, list[dict[str, float | None]]], result: dict[str, Any]
) -> None:
    """Add the rows of a workflow and lineup of one seed."""
    workflow = result["workflow"]
    # A trained lineup is named by its versions, which are those of the seed's run.
    lineup = "start" if result["lineup"] == "base" else "trained"
    for row in result["rows"]:
        values = {"right": row["right"]["mean"], "tokens": row["tokens"]}
        for figure in FIGURES:
            values[figure] = row["figures"].get(figure)
        table[RowName(workflow, lineup, _way(row["name"]))].append(values)
    if result["gain"] is not None:
        table[RowName(workflow, lineup, GAIN)].append({"right": result["gain"]["mean"]})


def _way(name: str) -> str:
    """Return a row's name without the number of votes.

    That number follows from the tokens, so it differs slightly between seeds.
    """
    if name.startswith("vote of") and "token" in name:
        _, _, cost = name.partition(", ")
        return f"vote, {cost}"
    return name


def _cell(values: list[float | None], *, with_error: bool) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    mean = f"{fmean(known):.3f}"
    if not with_error or len(known) == 1:
        return mean
    error = stdev(known) / sqrt(len(known))
    return f"{mean} +- {error:.3f}"


if __name__ == "__main__":
    main(sys.argv[1:])
