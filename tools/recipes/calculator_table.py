"""Print the results of tools/recipes/calculator.sh, a row per run, before and after training.

python tools/recipes/calculator_table.py outputs/calculator
"""

import json
import sys
from pathlib import Path
from typing import Any


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
    shares = []
    for figure in ("tools/turn_share", "tools/error_share"):
        value = figures.get(figure)
        shares.append("no tool" if value is None else f"{value:.3f}")
    cells = [run, name, f"{summary['mean']:.3f}", f"{summary['standard_error']:.3f}", *shares]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
