"""Questions to a player about what it cannot see, e.g. its own cards in Hanabi.

They measure beliefs (`posterior`) and are not part of the game: a player never learns whether its
answer was right.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question and its possible answers.

    Both follow from what the player knows, so that asking tells it nothing.

    Example:
        Question(name="slot0", text=" me slot0", answers=("R1", "R2", "Y1", "Y2"))
    """

    name: str
    """One word for what is asked."""
    text: str
    """The text appended to the player's message, including the separator."""
    answers: tuple[str, ...]
    """Every answer that the game knows, even if it is currently impossible."""
