"""What the documents say, held against the code: tables, commands, variables, paths, the doctor's
checks, quotes.
"""

import ast
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from architecture import DRAWING, SENTENCES, draw
from doctor_machines import NOWHERE, ROOT
from hanabi_grpo.cli import all_commands
from hanabi_grpo.commands.doctor.check import PAGE, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.command import PROBES
from hanabi_grpo.envs.hanabi.rules import make_spec
from hanabi_grpo.envs.hanabi.rules.presets import PRESETS
from hanabi_grpo.settings import (
    PASSED_THROUGH,
    batch_plan,
    environment_markdown,
    load_settings,
    variables,
)

PACKAGE = ROOT / "src" / "hanabi_grpo"
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "data/README.md",
    "docs/two-terminals.md",
    "docs/evaluation.md",
)
SCRIPTS = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("tools/**/*.sh")))
ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]+)=(\S*)")
KNOWN = {variable.env for variable in variables()} | set(PASSED_THROUGH)


OTHER_PROGRAMS = {
    "uvx",
    "uv",
    "pip",
    "git",
    "export",
    "echo",
    "for",
    "vf-eval",
    "python",
    ".venv/bin/python",
}
OTHER_PROGRAMS |= {"SERVERS", "sbatch"}  # of tools/cluster


def text_of(document: str) -> str:
    """Return a document without its comments, which readers do not see."""
    return re.sub(r"<!--.*?-->", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)


def commands_of(document: str) -> list[list[str]]:
    """Return the words of every command in the document's shell blocks and of every `hanabi-grpo …`
    in its prose.
    """
    text = text_of(document)
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`((?:\.venv/bin/)?hanabi-grpo [^`]+|bash tools/[^`]+)`", text)
    words = [shlex.split(part, comments=True) for line in lines for part in line.split("&&")]
    return [found for found in words if found]


def test_the_tables_are_what_settings_and_boards_say() -> None:
    settings, games, evaluation = (
        (ROOT / "docs" / f"{name}.md").read_text() for name in ("settings", "games", "evaluation")
    )
    [between] = re.findall(
        r"<!-- environment:begin -->\n(.*?)<!-- environment:end -->", settings, flags=re.DOTALL
    )
    assert between == environment_markdown(), (
        "put the output of hanabi-grpo settings --markdown between the marks"
    )
    assert re.findall(r"<!-- demo:(\w+) -->", README) == ["begin", "end"]
    for name, board in PRESETS.items():
        hands = ", ".join(f"{players}: {hand}" for players, hand in board.hand_sizes.items())
        row = (
            f"| `{name}` | {board.num_colors} × {board.num_ranks} | {board.max_hints} | "
            f"{board.max_lives} | {hands} "
        )
        assert any(line.startswith(f"{row}| ") for line in games.splitlines()), name
    few = [f"`{name}`" for name in PRESETS if make_spec(name).deals_all_decks]
    assert f"fewer than a million different decks ({', '.join(few)}; " in " ".join(
        evaluation.split()
    )
    assert len(README.splitlines()) <= 200


def test_every_command_exists_and_its_settings_are_accepted() -> None:
    assert [".venv/bin/hanabi-grpo", "settings", "--markdown"] in commands_of("docs/settings.md")
    known, ours = all_commands(), {variable.env for variable in variables()}
    pages = {*DOCUMENTS, *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))}
    for words in (words for document in sorted(pages) for words in commands_of(document)):
        assignments = itertools.takewhile(bool, map(ASSIGNMENT.fullmatch, words))
        given = dict(match.groups() for match in assignments if match)
        own = {name: value for name, value in given.items() if name in ours}
        own |= {"HANABI_API_KEY": "k" * 16} if own.get("HANABI_API_KEY") == "$KEY" else {}
        batch_plan(load_settings(own, NOWHERE).settings)
        program, *rest = words[len(given) :]
        if program == "bash":
            assert (ROOT / rest[0]).is_file(), words
        elif program.removeprefix(".venv/bin/") == "hanabi-grpo":
            command = known[rest[0]]
            options = {name for parameter in command.params for name in parameter.opts}
            assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= options, (
                words
            )
        else:
            assert program.partition("=")[0] in OTHER_PROGRAMS, words


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_variable_and_every_path_that_is_named_exists(document: str) -> None:
    text = text_of(document)
    named = set(re.findall(r"\b([A-Z][A-Z0-9_]+)=", text)) | set(
        re.findall(r"\b((?:HANABI|DEMO)_[A-Z0-9_]+)\b", text)
    )
    assert {name for name in named - KNOWN if not re.search(rf"\b{name}\b", SCRIPTS)} == set()
    named = set(re.findall(r"(?<![\w./-])((?:tools|src|data|tests|docs)/[\w./-]*[\w/])", text))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
    linked = {name for name in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in name}
    assert (
        sorted(name for name in linked if not (ROOT / document).parent.joinpath(name).exists())
        == []
    )


