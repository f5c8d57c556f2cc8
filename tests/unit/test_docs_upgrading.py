"""docs/upgrading.md: its pins are those of pyproject.toml, and every file and test that it names
exists.
"""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from doctor_machines import ROOT

TEXT = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))


def stated_pins() -> dict[str, str]:
    rows = re.findall(r"^\| (`[^|]+`) \| `([=<>!~0-9.,]+)` \|", TEXT, flags=re.MULTILINE)
    return {name: pin for names, pin in rows for name in re.findall(r"`([\w-]+)`", names)}


def test_the_pins_are_those_of_the_project_and_every_exact_or_capped_one_is_listed() -> None:
    wanted = [
        *PROJECT["dependencies"],
        *(one for extra in PROJECT["optional-dependencies"].values() for one in extra),
    ]
    pinned = {
        one.name: one.specifier
        for one in map(Requirement, wanted)
        if re.search("==|<", str(one.specifier))
    }
    stated = stated_pins()
    assert stated.keys() == pinned.keys()
    assert {name: Requirement(f"{name}{pin}").specifier for name, pin in stated.items()} == pinned


def test_every_test_that_is_named_exists_and_every_conformance_file_about_a_pinned_package_is_named() -> (
    None
):
    assert [
        (path, name) for path, name in TESTS if f"def {name}(" not in (ROOT / path).read_text()
    ] == []
    named = {Path(path).name for path, _ in TESTS}
    # Bots' scores are about our own code.
    ours = {"test_bot_scores.py"}
    assert {
        path.name for path in (ROOT / "tests" / "conformance").glob("test_*.py")
    } - ours <= named


def test_every_path_that_is_named_exists() -> None:
    named = set(re.findall(r"(?<![\w./-])((?:src|tests|tools|docs)/[\w./-]*[\w])", TEXT))
    assert {name for name in named if not (ROOT / name).exists()} == set()
