"""Options of ms-swift (terminal 2) and vLLM (terminal 1) that are not handed on, because they break
a guarantee.

Which they are, and what to use instead, is written in `refused_options.md` beside this file, for
people and for this code. Everything that it does not name is handed on."""

import functools
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple

from hanabi_grpo.errors import SettingsError

Terminal = Literal["server", "trainer"]
PAGE = "docs/pass-through.md"
TABLES = Path(__file__).with_name("refused_options.md")
SOFTWARE: dict[Terminal, str] = {"trainer": "ms-swift", "server": "vLLM"}


class Refusal(NamedTuple):
    """Options that are refused for one reason: a row of a table."""

    options: tuple[str, ...]
    """Names with underscores; a star at the end stands for the rest of a name."""
    why: str
    """The guarantee, as a part of a sentence."""
    instead: str
    """The setting, or several with commas, or a command; empty: there is none."""


@functools.cache
def option_tables(terminal: Terminal) -> tuple[tuple[Refusal, ...], tuple[str, ...]]:
    """Return a terminal's refusals, and options that are handed on though their name begins that of
    a refused one.
    """
    text = (
        TABLES.read_text(encoding="utf-8")
        .partition(f"## {SOFTWARE[terminal]}\n")[2]
        .partition("\n## ")[0]
    )
    rows, passed = [], ""
    for line in text.splitlines():
        if line.startswith("| `"):
            options, why, instead = line.strip("|").split(" | ")
            rows.append(Refusal(_names(options), why, instead.replace("`", "").strip()))
        elif not line.startswith("|"):
            passed += line
    return tuple(rows), _names(passed)


def check_options(terminal: Terminal, extra_args: Sequence[str]) -> None:
    """Refuse options on a terminal's command line that would break a guarantee.

    Options may be written as their software takes them: with dashes for underscores, `=` before the
    value, `no-` before a switch, cut short. The SettingsError has a sentence for each of them."""
    problems = []
    for word in extra_args:
        if word.startswith("-"):
            typed = word.partition("=")[0]
            row = _refusal(
                terminal, typed.lstrip("-").partition(".")[0].replace("-", "_").removeprefix("no_")
            )
            if row is not None:
                way = f"use {row.instead}" if row.instead else "leave it out"
                problems.append(
                    f"{typed} is not handed on to {SOFTWARE[terminal]}: {row.why}; {way}. See "
                    f"{PAGE}."
                )
    if problems:
        raise SettingsError("\n".join(problems))


def _refusal(terminal: Terminal, name: str) -> Refusal | None:
    rows, passed = option_tables(terminal)
    if not name or name in passed:
        return None
    named = [row for row in rows if any(fnmatchcase(name, one) for one in row.options)]
    # argparse takes the beginning of an option for an abbreviation.
    begun = [row for row in rows if any(one.rstrip("*").startswith(name) for one in row.options)]
    return next(iter(named + begun), None)


def _names(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", text))
