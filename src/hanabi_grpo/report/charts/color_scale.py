"""From a score to a colour of viridis and to the colour of readable text on it; one scale for picture and page."""

NUM_COLORS = 33
"""Classes of colours on a page; finer steps than the eye tells apart in a table."""
DARK, LIGHT = "#000000", "#ffffff"
"""Of the two the better one has a contrast of at least 4.5 on any colour, which WCAG asks for."""


def color_at(position: float) -> str:
    """Return the colour "#rrggbb" at a position from 0 (dark) to 1 (bright); others are moved to the nearer end."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps["viridis"](min(max(position, 0.0), 1.0)))


def ink_on(color: str) -> str:
    """Return the colour of text on a background "#rrggbb": the one of `DARK` and `LIGHT` with more contrast."""
    return max((DARK, LIGHT), key=lambda ink: contrast(color, ink))


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21, as WCAG 2.1 defines it."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    parts = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
