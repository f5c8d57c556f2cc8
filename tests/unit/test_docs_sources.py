"""The page for users of other systems names settings and tests that exist."""

import re
from pathlib import Path

import pytest

from hanabi_grpo.settings import variables

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/sources.md").read_text(encoding="utf-8")
_NAME = re.compile(r"`([A-Z][A-Z_]{3,})(?:=[^`]*)?`")
_TEST = re.compile(r"`((?:unit|conformance|e2e)/test_\w+\.py)`")
_ENVIRONMENTS = ("hanabi", "revise", "frozen_lake")
"""Whose settings the page may name."""


def rows() -> list[str]:
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    return [line for line in lines if not line.startswith(("| theirs", "|---"))]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip()[:40])
def test_a_row_names_settings_and_tests_that_there_are(row: str) -> None:
    known = {"CUDA_VISIBLE_DEVICES"}
    for env in _ENVIRONMENTS:
        known |= {variable.env for variable in variables(env)}
    _, theirs, here, test, _ = re.split(r"(?<!`)\|(?!\|)", row)
    assert theirs.strip()
    unknown = [name for name in _NAME.findall(here) if name not in known]
    assert unknown == []
    tests = _TEST.findall(test)
    assert tests, "no test shows it"
    missing = [name for name in tests if not (ROOT / "tests" / name).is_file()]
    assert missing == []
