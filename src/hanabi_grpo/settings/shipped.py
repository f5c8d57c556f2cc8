"""What comes with this package: in a checkout folders of it, else folders of the wheel."""

from pathlib import Path

TINY_MODEL = "data/tiny-model"
"""Where a checkout has the tiny model, seen from its root."""
TINY_MODEL_COUNTED = "data/tiny-model-counted"
"""Where a checkout has the tiny model of the demo, whose prompts count the possible cards."""
ZOO = "data/zoo"
"""Where a checkout has the trained teams, seen from its root."""
_IN_WHEEL = Path(__file__).parents[1] / "shipped"
"""Where an installed package has them, by the last part of their paths; not in a checkout."""


def shipped_folder(in_checkout: str) -> str:
    """Return a shipped folder: the checkout's where a command runs in one, else the wheel's.

    Args:
        in_checkout: `TINY_MODEL`, `TINY_MODEL_COUNTED` or `ZOO`.
    """
    in_wheel = _IN_WHEEL / Path(in_checkout).name
    if not Path(in_checkout).is_dir() and in_wheel.is_dir():
        return str(in_wheel)
    return in_checkout


def shipped_model() -> str:
    """Return the folder of the tiny model of Hanabi's default board, as MODEL names it."""
    return shipped_folder(TINY_MODEL)
