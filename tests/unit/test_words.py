"""One word for one thing: pages, messages, help and docstrings say the field's words, not the ones that are retired."""

import ast
import re
from pathlib import Path

from doctor_machines import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "data" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
SCRIPTS = [path for path in sorted((ROOT / "tools").rglob("*")) if path.suffix in (".sh", ".py", ".env")]
SOURCES = sorted((ROOT / "src" / "hanabi_grpo").rglob("*.py"))
EVERYWHERE = {
    r"parity gate|\bthe gate\b": "logprob-mismatch check",
    r"\bdrills?\b": "fault injection",
    r"shared beginnings?": "shared prefixes, prefix sharing",
    r"without spread": "zero-variance groups",
    r"(game|deal|call)s?( that (was|were))? given up": "dropped, failed",
    r"passed over": "skipped",
    r"\btrainings\b|\ba training(?! (run|batch|suite|split|step|method|loop|server))\b": "a run",
    r"(thirteen|which|other|only) rooms?\b|a room imports": "package",
    r"\ba gone on with|is gone on with|not had yet|and said\.|the own (seat|server)": "a sentence of the usual kind",
    r"the pushes\b|(a|every|each|after a) push\b(?! (it|them|undone))": "weight sync",
}
"""Pattern to what is said instead. Names of settings and figures are no words: `time/push`, `player_0/parity`."""
FOR_USERS = {r"\b(lend|lends|lent|lending)\b": "upload; a frozen adapter"}
"""Beside those, on pages and in messages; in the code a client lends an adapter, and a session's are uploaded."""


def found(patterns: dict[str, str], text: str) -> list[str]:
    """Return the retired words of a text, each with what is said instead."""
    plain = " ".join(text.split())
    return [
        f"{hit[0]!r}: say {said}" for one, said in patterns.items() for hit in re.finditer(one, plain, re.IGNORECASE)
    ]


def messages(source: str) -> str:
    """Return the strings of a module that are no docstrings, a line each; … stands for a value."""
    tree = ast.parse(source)
    comments = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return "\n".join(str(node.value) for node in texts if id(node) not in comments and " " in str(node.value))


def test_no_page_message_help_or_docstring_has_a_retired_word() -> None:
    told: dict[str, list[str]] = {}
    for path in (*PAGES, *SCRIPTS, *SOURCES):
        text = path.read_text(encoding="utf-8")
        shown = messages(text) if path in SOURCES else text if path in PAGES else ""
        told[str(path.relative_to(ROOT))] = found(EVERYWHERE, text) + found(FOR_USERS, shown)
    assert {name: hits for name, hits in told.items() if hits} == {}


def test_a_retired_word_would_be_found() -> None:
    assert found(EVERYWHERE, "An interrupted one is gone\non with.") == [
        "'is gone on with': say a sentence of the usual kind"
    ]
    assert found(EVERYWHERE, "The parity gate closes; a training run is made; `time/push`") == [
        "'parity gate': say logprob-mismatch check"
    ]
    assert messages('"""What was lent."""\nraise ValueError("lend it again")') == "lend it again"
    assert (Path(__file__).parents[2] / "tools" / "fault_injection.sh").is_file()
