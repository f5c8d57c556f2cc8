"""docs/troubleshooting.md has a section for every check of the doctor, and quotes only what the software says."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from doctor_machines import ROOT
from hanabi_grpo.commands.doctor.check import PAGE, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.run import PROBES

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
        for function in [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]:
            if path.name == "check.py" and function.name in LEVELS:
                continue
            parameters = [argument.arg for argument in function.args.args]
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                makers = [node.id for node in ast.walk(call.func) if isinstance(node, ast.Name)]
                if not LEVELS.intersection(makers) or not call.args:
                    continue
                places = sum(maker in LEVELS for maker in makers)
                given = call.args[0]
                if isinstance(given, ast.Constant):
                    names[given.value] += places
                    continue
                assert isinstance(given, ast.Name), f"{path.name}:{call.lineno}: whose check is this?"
                if function.name == "_timed":
                    continue  # the name of any probe
                for name in constants_given_to(path, function.name, parameters.index(given.id)):
                    names[name] += places
    return names


def constants_given_to(path: Path, function: str, position: int) -> set[str]:
    """Return the constants that the calls of a function of a file have at a position."""
    calls = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    given = [call.args[position] for call in calls if isinstance(call.func, ast.Name) and call.func.id == function]
    constants = {node.value for node in given if isinstance(node, ast.Constant)}
    assert constants, f"{path.name}: nobody gives {function} a name"
    return constants


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
    assert set(CHECKS) == {*FOUND, "settings", *(probe.name for probe in PROBES)}


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_check_links_to_its_section_when_it_fails_or_warns(name: str) -> None:
    assert slug(name) in {slug(heading) for heading in [*CHECKS, *TRAINING]}
    assert fail(name, "", "x").see == warn(name, "", "x").see == f"docs/troubleshooting.md#{slug(name)}"
    assert ok(name, "").see == skip(name, "").see == ""


@pytest.mark.parametrize("name", sorted(FOUND))
def test_every_message_of_a_check_has_a_line_of_its_own(name: str) -> None:
    assert len(quotes(CHECKS[name])) >= FOUND[name], "a message of this check is not explained"


@pytest.mark.parametrize("quote", sorted(set(quotes(TEXT))))
def test_every_quoted_message_is_one_that_the_software_prints(quote: str) -> None:
    assert len(quote.replace("…", "")) >= 8, "too short to be recognised"
    assert is_said(quote)


@pytest.mark.parametrize("heading", sorted(TRAINING))
def test_every_symptom_in_training_quotes_a_message_or_points_to_one_that_is(heading: str) -> None:
    assert quotes(TRAINING[heading]) or re.search(r"\]\(#[\w-]+\)", TRAINING[heading])


def test_every_link_to_another_page_leads_somewhere() -> None:
    linked = {name for name in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in name}
    assert {name for name in linked if not (ROOT / "docs" / name).is_file()} == set()
