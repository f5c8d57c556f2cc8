"""The documents speak the field's language: none of the words that this project once made up."""

import re
from pathlib import Path

import pytest

from doctor_machines import ROOT

PAGES = sorted(
    [
        *(ROOT / "docs").glob("*.md"),
        *(
            ROOT / name
            for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "data/README.md")
        ),
    ]
)
RETIRED = {
    r"\banew\b": "again, over, from scratch",
    r"\bgoes on\b": "continues",
    r"\bnobody disturbed\b": "uninterrupted",
    r"\bdearest\b": "most expensive",
    r"\bgone round\b": "cycled through",
    r"\bsaid once\b": "reported once",
    r"\blent adapters?\b": "guest adapter",
    r"\bhas watched\b|\bhad watched\b": "was pretrained on games of",
    r"\bby heart\b": "memorized",
    r"\bhung up on\b": "the connection is closed",
    r"\bno bad luck\b": "not a transient error",
    r"\bin vain\b": "without success",
    r"\bwho sits where\b": "seat assignment",
    r"^Who (sets|wants|has)\b": "an imperative",
    r"\bbad days\b": "failures",
    r"\bhanded on\b": "passed through",
    r"\bline-ups?\b": "lineup",
    r"\bmended\b": "fixed",
    r"\bfor ever\b": "unlimited",
}
"""What is not said any more, and how it is said."""
FIELD = (
    "KV cache",
    "off-policy",
    "importance sampling",
    "throughput",
    "dynamic sampling",
    "policy gradient",
    "fine-tun",
    "zero-variance",
    "on-policy",
    "trajectory",
    "advantage",
    "replica",
)
"""What readers of the field search for."""


def read(page: Path) -> str:
    """Return a page without its code, whose words are commands and output."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_none_of_the_retired_words(page: Path) -> None:
    found = []
    for number, line in enumerate(read(page).splitlines(), start=1):
        for word, better in RETIRED.items():
            match = re.search(word, line, flags=re.IGNORECASE)
            if match:
                found.append(f"{number}: {match[0]!r}, say: {better}")
    assert not found, "\n".join(found)


def test_the_words_of_the_field_are_there() -> None:
    text = "\n".join(read(page) for page in PAGES).lower()
    assert [word for word in FIELD if word.lower() not in text] == []
