"""Runs a notebook's code, cell by cell in one namespace, as Jupyter would.

python tests/notebooks.py NOTEBOOK
"""

import json
import sys
from pathlib import Path


def code_cells(notebook: Path) -> list[str]:
    """Return the code of a notebook, cell by cell."""
    document = json.loads(notebook.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


def run(notebook: Path) -> None:
    """Execute a notebook's cells; what fails, fails here."""
    namespace = {"__name__": "__main__"}
    for number, code in enumerate(code_cells(notebook), start=1):
        exec(compile(code, f"{notebook.name}, cell {number}", "exec"), namespace)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
