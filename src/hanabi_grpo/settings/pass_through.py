"""Options of ms-swift and vLLM that are not passed through, because they break a guarantee.

`refused_options.md` beside this file lists them and what to use instead, for people and for this
code. All other options are passed through: those of the trainer's terminal to ms-swift, those of
the server's terminal to vLLM.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple

from hanabi_grpo.errors import SettingsError

Terminal = Literal["server", "trainer"]
PAGE = "docs/pass-through.md"
"""The page for people."""
TABLES = Path(__file__).with_name("refused_options.md")
"""The tables that this code reads."""
SOFTWARE: dict[Terminal, str] = {"trainer": "ms-swift", "server": "vLLM"}
"""The software that receives each terminal's options; also the heading of its table."""
_ROW = "| `"
"""Begins a row of a table that names options."""
_NEGATIVE_NUMBER = re.compile(r"-\.?\d")
"""Matches the beginning of a negative number, which is a value and no option."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Options that are refused for one reason: a row of a table."""

    options: tuple[str, ...]
    """Names with underscores; a star at the end stands for the rest of a name."""
    why: str
    """The guarantee, as a part of a sentence."""
    instead: str
    """The setting, or several with commas, or a command; empty: there is none."""


class OptionTables(NamedTuple):
    """What `refused_options.md` says about one terminal."""

    refusals: tuple[Refusal, ...]
    passed: tuple[str, ...]
    """Options that are passed through although their name is a prefix of a refused one."""


@functools.cache
def option_tables(terminal: Terminal) -> OptionTables:
    """Return a terminal's refusals, and the options that are passed through anyway."""
    text = TABLES.read_text(encoding="utf-8")
    section = text.partition(f"## {SOFTWARE[terminal]}\n")[2].partition("\n## ")[0]
    refusals = []
    prose = ""
    for line in section.splitlines():
        if line.startswith(_ROW):
            options, why, instead = line.strip("|").split(" | ")
            instead = instead.replace("`", "").strip()
            refusals.append(Refusal(_names(options), why, instead))
        elif not line.startswith("|"):
            # Names in the text below the table are those that are passed through.
            prose += line
    return OptionTables(refusals=tuple(refusals), passed=_names(prose))


def check_options(terminal: Terminal, extra_args: Sequence[str]) -> None:
    """Refuse options on a terminal's command line that would break a guarantee.

    Options may be written in any form that their software accepts: with dashes for underscores, `=`
    before the value, `no-` before a switch, abbreviated.

    Args:
        terminal: Whose command line it is.
        extra_args: The arguments after our own options.

    Raises:
        SettingsError: An option is refused; the message has a sentence for each.
    """
    problems = []
    for argument in extra_args:
        if not argument.startswith("-"):
            continue
        typed = argument.partition("=")[0]
        name = typed.lstrip("-").partition(".")[0].replace("-", "_").removeprefix("no_")
        refusal = _find_refusal(terminal, name)
        if refusal is not None:
            remedy = f"use {refusal.instead}" if refusal.instead else "leave it out"
            problems.append(
                f"{typed} is not passed through to {SOFTWARE[terminal]}: {refusal.why}; {remedy}. "
                f"See {PAGE}."
            )
    if problems:
        raise SettingsError("\n".join(problems))


def option_values(extra_args: Sequence[str]) -> dict[str, str]:
    """Return the value of each option on a command line, however it is spelled.

    Args:
        extra_args: The arguments after our own options.

    Returns:
        Values by option, with two dashes and underscores; "" for a switch. Of an option that is
        given twice, the last value counts. Arguments before the first option have the key "".

    Example:
        option_values(["--adam-beta2=0.99", "--disable_tqdm"]) == {
            "--adam_beta2": "0.99",
            "--disable_tqdm": "",
        }
    """
    values: dict[str, list[str]] = {}
    name = ""
    for argument in extra_args:
        if argument.startswith("-") and not _NEGATIVE_NUMBER.match(argument):
            typed, has_value, value = argument.partition("=")
            name = f"--{typed.lstrip('-').replace('-', '_')}"
            values[name] = [value] if has_value else []
        else:
            values.setdefault(name, []).append(argument)
    return {option: " ".join(words) for option, words in values.items()}


def _find_refusal(terminal: Terminal, name: str) -> Refusal | None:
    """Return why an option is refused; None if it is passed through.

    Args:
        terminal: Whose command line it is on.
        name: The option's name with underscores, perhaps abbreviated.
    """
    tables = option_tables(terminal)
    if not name or name in tables.passed:
        return None
    for refusal in tables.refusals:
        if any(fnmatchcase(name, option) for option in refusal.options):
            return refusal
    # argparse takes the beginning of an option for an abbreviation.
    for refusal in tables.refusals:
        if any(option.rstrip("*").startswith(name) for option in refusal.options):
            return refusal
    return None


def _names(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", text))
