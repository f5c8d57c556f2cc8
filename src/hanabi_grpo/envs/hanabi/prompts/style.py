"""The two ways to word an observation."""

from enum import StrEnum


class ObservationStyle(StrEnum):
    """How a position is put into words."""

    FULL = "full"
    """Readable sentences, for instruction-tuned models."""
    COMPACT = "compact"
    """One line of words from a small fixed vocabulary, for tiny models."""
