"""Data that comes with this package: in folders of the checkout, or else of the wheel."""

from pathlib import Path

TINY_MODEL = "data/tiny-model"
"""The tiny model in a checkout, relative to its root."""
TINY_MODEL_COUNTED = "data/tiny-model-counted"
"""The tiny model of the demo in a checkout; its prompts count the possible cards."""
ZOO = "data/zoo"
"""The trained teams in a checkout, relative to its root."""
_IN_WHEEL = Path(__file__).parents[1] / "shipped"
"""Their folder in an installed package, by the last part of their paths; not in a checkout."""


def shipped_folder(in_checkout: str) -> str:
    """Return a shipped folder: the checkout's if a command runs in one, else the wheel's.

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
