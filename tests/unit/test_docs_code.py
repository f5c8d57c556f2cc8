"""Code on the pages runs and prints what they say; the patches of docs/extending.md fit."""

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
SUBJECTS = {"A board": "pocket", "A player": "careful"}
"""What the commands of a chapter name, which exists only with its patch."""
OF_OTHER_TESTS = {"extending.md": 3, "environments.md": 5, "interop.md": 3, "python.md": 6}
"""Pages whose Python other tests run, and how many blocks each has.

See the test of a page when it gets another block.
"""
RUN_HERE = {"dynamics.md", "replays.md", "teams.md", "two-terminals.md"}
"""Pages whose Python is run below."""


def blocks_of(text: str, kind: str) -> list[str]:
    """Return the blocks of one kind, e.g. "python"."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def environment(folder: Path) -> dict[str, str]:
    """Return this shell's variables without settings; the copied package comes first."""
    variables = {}
    for name in ("PATH", "HOME", "LANG"):
        if name in os.environ:
            variables[name] = os.environ[name]
    variables["PYTHONPATH"] = str(folder / "src")
    variables["GIT_CEILING_DIRECTORIES"] = str(folder.parent)
    return variables


def run(folder: Path, *command: str, text: str | None = None) -> str:
    """Run a command with the copied package; return what it printed.

    Args:
        folder: The folder of the copy.
        command: Program and arguments.
        text: Its standard input.
    """
    answer = subprocess.run(
        command,
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        env=environment(folder),
        check=False,
    )
    assert answer.returncode == 0, answer.stderr + answer.stdout
    return answer.stdout


