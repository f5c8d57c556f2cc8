"""docs/upgrading.md: its pins are those of pyproject.toml, and all that it names exists."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from doctor_machines import ROOT

TEXT = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))
"""File and name of every test that the page names."""
ABOUT_OUR_OWN_CODE = {"test_bot_scores.py"}
"""Conformance tests that are not about another package."""


def stated_pins() -> dict[str, str]:
    """Return the pins of the page, by the name of the package."""
    pins = {}
    rows = re.findall(r"^\| (`[^|]+`) \| `([=<>!~0-9.,]+)` \|", TEXT, flags=re.MULTILINE)
    for names, pin in rows:
        for name in re.findall(r"`([\w-]+)`", names):
            pins[name] = pin
    return pins


def test_the_pins_are_those_of_the_project_and_every_exact_or_capped_one_is_listed() -> None:
    texts = list(PROJECT["dependencies"])
    for extra in PROJECT["optional-dependencies"].values():
        texts += extra
    pinned = {}
    for text in texts:
        requirement = Requirement(text)
        if re.search("==|<", str(requirement.specifier)):
            pinned[requirement.name] = requirement.specifier
    stated = {}
    for name, pin in stated_pins().items():
        stated[name] = Requirement(f"{name}{pin}").specifier
    assert stated == pinned


def test_every_test_that_is_named_exists() -> None:
    missing = []
    for path, name in TESTS:
        if f"def {name}(" not in (ROOT / path).read_text():
            missing.append((path, name))
    assert missing == []


def test_every_conformance_file_about_a_pinned_package_is_named() -> None:
    named = {Path(path).name for path, _ in TESTS}
    files = {path.name for path in (ROOT / "tests" / "conformance").glob("test_*.py")}
    assert files - ABOUT_OUR_OWN_CODE - named == set()


def test_every_path_that_is_named_exists() -> None:
    named = set(re.findall(r"(?<![\w./-])((?:src|tests|tools|docs)/[\w./-]*[\w])", TEXT))
    assert {name for name in named if not (ROOT / name).exists()} == set()
