"""Print the results of tools/recipes/calculator.sh, a row per run, before and after training.

python tools/recipes/calculator_table.py outputs/calculator
"""

import json
import sys
from pathlib import Path
from typing import Any

_NO_TOOL = "no tool"
"""Stands for the shares of players without a tool."""
_NO_CALL = "no call"
"""Stands for a share of calls where there are none."""


def main(folder: Path) -> None:
    """Print the table of all runs in a folder.

    Args:
        folder: TOOL_OUT.
    """
    print("| tool and seed | players | right | ± | turns with a call | calls with an error |")
    print("|---|---|---|---|---|---|")
    for run in sorted(folder.iterdir()):
        for name in ("before", "after", "greedy"):
            path = run / f"{name}.json"
            if path.is_file():
                print(_row(run.name, name, json.loads(path.read_text())))


def _row(run: str, name: str, evaluation: dict[str, Any]) -> str:
    summary = evaluation["summary"]
    figures = evaluation["figures"]
    has_tool = "tools/turn_share" in figures
    cells = [
        run,
        name,
        f"{summary['mean']:.3f}",
        f"{summary['standard_error']:.3f}",
        _share(figures, "tools/turn_share", otherwise=_NO_TOOL),
        # Players with a tool who never call it have no share of calls.
        _share(figures, "tools/error_share", otherwise=_NO_CALL if has_tool else _NO_TOOL),
    ]
    return f"| {' | '.join(cells)} |"


def _share(figures: dict[str, float], name: str, *, otherwise: str) -> str:
    """Return a share as a cell.

    Args:
        figures: The figures of an evaluation.
        name: The share.
        otherwise: The cell if the evaluation does not have it.
    """
    value = figures.get(name)
    return otherwise if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
