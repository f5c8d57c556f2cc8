"""docs/troubleshooting.md has a section for every check of the doctor, and quotes only what the software says."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from doctor_machines import ROOT
from hanabi_grpo.commands.doctor.check import PAGE, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.command import PROBES

PACKAGE = ROOT / "src" / "hanabi_grpo"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
LEVELS = {"warn", "fail"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def found_by_the_doctor() -> Counter[str]:
    """Return how many places of the source make a failure or warning of each name."""
    names: Counter[str] = Counter()
    for path in sorted((PACKAGE / "commands" / "doctor").glob("*.py")):
        calls = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call) and node.args]
        for call in calls:
            makers = [node.id for node in ast.walk(call.func) if isinstance(node, ast.Name) and node.id in LEVELS]
            if isinstance(call.args[0], ast.Constant):
                names[str(call.args[0].value)] += len(makers)
    return +names


def sections(title: str) -> dict[str, str]:
    """Return the texts of a chapter by their headings."""
    [chapter] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"^### (.+)\n", chapter, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def said(node: ast.AST) -> Iterator[str]:
    """Yield every text of the source; … stands for a value."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in child.values)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        yield from said(child)


@cache
def everything_said() -> tuple[str, ...]:
    return tuple(text for path in sorted(PACKAGE.rglob("*.py")) for text in said(tree(path)))


def is_said(quote: str) -> bool:
    """Tell whether one text of the source holds the quote's parts in this order; log lines have % where it has …."""
    pattern = re.compile(".*".join(map(re.escape, quote.split("…"))), flags=re.DOTALL)
    return any(pattern.search(text) for text in everything_said())


def quotes(text: str) -> list[str]:
    """Return what a text quotes; a line of the page may end inside a quote."""
    return re.findall(r'\*\*"(.+?)"\*\*', text.replace("\n  ", " ").replace("\n", " "))


FOUND = found_by_the_doctor()
CHECKS = sections("What the doctor says")
TRAINING = sections("What is said in training")


def slug(heading: str) -> str:
    """Return a heading's anchor as the pages of a Git host make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_check_has_a_section_and_no_section_is_without_a_check() -> None:
    # A probe can fail by itself, under its own name.
    given_on = {"server gpus", "trainer gpus"}
    assert set(CHECKS) == {*FOUND, *given_on, *(probe.name for probe in PROBES)}


def test_a_check_links_to_its_section_when_it_fails_or_warns() -> None:
    for name in CHECKS:
        assert fail(name, "", "x").see == warn(name, "", "x").see == f"docs/troubleshooting.md#{slug(name)}"
        assert ok(name, "").see == skip(name, "").see == ""


def test_every_message_of_a_check_has_a_line_of_its_own() -> None:
    assert {name for name in FOUND if len(quotes(CHECKS[name])) < FOUND[name]} == set()


def test_every_quoted_message_is_one_that_the_software_prints() -> None:
    quoted = set(quotes(TEXT))
    assert {quote for quote in quoted if len(quote.replace("…", "")) < 8} == set(), "too short to be recognised"
    assert {quote for quote in quoted if not is_said(quote)} == set()


def test_every_symptom_in_training_quotes_a_message_or_points_to_one_that_is() -> None:
    silent = {name for name, text in TRAINING.items() if not quotes(text) and not re.search(r"\]\(#[\w-]+\)", text)}
    assert silent == set()


def test_every_link_to_another_page_leads_somewhere() -> None:
    linked = {name for name in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in name}
    assert {name for name in linked if not (ROOT / "docs" / name).is_file()} == set()
