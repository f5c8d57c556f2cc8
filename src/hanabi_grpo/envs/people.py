"""What a person in a seat is shown: plain English, a drawn table, and the moves as a menu.

A model reads `Game.message`, which for a tiny model is a short code. A person reads a `Scene`, made
from the same knowledge: `conformance.check` verifies for both that they do not depend on hidden
values.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_FORMAT = re.compile(r"\s*End your reply\b(?:[^.]*\.|.*\Z)", re.DOTALL)
"""The sentence of a system message that specifies the format of a model's reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One action that a person may choose."""

    reply: str
    """The reply that selects it, one of `Game.legal`."""
    label: str
    """What a menu shows, without the words in `group`."""
    group: str = ""
    """What all choices on one line of the menu share, e.g. "Hint player_1"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a person in a seat may know, in readable form."""

    table: str
    """The position, in lines of at most 80 characters if the game allows it."""
    news: tuple[str, ...] = ()
    """What happened since the person's last action, one sentence per event."""
    legend: str = ""
    """How to read the table."""
    choices: tuple[Choice, ...] | None = ()
    """The legal actions; None if any text is legal, () when it is not the person's turn."""
    prefix: str = ""
    """Prefix for a line that does not name an action on its own, e.g. "Answer: "."""
    drawn: Mapping[str, Any] | None = None
    """The position as JSON for a page that draws it; `kind` selects how. None: text only."""


def plain_choices(legal: Sequence[str] | None) -> tuple[Choice, ...] | None:
    """Return the choices for actions whose texts need no explanation."""
    if legal is None:
        return None
    return tuple(Choice(reply=text, label=text) for text in legal)


def without_format(system: str) -> str:
    r"""Return a system message without the sentence on how a model's reply ends.

    Example:
        without_format("Walk to G.\nEnd your reply with Left or Up.") == "Walk to G."
    """
    return _FORMAT.sub("", system).strip()
