"""Questions to a player about what it cannot see, e.g. its own cards in Hanabi.

They measure beliefs (`posterior`) and are no part of a game: a player that is asked never learns
whether it was right.
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
    """What is asked for, in one word."""
    text: str
    """The question as it stands behind the player's message, with what separates the two."""
    answers: tuple[str, ...]
    """Every answer that the game knows, whether or not it is possible now."""
