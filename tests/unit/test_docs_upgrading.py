"""docs/upgrading.md: its pins are those of pyproject.toml, and every file and test that it names exists."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from doctor_machines import ROOT

TEXT = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))
OVERRIDDEN = {
    "src/hanabi_grpo/training/trainer.py": "HanabiGRPOTrainer",
    "src/hanabi_grpo/training/saving.py": "CheckpointSaving",
}


@cache
def functions(path: Path, inside: str | None = None) -> frozenset[str]:
    """Return the names of a file's functions, or of a class's methods."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    if inside is not None:
        [body] = [node.body for node in body if isinstance(node, ast.ClassDef) and node.name == inside]
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def stated_pins() -> dict[str, str]:
    rows = re.findall(r"^\| (`[^|]+`) \| `([=<>!~0-9.,]+)` \|", TEXT, flags=re.MULTILINE)
    return {name: pin for names, pin in rows for name in re.findall(r"`([\w-]+)`", names)}


def test_the_pins_are_those_of_the_project_and_every_exact_or_capped_one_is_listed() -> None:
    wanted = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    pinned = {one.name: one.specifier for one in map(Requirement, wanted) if re.search("==|<", str(one.specifier))}
    stated = stated_pins()
    assert stated.keys() == pinned.keys()
    assert {name: Requirement(f"{name}{pin}").specifier for name, pin in stated.items()} == pinned


@pytest.mark.parametrize(("path", "name"), TESTS)
def test_every_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in functions(ROOT / path)


def test_the_tests_of_every_conformance_file_about_a_pinned_package_are_named() -> None:
    named = {Path(path).name for path, _ in TESTS}
    # Bots' scores and hanab.live are about our own code.
    ours = {"test_bot_scores.py", "test_hanab_live.py"}
    assert {path.name for path in (ROOT / "tests" / "conformance").glob("test_*.py")} - ours <= named


def test_every_path_that_is_named_exists() -> None:
    named = set(re.findall(r"(?<![\w./-])((?:src|tests|tools|docs)/[\w./-]*[\w])", TEXT))
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("path", OVERRIDDEN)
def test_the_methods_that_a_row_calls_overridden_are_there(path: str) -> None:
    [row] = [line for line in TEXT.splitlines() if line.startswith(f"| `{path}`")]
    named = set(re.findall(r"`(_?[a-z_]+)`", row.split("|")[2]))
    assert named and named <= functions(ROOT / path, OVERRIDDEN[path])
