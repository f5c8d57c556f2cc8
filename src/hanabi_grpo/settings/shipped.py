"""The tiny model that comes with this package: in a checkout a folder of it, else in the wheel."""

from pathlib import Path

TINY_MODEL = "data/tiny-model"
"""Where a checkout has it, seen from its root."""
_IN_WHEEL = Path(__file__).parents[1] / "shipped" / "tiny-model"
"""Where an installed package has it; there is no such folder in a checkout."""


def shipped_model() -> str:
    """Return the folder of the tiny model of Hanabi's default board, as MODEL names it.

    It is the checkout's where a command runs in one, else the installed package's.
    """
    if not Path(TINY_MODEL).is_dir() and _IN_WHEEL.is_dir():
        return str(_IN_WHEEL)
    return TINY_MODEL
