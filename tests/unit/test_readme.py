"""What the documents say, held against the code: tables, commands, variables, paths."""

import itertools
import re
import shlex
from pathlib import Path

import pytest

from hanabi_grpo.cli import all_commands
from hanabi_grpo.envs.hanabi.rules import make_spec
from hanabi_grpo.envs.hanabi.rules.presets import PRESETS
from hanabi_grpo.settings import PASSED_THROUGH, batch_plan, environment_markdown, load_settings, variables

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOWHERE = Path("/nonexistent/.env")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/README.md")
SCRIPTS = "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("tools/**/*.sh")))
FOLDERS = ("tools", "src", "data", "tests", "docs")
ROOM = ROOT / "src" / "hanabi_grpo"
ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]+)=(\S*)")


def text_of(document: str) -> str:
    """Return a document without its comments, which readers do not see."""
    return re.sub(r"<!--.*?-->", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)


def commands_of(document: str) -> list[list[str]]:
    """Return the words of every command in the document's shell blocks and of every `hanabi-grpo …` in its prose."""
    text = text_of(document)
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`((?:\.venv/bin/)?hanabi-grpo [^`]+|bash tools/[^`]+)`", text)
    words = [shlex.split(part, comments=True) for line in lines for part in line.split("&&")]
    return [found for found in words if found]


COMMANDS = [pytest.param(words, id=" ".join(words)) for document in DOCUMENTS for words in commands_of(document)]


def test_the_environment_tables_are_what_the_settings_say() -> None:
    [between] = re.findall(r"<!-- environment:begin -->\n(.*?)<!-- environment:end -->", README, flags=re.DOTALL)
    assert between == environment_markdown(), "put the output of hanabi-grpo settings --markdown between the marks"


def test_the_marks_of_the_demo_table_are_there_once_and_in_order() -> None:
    assert re.findall(r"<!-- demo:(\w+) -->", README) == ["begin", "end"]


@pytest.mark.parametrize("name", PRESETS)
def test_every_board_is_listed_with_its_parameters(name: str) -> None:
    board = PRESETS[name]
    hands = ", ".join(f"{players}: {hand}" for players, hand in board.hand_sizes.items())
    row = f"| `{name}` | {board.num_colors} × {board.num_ranks} | {board.max_hints} | {board.max_lives} | {hands} | "
    assert f"\n{row}" in README


def test_the_rule_of_few_decks_is_told_with_its_boards() -> None:
    few = [f"`{name}`" for name in PRESETS if make_spec(name).deals_all_decks]
    flat = " ".join(README.split())
    assert f"fewer than a million different decks ({', '.join(few)})" in flat
    assert f"`laptop` has {make_spec('laptop').num_decks}" in flat


def test_commands_are_found_in_blocks_and_in_prose() -> None:
    found, out = commands_of("README.md"), "outputs/my-run/before.json"
    assert ["bash", "tools/demo.sh"] in found
    assert [".venv/bin/hanabi-grpo", "settings", "--markdown"] in found
    assert [".venv/bin/hanabi-grpo", "evaluate", "base", "--deals", "1000", "--out", out] in found


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_exists_and_its_settings_are_accepted(words: list[str]) -> None:
    given = dict(
        match.groups() for match in map(ASSIGNMENT.fullmatch, itertools.takewhile(ASSIGNMENT.fullmatch, words)) if match
    )
    ours = {variable.env for variable in variables()}
    own = {name: value for name, value in given.items() if name in ours}
    batch_plan(load_settings(own, NOWHERE).settings)
    program, *rest = words[len(given) :]
    if program == "bash":
        assert (ROOT / rest[0]).is_file()
    elif program.removeprefix(".venv/bin/") == "hanabi-grpo":
        command = all_commands()[rest[0]]
        command = command.commands[rest[1]] if rest[0] == "hanab-live" else command
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= options
    else:
        assert words[:2] == ["uvx", "pre-commit"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_variable_that_is_given_a_value_or_named_as_ours_exists(document: str) -> None:
    text = text_of(document)
    named = set(re.findall(r"\b([A-Z][A-Z0-9_]+)=", text)) | set(re.findall(r"\b((?:HANABI|DEMO)_[A-Z0-9_]+)\b", text))
    known = {variable.env for variable in variables()} | set(PASSED_THROUGH)
    unknown = {name for name in named - known if not re.search(rf"\b{name}\b", SCRIPTS)}
    assert unknown == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_that_is_named_exists(document: str) -> None:
    text = text_of(document)
    named = set(re.findall(rf"(?<![\w./-])((?:{'|'.join(FOLDERS)})/[\w./-]*[\w/])", text))
    named |= {name for name in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in name}
    missing = sorted(name for name in named if not (ROOT / name).exists())
    assert missing == []


def test_every_room_that_contributing_names_exists_and_every_module_has_a_room() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("| room |")[1].split("\n\n")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    rooms = {name.rstrip("/") for cell in first_cells for name in re.findall(r"`([\w/.]+)`", cell)}
    modules = {path.name for path in ROOM.iterdir() if not path.name.startswith("__")}
    assert rooms - {"tools"} <= modules
    assert modules - rooms == set()
