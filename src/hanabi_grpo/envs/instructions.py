"""Instructions: a user's text appended to the system messages of an environment.

An instruction is one text. The part before the first line that starts with `player_N=` is for
every seat; each of those lines starts the part for that seat only:

    Weigh what you are told; the others may be wrong.
    player_1=You speak last. Be brief.

`EnvConfig.instruction` holds the text itself. HANABI_INSTRUCTION also accepts file names, which
`settings.instructions` reads; nothing here opens a file.
"""

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

from hanabi_grpo.errors import shown

MAX_CHARACTERS = 16_000
"""Maximum length of an instruction."""
INSTRUCTION_ALLOWED = (
    f"a text of up to {MAX_CHARACTERS} characters, a file with that text (.txt or .md), or a comma "
    "list of files; player_1= before a line or a file makes it for that seat only"
)
_SEAT_LINE = re.compile(r"player_([0-9]{1,2})=(.*)", re.ASCII | re.DOTALL)
_FILE = re.compile(r"(?:player_([0-9]{1,2})=)?([^\s,=]+\.(?:txt|md))", re.ASCII)


class NamedFile(NamedTuple):
    """A file of an instruction."""

    player: int | None
    """The seat that the file is for; None: every seat."""
    path: str


def file_names(text: str) -> tuple[NamedFile, ...]:
    """Return the files named by a value; () if the value is the text itself.

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
    """Return the text for each seat that has one; the text for every seat has the key None.

    Raises:
        ValueError: The instruction is too long, or names a seat twice.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"has {len(text)} characters; at most {MAX_CHARACTERS} are allowed")
    lines: dict[int | None, list[str]] = {None: []}
    seat: int | None = None
    for line in text.splitlines():
        match = _SEAT_LINE.fullmatch(line)
        if match is not None:
            seat = int(match[1])
            if seat in lines:
                raise ValueError(
                    f"player_{seat}= starts two lines; merge {shown(line)} into the other one"
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
    """Return an instruction without the lines for seats that another game does not have.

    Args:
        text: The instruction.
        num_players: Number of seats in that game.
    """
    lines = []
    for player, own_text in split_instruction(text).items():
        if player is None:
            lines.append(own_text)
        elif player < num_players:
            lines.append(f"player_{player}={own_text}")
    return "\n".join(lines)
