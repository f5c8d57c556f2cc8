"""Code on the pages: the patches of docs/extending.md fit this version; what is shown runs and
prints what it says.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from doctor_machines import ROOT

PAGE = ROOT / "docs" / "extending.md"
TEXT = PAGE.read_text(encoding="utf-8")
CHAPTERS = dict(
    re.findall(r"^## (An? [^\n]+)\n(.*?)(?=^## |\Z)", TEXT, flags=re.DOTALL | re.MULTILINE)
)


def blocks(chapter: str, kind: str) -> list[str]:
    """Return the blocks of one kind in a chapter."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", CHAPTERS[chapter], flags=re.DOTALL | re.MULTILINE)


def environment(folder: Path) -> dict[str, str]:
    """Return this shell's variables without settings; the copied package comes first."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": str(folder / "src"),
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }


def run(folder: Path, *words: str, text: str | None = None) -> str:
    """Run a command with the copied package; return what it printed."""
    done = subprocess.run(
        words,
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        env=environment(folder),
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with a copy of the package, and nothing else of the checkout."""
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "hanabi_grpo", tmp_path / "src" / "hanabi_grpo", ignore=without)
    return tmp_path


@pytest.fixture
def patched(copied: Path, request: pytest.FixtureRequest) -> Path:
    """The same with a chapter's patch applied."""
    [patch] = blocks(request.getfixturevalue("chapter"), "diff")
    run(copied, "git", "apply", "--verbose", "-", text=patch)
    return copied


def cli(folder: Path, *words: str) -> str:
    return run(folder, sys.executable, "-m", "hanabi_grpo.cli", *words)


def test_the_page_has_the_four_chapters_each_with_one_short_patch() -> None:
    assert list(CHAPTERS) == ["A reward", "A board", "A player", "An advantage estimator"]
    for chapter in CHAPTERS:
        [patch] = blocks(chapter, "diff")
        added = [
            line
            for line in patch.splitlines()
            if line.startswith("+") and not line.startswith("+++")
        ]
        assert 1 <= len([line for line in added if len(line) > 1]) <= 20


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_patch_applies_and_its_python_prints_what_the_page_says(
    chapter: str, patched: Path
) -> None:
    code, printed = blocks(chapter, "python"), blocks(chapter, "text")
    assert len(code) == len(printed)
    assert [run(patched, sys.executable, "-c", block) for block in code] == printed
    if chapter == "An advantage estimator":
        assert "grpo, median, rloo" in cli(patched, "settings", "--markdown")


@pytest.mark.parametrize("chapter", ["A board", "A player"])
def test_the_commands_behind_a_patch_run_and_did_not_without_it(
    chapter: str, copied: Path, patched: Path
) -> None:
    lines = "".join(blocks(chapter, "bash")).splitlines()
    assert lines
    for line in lines:
        program, *words = shlex.split(line)
        assert program == ".venv/bin/hanabi-grpo"
        cli(patched, *words)
    subject = {"A board": "pocket", "A player": "careful"}[chapter]
    assert subject in "".join(lines)
    refused = subprocess.run(
        [sys.executable, "-m", "hanabi_grpo.cli", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2 and subject in refused.stderr


@pytest.mark.parametrize("chapter", ["A reward"])
def test_the_new_reward_is_a_setting_and_a_key_of_a_dataset_row(
    chapter: str, patched: Path
) -> None:
    row = {
        "messages": [{"role": "user", "content": "x"}],
        "env_config": {"preset": "laptop", "reward_careless": -1},
    }
    (patched / "rows.jsonl").write_text(json.dumps(row) + "\n")
    ask = (
        "import hanabi_grpo\n"
        "print(hanabi_grpo.__file__)\n"
        "from hanabi_grpo.rollout.datasets import load_rows\n"
        "from hanabi_grpo.settings import load_settings\n"
        "none = load_settings({}).settings\n"
        "given = load_settings({'HANABI_REWARD_CARELESS': '-0.25', 'HANABI_PRESET': "
        "'laptop'}).settings\n"
        "print(load_rows('rows.jsonl', none)[0].env_config['reward_careless'], "
        "given.reward_careless)\n"
    )
    where, values = run(patched, sys.executable, "-c", ask).splitlines()
    assert Path(where).is_relative_to(patched), "the copy is what runs"
    assert values == "-1.0 -0.25"


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`((?:src|tests|tools|policies)/[\w./]+?)/?`", TEXT))
    roots = (ROOT, ROOT / "src" / "hanabi_grpo")
    assert {name for name in named if not any((root / name).exists() for root in roots)} == set()


OF_OTHER_TESTS = {"extending.md": 3, "environments.md": 3, "interop.md": 3}
"""Pages whose Python other tests run, and how many blocks each has: see the test of a page when it
gets another one.
"""


def test_every_page_with_python_is_run(copied: Path) -> None:
    found = {}
    for path in sorted((ROOT / "docs").glob("*.md")):
        if code := re.findall(
            r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        ):
            found[path.name] = code
    assert {
        name: len(code) for name, code in found.items() if name in OF_OTHER_TESTS
    } == OF_OTHER_TESTS
    assert found.keys() - OF_OTHER_TESTS.keys() == {
        "dynamics.md",
        "replays.md",
        "teams.md",
        "two-terminals.md",
    }
    old = ROOT / "tests" / "data" / "version-0.2" / "run" / "checkpoint-2"
    for name, less in {
        "dynamics.md": ("range(1000)", "range(20)"),
        "two-terminals.md": (
            '"data/tiny-model", "outputs/my-run/checkpoint-50',
            f'"{ROOT}/data/tiny-model", "{old}',
        ),
    }.items():
        [code] = found[name]
        for there, here in zip(less[0].split(", "), less[1].split(", "), strict=True):
            assert there in code
            code = code.replace(there, here)
        run(copied, sys.executable, "-c", code)


@pytest.mark.parametrize("name", ["replays.md", "teams.md"])
def test_a_tutorial_runs_and_prints_what_it_says(name: str, copied: Path) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    [code] = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    shown = re.findall(r"^```text\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    if name == "replays.md":
        lines = re.findall(r"^\.venv/bin/hanabi-grpo (\w.*)$", text, flags=re.MULTILINE)
        said = [cli(copied, *shlex.split(line, comments=True)) for line in lines]
        assert shown[0] in said[1] and (copied / "replay.html").is_file()
    assert run(copied, sys.executable, "-c", code) == shown[-1]