def cli(folder: Path, *args: str) -> str:
    return run(folder, sys.executable, "-m", "hanabi_grpo.cli", *args)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with a copy of the package, and nothing else of the checkout."""
    without_caches = shutil.ignore_patterns("__pycache__")
    source = ROOT / "src" / "hanabi_grpo"
    shutil.copytree(source, tmp_path / "src" / "hanabi_grpo", ignore=without_caches)
    return tmp_path


@pytest.fixture
def patched(copied: Path, request: pytest.FixtureRequest) -> Path:
    """The same with the patch of a chapter applied."""
    chapter = request.getfixturevalue("chapter")
    [patch] = blocks_of(CHAPTERS[chapter], "diff")
    run(copied, "git", "apply", "--verbose", "-", text=patch)
    return copied


def test_the_page_has_four_chapters() -> None:
    assert list(CHAPTERS) == ["A reward", "A board", "A player", "An advantage estimator"]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_has_one_short_patch(chapter: str) -> None:
    [patch] = blocks_of(CHAPTERS[chapter], "diff")
    added = []
    for line in patch.splitlines():
        is_added = line.startswith("+") and not line.startswith("+++")
        if is_added and line != "+":
            added.append(line)
    assert 1 <= len(added) <= 20


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_patch_applies_and_its_python_prints_what_the_page_says(
    chapter: str, patched: Path
) -> None:
    programs = blocks_of(CHAPTERS[chapter], "python")
    outputs = blocks_of(CHAPTERS[chapter], "text")
    assert [run(patched, sys.executable, "-c", program) for program in programs] == outputs


@pytest.mark.parametrize("chapter", ["An advantage estimator"])
def test_the_new_estimator_is_a_choice_of_the_settings(chapter: str, patched: Path) -> None:
    assert "grpo, median, rloo" in cli(patched, "settings", "--markdown")


@pytest.mark.rest
@pytest.mark.parametrize("chapter", SUBJECTS)
def test_the_commands_behind_a_patch_run_and_did_not_without_it(
    chapter: str, patched: Path
) -> None:
    lines = "".join(blocks_of(CHAPTERS[chapter], "bash")).splitlines()
    assert lines
    assert SUBJECTS[chapter] in "".join(lines)
    args: list[str] = []
    for line in lines:
        program, *args = shlex.split(line)
        assert program == ".venv/bin/hanabi-grpo"
        cli(patched, *args)
    without_patch = subprocess.run(
        [sys.executable, "-m", "hanabi_grpo.cli", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert without_patch.returncode == 2
    assert SUBJECTS[chapter] in without_patch.stderr


PRINT_THE_REWARD = """\
import hanabi_grpo
print(hanabi_grpo.__file__)
from hanabi_grpo.rollout.datasets import load_rows
from hanabi_grpo.settings import load_settings
default = load_settings({}).settings
environ = {'HANABI_REWARD_CARELESS': '-0.25', 'HANABI_PRESET': 'laptop'}
given = load_settings(environ).settings
print(load_rows('rows.jsonl', default)[0].env_config['reward_careless'], given.reward_careless)
"""


@pytest.mark.parametrize("chapter", ["A reward"])
def test_the_new_reward_is_a_setting_and_a_key_of_a_dataset_row(
    chapter: str, patched: Path
) -> None:
    row = {
        "messages": [{"role": "user", "content": "x"}],
        "env_config": {"preset": "laptop", "reward_careless": -1},
    }
    (patched / "rows.jsonl").write_text(json.dumps(row) + "\n")
    path, values = run(patched, sys.executable, "-c", PRINT_THE_REWARD).splitlines()
    assert Path(path).is_relative_to(patched), "the copy is what runs"
    assert values == "-1.0 -0.25"


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`((?:src|tests|tools|policies)/[\w./]+?)/?`", TEXT))
    roots = (ROOT, ROOT / "src" / "hanabi_grpo")
    missing = {name for name in named if not any((root / name).exists() for root in roots)}
    assert missing == set()


def python_of(name: str) -> list[str]:
    """Return the blocks of Python of a page."""
    return blocks_of((ROOT / "docs" / name).read_text(encoding="utf-8"), "python")


def test_every_page_with_python_is_run_by_a_test() -> None:
    counts = {}
    for path in sorted((ROOT / "docs").glob("*.md")):
        num_blocks = len(python_of(path.name))
        if num_blocks:
            counts[path.name] = num_blocks
    assert counts.keys() == OF_OTHER_TESTS.keys() | RUN_HERE
    for name, num_blocks in OF_OTHER_TESTS.items():
        assert counts[name] == num_blocks, name


def replaced(code: str, before: str, after: str) -> str:
    assert before in code
    return code.replace(before, after)


def test_the_python_of_the_page_on_dynamics_runs(copied: Path) -> None:
    [code] = python_of("dynamics.md")
    run(copied, sys.executable, "-c", replaced(code, "range(1000)", "range(20)"))


@pytest.mark.rest
def test_the_python_of_the_page_on_two_terminals_runs(copied: Path) -> None:
    [code] = python_of("two-terminals.md")
    checkpoint = ROOT / "tests" / "data" / "version-0.2" / "run" / "checkpoint-2"
    code = replaced(code, '"data/tiny-model"', f'"{ROOT}/data/tiny-model"')
    code = replaced(code, '"outputs/my-run/checkpoint-50', f'"{checkpoint}')
    run(copied, sys.executable, "-c", code)


def test_the_tutorial_on_replays_runs_and_prints_what_it_says(copied: Path) -> None:
    text = (ROOT / "docs" / "replays.md").read_text(encoding="utf-8")
    outputs = []
    for line in re.findall(r"^\.venv/bin/hanabi-grpo (\w.*)$", text, flags=re.MULTILINE):
        outputs.append(cli(copied, *shlex.split(line, comments=True)))
    shown = blocks_of(text, "text")
    assert shown[0] in outputs[1]
    assert (copied / "replay.html").is_file()
    [code] = blocks_of(text, "python")
    assert run(copied, sys.executable, "-c", code) == shown[-1]


def test_the_tutorial_on_teams_runs_and_prints_what_it_says(copied: Path) -> None:
    text = (ROOT / "docs" / "teams.md").read_text(encoding="utf-8")
    [code] = blocks_of(text, "python")
    assert run(copied, sys.executable, "-c", code) == blocks_of(text, "text")[-1]
