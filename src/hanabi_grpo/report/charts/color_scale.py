"""From a score to a colour and to the colour of readable text on it; one scale for picture and page."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

# viridis (S. van der Walt, N. Smith; CC0) at 17 even steps: even in perceived lightness, safe for colour-blind readers.
_STOPS = (
    "#440154", "#48186a", "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e", "#21918c",
    "#1fa088", "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219", "#fde725",
)  # fmt: skip
DARK, LIGHT = "#000000", "#ffffff"
"""Of the two the better one has a contrast of at least 4.5 on any colour, which WCAG asks for."""
_MIN_SHARE = 0.25
"""Of the possible scores that a scale spans at least, so that noise among equal cells does not look like a pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColorScale:
    """Scores from `low` (dark) to `high` (bright).

    Example:
        ColorScale(low=0.0, high=4.0).color(4.0) == "#fde725"
    """

    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float], maximum: float) -> "ColorScale":
        """Return the scale of some scores: their range, or a quarter of 0 to `maximum` around it where that is more.

        Args:
            values: Scores; those that are not finite are passed over.
            maximum: Most points that the board allows.
        """
        known = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(known), max(known)
        if high - low >= _MIN_SHARE * maximum:
            return cls(low=low, high=high)
        width = _MIN_SHARE * maximum
        start = min(max((low + high - width) / 2, 0.0), max(maximum - width, 0.0))
        return cls(low=start, high=start + width)

    def position(self, value: float) -> float:
        """Return where a value lies between `low` (0) and `high` (1); values outside are moved to the nearer end."""
        span = self.high - self.low
        return min(max((value - self.low) / span, 0.0), 1.0) if span > 0 else 0.5

    def color(self, value: float) -> str:
        """Return the colour of a value as "#rrggbb"."""
        return color_at(self.position(value))

    def ink(self, value: float) -> str:
        """Return the colour of text on the colour of a value: the one of `DARK` and `LIGHT` with more contrast."""
        return ink_on(self.color(value))


def color_at(position: float) -> str:
    """Return the colour at a position from 0 (dark) to 1 (bright)."""
    place = min(max(position, 0.0), 1.0) * (len(_STOPS) - 1)
    first = min(int(place), len(_STOPS) - 2)
    share = place - first
    pairs = zip(_channels(_STOPS[first]), _channels(_STOPS[first + 1]), strict=True)
    return "#" + "".join(f"{round(255 * (a + share * (b - a))):02x}" for a, b in pairs)


def ink_on(color: str) -> str:
    """Return the colour of text on a background "#rrggbb"."""
    return max((DARK, LIGHT), key=lambda ink: contrast(color, ink))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21, as WCAG 2.1 defines it."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in _channels(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(color: str) -> tuple[float, float, float]:
    red, green, blue = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return red, green, blue
