"""docs/python.md: its code runs and prints what the page says; the reference names what there is.

What it says of training is run by tests/e2e/test_python.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hanabi_grpo
from doctor_machines import ROOT

TEXT = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)
PRINTED = re.findall(r"^```text\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)
PLAY, EVALUATE, TRAIN, LOOK, REWARD, TRY = BLOCKS
RECORDED = ROOT / "tests" / "data" / "version-0.2" / "run"


def run(code: str, folder: Path, *, path: str = "") -> str:
    """Run a block in a folder of its own and return what it printed."""
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environ["PYTHONPATH"] = path
    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.parametrize(("code", "printed"), [(PLAY, PRINTED[0]), (EVALUATE, PRINTED[1])])
def test_scripts_play_and_are_evaluated_as_the_page_says(
    code: str, printed: str, tmp_path: Path
) -> None:
    assert run(code, tmp_path) == printed


def test_a_run_is_looked_at_as_the_page_says(tmp_path: Path) -> None:
    code = LOOK.replace("outputs/my-run", str(RECORDED))
    assert code != LOOK
    assert run(code, tmp_path) == PRINTED[2]


def test_the_reward_of_the_page_is_the_example_and_prints_what_the_page_says(
    tmp_path: Path,
) -> None:
    examples = ROOT / "docs" / "examples"
    assert (examples / "hanabi_brief.py").read_text(encoding="utf-8") == REWARD
    assert run(TRY, tmp_path, path=str(examples)) == PRINTED[3]


def test_the_reference_has_an_entry_for_every_public_name() -> None:
    reference = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    entries = set(re.findall(r"^::: ([\w.]+)$", reference, flags=re.MULTILINE))
    missing = set()
    for name, module in hanabi_grpo._HOMES.items():
        if f"{module}.{name}" not in entries and module not in entries:
            missing.add(name)
    # Every one of its fields is a row of docs/settings.md.
    assert missing == {"Settings"}


def test_the_site_shows_the_docstrings(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    page = (tmp_path / "api.html").read_text(encoding="utf-8")
    assert "Evaluate one or more lineups on held-out tasks" in page
    assert "Number of held-out tasks, each played in every seat order." in page