def test_every_package_that_contributing_names_exists_and_has_every_module() -> None:
    table = (
        (ROOT / "CONTRIBUTING.md")
        .read_text(encoding="utf-8")
        .split("| package |")[1]
        .split("\n\n")[0]
    )
    first_cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    packages = {
        name.rstrip("/") for cell in first_cells for name in re.findall(r"`([\w/.]+)`", cell)
    }
    modules = {path.name for path in PACKAGE.iterdir() if not path.name.startswith("__")}
    assert packages - {"tools"} <= modules
    assert modules - packages == set()


def test_the_drawing_shows_the_packages_and_their_imports_as_they_are() -> None:
    assert set(SENTENCES) == {
        path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_"
    }
    assert DRAWING.read_text(encoding="utf-8") == draw(), (
        "python tools/architecture.py draws it anew"
    )


def test_the_sample_pages_are_small_and_name_no_host() -> None:
    for page in (ROOT / "docs" / "samples").glob("*.html"):
        assert page.stat().st_size < 600_000, page.name
        assert not re.search(r"https?://|/home/|/root/|/tmp/", page.read_text(encoding="utf-8")), (
            page.name
        )


def test_the_site_builds_without_a_warning_and_every_page_is_in_its_menu(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert (built.returncode, built.stderr) == (0, "")
    fetched = re.compile(
        r'<(?:script|img|link rel="(?:stylesheet|preconnect)")[^>]+(?:src|href)="?https?://'
    )
    assert not [page for page in tmp_path.rglob("*.html") if fetched.search(page.read_text())]


TROUBLES = (ROOT / PAGE).read_text(encoding="utf-8")


def found_by_the_doctor() -> Counter[str]:
    """Return how many places of the source make a failure or warning of each name."""
    names: Counter[str] = Counter()
    for path in sorted((PACKAGE / "commands" / "doctor").glob("*.py")):
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and node.args
        ]
        for call in calls:
            makers = [
                node
                for node in ast.walk(call.func)
                if isinstance(node, ast.Name) and node.id in ("warn", "fail")
            ]
            if isinstance(call.args[0], ast.Constant):
                names[str(call.args[0].value)] += len(makers)
    return +names


def sections(title: str) -> dict[str, str]:
    """Return the texts of a chapter by their headings."""
    [chapter] = re.findall(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TROUBLES, flags=re.DOTALL | re.MULTILINE
    )
    parts = re.split(r"^### (.+)\n", chapter, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def said(node: ast.AST) -> Iterator[str]:
    """Yield every text of the source; … stands for a value."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "…" for part in child.values
            )
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        yield from said(child)


def quotes(text: str) -> list[str]:
    """Return what a text quotes; a line of the page may end inside a quote."""
    return re.findall(r'\*\*"(.+?)"\*\*', text.replace("\n  ", " ").replace("\n", " "))


def test_every_check_has_a_section_with_a_line_for_each_of_its_messages_and_links_to_it() -> None:
    found, checks = found_by_the_doctor(), sections("What the doctor says")
    # A probe can fail by itself, under its own name.
    assert set(checks) == {*found, "server gpus", "trainer gpus", *(probe.name for probe in PROBES)}
    assert {name for name in found if len(quotes(checks[name])) < found[name]} == set()
    for name in checks:
        assert (
            fail(name, "", "x").see == warn(name, "", "x").see == f"{PAGE}#{name.replace(' ', '-')}"
        )
        assert ok(name, "").see == skip(name, "").see == ""


def test_every_quoted_message_is_one_that_the_software_prints_and_every_link_leads_somewhere() -> (
    None
):
    spoken = tuple(
        text for path in sorted(PACKAGE.rglob("*.py")) for text in said(ast.parse(path.read_text()))
    )

    def is_said(quote: str) -> bool:
        # Log lines have % where the quote has ….
        pattern = re.compile(".*".join(map(re.escape, quote.split("…"))), flags=re.DOTALL)
        return any(pattern.search(text) for text in spoken)

    quoted = set(quotes(TROUBLES))
    assert {quote for quote in quoted if len(quote.replace("…", "")) < 8} == set(), (
        "too short to be recognised"
    )
    assert {quote for quote in quoted if not is_said(quote)} == set()
    training = sections("What is said in training")
    assert {
        name
        for name, text in training.items()
        if not quotes(text) and not re.search(r"\]\(#", text)
    } == set()
    linked = {name for name in re.findall(r"\]\(([^)#]+)\)", TROUBLES) if "://" not in name}
    assert {name for name in linked if not (ROOT / "docs" / name).is_file()} == set()
