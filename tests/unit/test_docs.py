"""What the documents say, compared with the code.

Tables, commands, variables, paths, the doctor's checks, and quoted messages.
"""

import ast
import asyncio
import itertools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from architecture import DRAWING, SENTENCES, draw
from doctor_machines import NOWHERE, ROOT
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.cli import all_commands
from hanabi_grpo.commands.doctor.check import PAGE, fail, ok, skip, warn
from hanabi_grpo.commands.doctor.command import PLAN_PROBES, PROBES
from hanabi_grpo.envs.base import Observation, Task
from hanabi_grpo.envs.hanabi.rules import make_spec
from hanabi_grpo.envs.hanabi.rules.presets import PRESETS
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.rollout.loop import Player, PlayerSeat, play_episode
from hanabi_grpo.settings import (
    PASSED_THROUGH,
    batch_plan,
    environment_markdown,
    load_settings,
    variables,
)
from hanabi_grpo.types import Reply

PACKAGE = ROOT / "src" / "hanabi_grpo"
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "data/README.md",
    "docs/two-terminals.md",
    "docs/evaluation.md",
)
"""Documents whose variables and paths are looked up."""
PAGES = sorted({*DOCUMENTS, *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))})
"""All documents, whose commands are looked up."""
SCRIPTS = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("tools/**/*.sh")))
ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]+)=(\S*)")
OURS = {variable.env for variable in variables()}
KNOWN = OURS | set(PASSED_THROUGH)
OTHER_PROGRAMS = {
    "uvx",
    "uv",
    "pip",
    "git",
    "cd",
    "export",
    "echo",
    "for",
    "vf-eval",
    "python",
    ".venv/bin/python",
    # Of tools/cluster.
    "SERVERS",
    "sbatch",
}
"""What commands of the documents begin with, besides our scripts and commands."""
MAX_SAMPLE_PAGE_BYTES = 1_500_000
MIN_QUOTE = 8
"""Characters of a quote by which a message is recognised."""


