"""The notebooks of the documentation run from their first cell to their last."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from doctor_machines import ROOT
from notebooks import code_cells

FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SECONDS = 500


def run(name: str, folder: Path, **variables: str) -> str:
    """Run a notebook's cells in a process of its own and return what they print."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HANABI_")}
    environ |= {"MPLBACKEND": "Agg", **variables}
    process = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "notebooks.py"), str(FOLDER / f"{name}.ipynb")],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert process.returncode == 0, (process.stdout + process.stderr)[-4000:]
    return process.stdout


def test_a_run_is_analysed(tmp_path: Path) -> None:
    recorded = ROOT / "tests" / "data" / "version-0.2" / "run"
    printed = run("analysing_a_run", tmp_path, RUN=str(recorded))
    assert re.search(r"^\d+ steps, \d+ figures each; checkpoints: \[1, 2\]$", printed, re.MULTILINE)


@pytest.mark.e2e
@pytest.mark.rest
def test_an_environment_is_written_checked_and_trained(tmp_path: Path) -> None:
    printed = run(
        "environment", tmp_path, NOTEBOOK_FOLDER=str(tmp_path / "work"), NOTEBOOK_STEPS="2"
    )
    assert "all checks passed" in printed
    assert re.search(r"^ +served +0\.\d+", printed, re.MULTILINE)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_its_outputs_and_no_path_of_a_machine(notebook: Path) -> None:
    text = notebook.read_text(encoding="utf-8")
    assert not re.search(r"/(tmp|root|home|work)/", text)
    assert text.count('"output_type"') >= len(code_cells(notebook)) // 2


def test_the_notebooks_game_is_the_documentations_example() -> None:
    namespace: dict[str, str] = {}
    exec(code_cells(FOLDER / "environment.ipynb")[0], namespace)
    example = (ROOT / "docs" / "examples" / "lighthouse.py").read_text(encoding="utf-8")
    assert namespace["FILE"].strip() == example.strip()
