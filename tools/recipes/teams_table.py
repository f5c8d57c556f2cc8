"""Print what `hanabi-grpo teams --out` left for several seeds as one table: `python teams_table.py
FILE.json ...`.
"""

import json
import sys
from collections import defaultdict
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

FIGURES = ("corrected", "misled", "agreement")


def main(files: list[str]) -> None:
    """Print a row for each workflow, lineup and way to answer: means over files, +- their standard
    error.
    """
    found: dict[tuple[str, str, str], list[dict[str, float]]] = defaultdict(list)
    for file in files:
        for result in json.loads(Path(file).read_text())["results"]:
            # A trained lineup is named by its versions, which are those of the seed's run.
            who = "start" if result["lineup"] == "base" else "trained"
            for row in result["rows"]:
                # The number of votes is that of the tokens, and a little different for each seed.
                name = (
                    "vote, as many tokens"
                    if row["name"].startswith("vote of") and "token" in row["name"]
                    else row["name"]
                )
                figures = {one: row["figures"].get(one) for one in FIGURES}
                found[result["workflow"], who, name].append(
                    {"right": row["right"]["mean"], "tokens": row["tokens"], **figures}
                )
            if result["gain"] is not None:
                found[result["workflow"], who, "team - that vote"].append(
                    {"right": result["gain"]["mean"]}
                )
    print("| workflow | lineup | who answers | right | tokens | corrected | misled | agreement |")
    print("|---|---|---|---|---|---|---|---|")
    for (workflow, who, name), rows in found.items():
        cells = [
            _cell([row.get(one) for row in rows], error=one == "right")
            for one in ("right", "tokens", *FIGURES)
        ]
        print("| " + " | ".join((workflow, who, name, *cells)) + " |")


def _cell(values: list[float | None], *, error: bool) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    shown = f"{fmean(known):.3f}"
    return (
        f"{shown} +- {stdev(known) / sqrt(len(known)):.3f}" if error and len(known) > 1 else shown
    )


if __name__ == "__main__":
    main(sys.argv[1:])