def text_of(document: str) -> str:
    """Return a document without its comments, which readers do not see."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def commands_of(document: str) -> list[list[str]]:
    """Return the words of every command of a document.

    Commands are the lines of shell blocks, and every `hanabi-grpo …` in the prose.
    """
    text = text_of(document)
    lines: list[str] = []
    for block in re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL):
        lines += block.replace("\\\n", " ").splitlines()
    lines += re.findall(r"`((?:\.venv/bin/)?hanabi-grpo [^`]+|bash tools/[^`]+)`", text)
    commands = []
    for line in lines:
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            if words:
                commands.append(words)
    return commands


def test_the_page_of_settings_holds_the_table_of_the_settings() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    [between] = re.findall(
        r"<!-- environment:begin -->\n(.*?)<!-- environment:end -->", page, flags=re.DOTALL
    )
    assert between == environment_markdown(), (
        "put the output of hanabi-grpo settings --markdown between the marks"
    )


def test_the_readme_has_the_marks_between_which_the_demo_writes() -> None:
    assert re.findall(r"<!-- demo:(\w+) -->", README) == ["begin", "end"]


@pytest.mark.parametrize("name", PRESETS)
def test_the_page_of_games_has_a_row_for_every_board(name: str) -> None:
    board = PRESETS[name]
    hands = ", ".join(f"{players}: {hand}" for players, hand in board.hand_sizes.items())
    cells = [
        f"`{name}`",
        f"{board.num_colors} × {board.num_ranks}",
        str(board.max_hints),
        str(board.max_lives),
        hands,
    ]
    row = f"| {' | '.join(cells)} | "
    lines = (ROOT / "docs" / "games.md").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith(row) for line in lines)


def test_the_page_of_evaluation_names_the_boards_with_few_decks() -> None:
    few = [f"`{name}`" for name in PRESETS if make_spec(name).deals_all_decks]
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    sentence = f"fewer than a million different decks ({', '.join(few)}; "
    assert sentence in " ".join(page.split())


def test_commands_are_found_in_the_documents() -> None:
    assert [".venv/bin/hanabi-grpo", "settings", "--markdown"] in commands_of("docs/settings.md")


@pytest.mark.parametrize("document", PAGES)
def test_every_command_exists_and_its_settings_are_accepted(document: str) -> None:
    known_commands = all_commands()
    for words in commands_of(document):
        environ = {}
        num_assignments = 0
        for word in itertools.takewhile(ASSIGNMENT.fullmatch, words):
            name, _, value = word.partition("=")
            num_assignments += 1
            if name in OURS:
                environ[name] = value
        if environ.get("HANABI_API_KEY") == "$KEY":
            environ["HANABI_API_KEY"] = "k" * 16
        batch_plan(load_settings(environ, NOWHERE).settings)
        program, *args = words[num_assignments:]
        if program == "bash":
            assert (ROOT / args[0]).is_file(), words
        elif program.removeprefix(".venv/bin/") == "hanabi-grpo":
            options: set[str] = set()
            for parameter in known_commands[args[0]].params:
                options.update(parameter.opts)
            given = {arg.partition("=")[0] for arg in args if arg.startswith("--")}
            assert given <= options | {"--set"}, words
        else:
            assert program.partition("=")[0] in OTHER_PROGRAMS, words


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_variable_that_is_named_exists(document: str) -> None:
    text = text_of(document)
    named = set(re.findall(r"\b([A-Z][A-Z0-9_]+)=", text))
    named |= set(re.findall(r"\b((?:HANABI|DEMO)_[A-Z0-9_]+)\b", text))
    unknown = {name for name in named - KNOWN if not re.search(rf"\b{name}\b", SCRIPTS)}
    assert unknown == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_that_is_named_or_linked_exists(document: str) -> None:
    text = text_of(document)
    named = set(re.findall(r"(?<![\w./-])((?:tools|src|data|tests|docs)/[\w./-]*[\w/])", text))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
    folder = (ROOT / document).parent
    linked = {name for name in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in name}
    assert sorted(name for name in linked if not (folder / name).exists()) == []


def test_every_package_that_contributing_names_exists_and_has_every_module() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, behind = text.partition("| package |")
    table, _, _ = behind.partition("\n\n")
    packages = set()
    for line in table.splitlines()[2:]:
        first_cell = line.split("|")[1]
        for name in re.findall(r"`([\w/.]+)`", first_cell):
            packages.add(name.rstrip("/"))
    entries = [path for path in PACKAGE.iterdir() if path.suffix != ".typed"]
    modules = {path.name for path in entries if not path.name.startswith("__")}
    assert packages - {"tools"} <= modules
    assert modules - packages == set()


def test_the_drawing_shows_the_packages_and_their_imports_as_they_are() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert set(SENTENCES) == packages
    assert DRAWING.read_text(encoding="utf-8") == draw(), "python tools/architecture.py redraws it"


def test_the_sample_pages_are_small_and_name_no_host() -> None:
    pages = sorted((ROOT / "docs" / "samples").glob("*.html"))
    assert [page.stem for page in pages] == ["cross-play", "replay-trained", "replay", "run"]
    for page in pages:
        assert page.stat().st_size < MAX_SAMPLE_PAGE_BYTES, page.name
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"https?://|/home/|/root/|/tmp/", text), page.name


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    build = subprocess.run(
        # Not --quiet: it hides warnings from --strict as well.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert build.returncode == 0, build.stderr
    assert "WARNING" not in build.stderr
    fetched = re.compile(
        r'<(?:script|img|link rel="(?:stylesheet|preconnect)")[^>]+(?:src|href)="?https?://'
    )
    for page in tmp_path.rglob("*.html"):
        assert not fetched.search(page.read_text()), page


TROUBLES = (ROOT / PAGE).read_text(encoding="utf-8")


def problems_of_the_doctor() -> Counter[str]:
    """Count the places of the source that make a failure or warning, by the name of the check."""
    names: Counter[str] = Counter()
    for path in sorted((PACKAGE / "commands" / "doctor").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id not in ("warn", "fail") or not node.args:
                continue
            name = node.args[0]
            if isinstance(name, ast.Constant):
                names[str(name.value)] += 1
    return names


def sections(title: str) -> dict[str, str]:
    """Return the texts of a chapter of docs/troubleshooting.md by their headings."""
    [chapter] = re.findall(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TROUBLES, flags=re.DOTALL | re.MULTILINE
    )
    _, *parts = re.split(r"^### (.+)\n", chapter, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def texts_in(node: ast.AST) -> Iterator[str]:
    """Yield every text of a source; … stands for a value."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            parts = []
            for part in child.values:
                parts.append(str(part.value) if isinstance(part, ast.Constant) else "…")
            yield "".join(parts)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        yield from texts_in(child)


def quotes(text: str) -> list[str]:
    """Return the quotes of a text; a line of the page may end inside a quote."""
    return re.findall(r'\*\*"(.+?)"\*\*', text.replace("\n  ", " ").replace("\n", " "))


def test_every_check_of_the_doctor_has_a_section() -> None:
    problems = problems_of_the_doctor()
    # A probe can fail by itself, under its own name.
    probes = {probe.name for probe in (*PROBES, *PLAN_PROBES)}
    assert set(sections("What the doctor says")) == {
        *problems,
        *probes,
        "server gpus",
        "trainer gpus",
    }


def test_the_section_of_a_check_has_a_line_for_each_of_its_problems() -> None:
    checks = sections("What the doctor says")
    too_few = set()
    for name, num_problems in problems_of_the_doctor().items():
        if len(quotes(checks[name])) < num_problems:
            too_few.add(name)
    assert too_few == set()


def test_a_problem_links_to_its_section_and_a_good_answer_to_nothing() -> None:
    for name in sections("What the doctor says"):
        link = f"{PAGE}#{name.replace(' ', '-')}"
        assert fail(name, "", "x").see == link
        assert warn(name, "", "x").see == link
        assert ok(name, "").see == ""
        assert skip(name, "").see == ""


