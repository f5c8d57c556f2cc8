"""The files for people who report, contribute or cite: they agree with the software."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from doctor_machines import ROOT
from hanabi_grpo.cli import all_commands
from hanabi_grpo.settings.values import why_key_is_needed

TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))
CHANGE = ROOT / ".github" / "pull_request_template.md"
FILES = [ROOT / "SECURITY.md", ROOT / "CODE_OF_CONDUCT.md", CHANGE, *TEMPLATES]


def citation() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    return document


def bibtex() -> dict[str, str]:
    """Return the fields of the entry in docs/citation.md, and its kind and key."""
    text = (ROOT / "docs" / "citation.md").read_text(encoding="utf-8")
    [entry] = re.findall(r"```bibtex\n(.*?)```", text, flags=re.DOTALL)
    match = re.fullmatch(r"@(\w+)\{(\w+),\n(.*)\}\n", entry, flags=re.DOTALL)
    assert match is not None
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},?$", match[3], flags=re.MULTILINE))
    return {**fields, "kind": match[1], "key": match[2]}


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_bibtex_entry_says_what_the_citation_file_says() -> None:
    cited = citation()
    names = " and ".join(f"{{{author['name']}}}" for author in cited["authors"])
    released = str(cited["date-released"])
    assert bibtex() == {
        "kind": cited["type"],
        "key": cited["title"],
        "title": cited["title"],
        "author": names,
        "version": cited["version"],
        "date": released,
        "year": released.partition("-")[0],
        "license": cited["license"],
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_link_command_and_file_that_is_named_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        name, _, anchor = target.partition("#")
        page = path.parent / name
        assert page.is_file(), target
        if anchor:
            assert anchor in anchors(page), target
    for command in re.findall(r"hanabi-grpo (\w[\w-]*)", text):
        assert command in all_commands(), command
    for name in re.findall(r"bash (tools/[\w./]+)", text):
        assert (ROOT / name).is_file(), name


def test_issue_templates_have_what_a_chooser_shows() -> None:
    assert [path.stem for path in TEMPLATES] == ["bug", "idea"]
    for path in TEMPLATES:
        _, head, body = path.read_text(encoding="utf-8").split("---\n", 2)
        shown = yaml.safe_load(head)
        assert shown["name"] and shown["about"] and shown["labels"]
        assert body.strip()
    config = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text())
    assert config == {"blank_issues_enabled": True}


def test_the_page_on_security_names_the_shortest_key_that_is_accepted() -> None:
    text = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
    match = re.search(r"needs a key of (\d+) characters or more", text)
    assert match is not None
    shortest = int(match[1])
    assert why_key_is_needed("0.0.0.0", "k" * shortest) is None
    assert why_key_is_needed("0.0.0.0", "k" * (shortest - 1)) is not None
    assert why_key_is_needed("127.0.0.1", "") is None
