"""Instructions: a user's text behind the system messages of an environment.

An instruction is one text. What stands before the first line that begins with `player_N=` is for
every seat, and each such line begins what is for that seat alone:

    Weigh what you are told; the others may be wrong.
    player_1=You speak last. Be brief.

`EnvConfig.instruction` holds the text itself. The names of files, which HANABI_INSTRUCTION takes as
well, are read by `settings.instructions`; nothing here opens a file.
"""

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

from hanabi_grpo.errors import shown

MAX_CHARACTERS = 16_000
"""Longest instruction."""
INSTRUCTION_ALLOWED = (
    f"a text of up to {MAX_CHARACTERS} characters, or a file of it (.txt or .md), or a comma list "
    "of files; player_1= before a line or a file is for that seat alone"
)
_SEAT_LINE = re.compile(r"player_([0-9]{1,2})=(.*)", re.ASCII | re.DOTALL)
_FILE = re.compile(r"(?:player_([0-9]{1,2})=)?([^\s,=]+\.(?:txt|md))", re.ASCII)


class NamedFile(NamedTuple):
    """A file of an instruction."""

    player: int | None
    """The seat that it is for; None: every seat."""
    path: str


def file_names(text: str) -> tuple[NamedFile, ...]:
    """Return the files that a value names; () where it is the text itself.

    Example:
        file_names("team.md,player_1=last.txt")
        == (NamedFile(None, "team.md"), NamedFile(1, "last.txt"))
    """
    files = []
    for entry in text.split(","):
        match = _FILE.fullmatch(entry.strip())
        if match is None:
            return ()
        player = None if match[1] is None else int(match[1])
        files.append(NamedFile(player, match[2]))
    return tuple(files)


@functools.lru_cache(maxsize=256)
def split_instruction(text: str) -> Mapping[int | None, str]:
    """Return the text of each seat that has one; that of every seat has the key None.

    Raises:
        ValueError: It is too long, or names a seat twice.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"has {len(text)} characters; allowed are {MAX_CHARACTERS}")
    lines: dict[int | None, list[str]] = {None: []}
    seat: int | None = None
    for line in text.splitlines():
        match = _SEAT_LINE.fullmatch(line)
        if match is not None:
            seat = int(match[1])
            if seat in lines:
                raise ValueError(
                    f"player_{seat}= begins two lines; write {shown(line)} with the other one"
                )
            line = match[2]
        lines.setdefault(seat, []).append(line)
    texts = {}
    for player, own_lines in lines.items():
        own_text = "\n".join(own_lines).strip()
        if own_text:
            texts[player] = own_text
    return texts


def instruction_of_seats(text: str, num_players: int) -> str:
    """Return an instruction without the lines of seats that another game does not have.

    Args:
        text: The instruction.
        num_players: Seats of that game.
    """
    lines = []
    for player, own_text in split_instruction(text).items():
        if player is None:
            lines.append(own_text)
        elif player < num_players:
            lines.append(f"player_{player}={own_text}")
    return "\n".join(lines)