def test_every_quoted_message_is_one_that_the_software_prints() -> None:
    texts: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        texts += texts_in(ast.parse(path.read_text()))

    def is_printed(quote: str) -> bool:
        # Log lines have % where the quote has ….
        pieces = [re.escape(piece) for piece in quote.split("…")]
        pattern = re.compile(".*".join(pieces), flags=re.DOTALL)
        return any(pattern.search(text) for text in texts)

    quoted = set(quotes(TROUBLES))
    too_short = {quote for quote in quoted if len(quote.replace("…", "")) < MIN_QUOTE}
    assert too_short == set(), "too short to be recognised"
    assert {quote for quote in quoted if not is_printed(quote)} == set()


def test_every_section_on_training_quotes_a_message_or_links_to_one() -> None:
    without = set()
    for name, text in sections("Messages during training").items():
        if not quotes(text) and not re.search(r"\]\(#", text):
            without.add(name)
    assert without == set()


def test_every_link_of_the_page_on_troubles_leads_somewhere() -> None:
    linked = {name for name in re.findall(r"\]\(([^)#]+)\)", TROUBLES) if "://" not in name}
    assert {name for name in linked if not (ROOT / "docs" / name).is_file()} == set()


@dataclass
class Reader:
    """A bot that notes what a model in its seat would read, and what it replies."""

    bot: Player
    notes: list[tuple[str, str]]

    def seat(self, player: int, *, task: Task[Any], game: int) -> "ReadingSeat":
        return ReadingSeat(seat=self.bot.seat(player, task=task, game=game), notes=self.notes)


@dataclass
class ReadingSeat:
    """Its seat in one game."""

    seat: PlayerSeat
    notes: list[tuple[str, str]]

    async def reply(self, seen: Observation) -> Reply:
        reply = await self.seat.reply(seen)
        self.notes.append((seen.message(), reply.text))
        return reply


def test_the_readme_shows_a_turn_as_a_player_reads_it() -> None:
    """The second turn of a game of two scripted players."""
    played = setup("hanabi", {"preset": "marshal-mini", "observation": "full", "legal_moves": True})
    notes: list[tuple[str, str]] = []
    players = [Reader(make_script(played, "iggi"), notes) for _ in range(2)]
    task = played.task("eval", 3)
    asyncio.run(play_episode(task, players, game=0, names=["a", "b"], instance_id=""))
    message, reply = notes[1]
    [shown] = re.findall(
        r"<!-- prompt:begin -->\n(.*?)<!-- prompt:end -->", README, flags=re.DOTALL
    )
    assert shown == f"```text\n{message}\n```\n\n```text\n{reply}\n```\n"


def test_the_variables_of_the_scripts_are_in_a_table() -> None:
    read = re.compile(
        r"\$\{?((?:BENCH|CHECK|CLUSTER|DEMO|FAULTS|PACK|RECIPE|SETUP|TEAM)_[A-Z_]+"
        r"|BOARD|FAULTS|GPUS|NOISE_STEPS|NUM_SERVERS|SERVERS|TRAINERS)\b"
    )
    named = set(read.findall(SCRIPTS))
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    _, _, table = page.partition("## Variables of the scripts")
    assert "DEMO_STEPS" in named
    assert {name for name in named if f"`{name}`" not in table} == set()
    # And none that no script reads any more.
    rows = re.findall(r"^\| (`[A-Z_`, ]+) \|", table, flags=re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}
    assert {name for name in listed if not re.search(rf"\b{name}\b", SCRIPTS)} == set()


@pytest.mark.parametrize("name", ["license", "platform", "python", "status"])
def test_a_badge_says_what_the_package_says(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_classifier = dict(line.split(" :: ", 1) for line in project["classifiers"][:1])
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    systems = re.findall(r"Operating System :: .* :: (\w+)", "\n".join(project["classifiers"]))
    expected = {
        "license": project["license"],
        "platform": " | ".join(systems),
        "python": " | ".join(versions),
        "status": of_classifier["Development Status"].rpartition(" - ")[2].lower(),
    }
    drawing = (ROOT / "docs" / "badges" / f"{name}.svg").read_text()
    assert f"<title>{name}: {expected[name]}</title>" in drawing
    assert f"[![{name.capitalize()}: {expected[name]}](docs/badges/{name}.svg)]" in README


@pytest.mark.parametrize("document", PAGES)
def test_the_site_shows_lists_and_tables_as_they_are_meant(document: str) -> None:
    """Python-Markdown nests by four spaces, and fences no code inside of a list."""
    text = re.sub(r"^```.*?^```$", "", text_of(document), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^ {1,3}(?:- |\d+\. ).*", text, flags=re.MULTILINE) == []
    assert re.findall(r"^ +```.*", text, flags=re.MULTILINE) == []
    assert [row for row in text.splitlines() if row.startswith("|") and row[-1] != "|"] == []
