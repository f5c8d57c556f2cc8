#!/usr/bin/env python3
"""Draw docs/architecture.svg: the packages of src/hanabi_grpo and their imports.

`python tools/architecture.py` redraws it; tests/unit/test_docs.py compares it with the code.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "hanabi_grpo"
DRAWING = ROOT / "docs" / "architecture.svg"
SENTENCES = {
    "commands": ("one file per command",),
    "api": ("import hanabi_grpo as hg",),
    "report": ("charts, pages, screens",),
    "server": ("terminal 1: plays the games,", "serves the adapters (vLLM)"),
    "training": ("terminal 2: GRPO (ms-swift),", "an adapter per player"),
    "sft": ("learning from recorded games",),
    "evaluation": ("matches, cross-play",),
    "agents": ("script, model, URL, person:", "what plays a seat"),
    "client": ("requests to rollout servers",),
    "tracking": ("W&B, the Hub",),
    "rollout": ("the loop over a game,", "the wire format"),
    "runs": ("run folders, checkpoints",),
    "settings": ("variables and their defaults",),
    "envs": ("games, rules, prompts, bots",),
}
"""The lines of text in each package's box, in the order in which boxes of a row are drawn."""
LOW_ROOM = "hanabi_grpo.training.estimators"
"""Imports only types and errors, so that the settings may import it; not drawn."""

# Sizes in units of the drawing.
WIDTH = 960
BOX_WIDTH = 222
BOX_HEIGHT = 66
BOX_GAP = 14
"""Between the boxes of a row."""
ROW_GAP = 40
TOP = 56
"""Above the first row."""
LINE_HEIGHT = 15
NAME_BASELINE = 21
"""From a box's top to the baseline of its name."""
TEXT_BASELINE = 40
"""From a box's top to the baseline of its first line of text."""

STYLE = (
    "text{font:12px system-ui,sans-serif;text-anchor:middle;fill:#1c1c1e}"
    ".name{font-weight:700;font-size:15px}"
    "path{fill:none;stroke-width:1.6}"
    "rect{fill:#fff;stroke-width:1.5}"
)
CAPTION = (
    "A line leads from a package down to one that it imports. "
    "Imports that are also reached through another package are not drawn."
)
COLORS = {"server": "#1f5fa8", "training": "#b5651d"}
"""Colors of the two processes; other packages are gray."""
EDGE_COLOR = "#3a3d45"
LINE_COLOR = "#8b8d94"

Packages = dict[str, set[str]]
"""Each package's imported packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corner:
    """Where a box is: its upper left corner."""

    left: int
    """Distance from the drawing's left edge."""
    top: int
    """Distance from the drawing's top."""


def imports() -> Packages:
    """Return the packages that the files of each package import."""
    packages: Packages = {}
    for package in SENTENCES:
        imported: set[str] = set()
        for path in (PACKAGE / package).rglob("*.py"):
            for name in _imported_names(ast.parse(path.read_text(encoding="utf-8"))):
                if name.startswith("hanabi_grpo.") and not name.startswith(LOW_ROOM):
                    imported.add(name.split(".")[1])
        packages[package] = imported & SENTENCES.keys() - {package}
    return packages


def _imported_names(tree: ast.Module) -> Iterator[str]:
    """Yield the full name of everything that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def below(packages: Packages, package: str) -> set[str]:
    """Return everything that a package imports, directly or indirectly."""
    reachable = set(packages[package])
    for other in packages[package]:
        reachable |= below(packages, other)
    return reachable


def direct_lines(packages: Packages) -> Packages:
    """Return the imports that are drawn: those not also reached through another package."""
    lines = {}
    for package, imported in packages.items():
        by_way_of_others: set[str] = set()
        for other in imported:
            by_way_of_others |= below(packages, other)
        lines[package] = imported - by_way_of_others
    return lines


def arrange(packages: Packages) -> list[list[str]]:
    """Return the packages of each row: each package is below all that import it."""

    def row_of(package: str) -> int:
        importers = [other for other in SENTENCES if package in packages[other]]
        return 1 + max((row_of(importer) for importer in importers), default=-1)

    last_row = max(row_of(package) for package in packages)
    rows: list[list[str]] = [[] for _ in range(last_row + 1)]
    for package in SENTENCES:
        rows[row_of(package)].append(package)
    return rows


def place(rows: list[list[str]]) -> dict[str, Corner]:
    """Return where each package's box is; the boxes of a row are centered."""
    corners = {}
    step = BOX_WIDTH + BOX_GAP
    for number, row in enumerate(rows):
        left = (WIDTH - len(row) * step + BOX_GAP) // 2
        top = TOP + number * (BOX_HEIGHT + ROW_GAP)
        for column, package in enumerate(row):
            corners[package] = Corner(left=left + column * step, top=top)
    return corners


def draw() -> str:
    """Return the drawing: each package is above what it imports, with lines between them."""
    packages = imports()
    lines = direct_lines(packages)
    rows = arrange(packages)
    corners = place(rows)
    height = TOP + len(rows) * (BOX_HEIGHT + ROW_GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>The packages of hanabi_grpo</title><style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="10" style="fill:#f6f5f2"/>',
        f'<text x="{WIDTH // 2}" y="32">{CAPTION}</text>',
    ]
    for package in SENTENCES:
        color = COLORS.get(package, LINE_COLOR)
        for other in sorted(lines[package]):
            parts.append(_line(corners[package], corners[other], color))
    for package, corner in corners.items():
        parts += _box(package, corner)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _line(upper: Corner, lower: Corner, color: str) -> str:
    """Return a curve from the lower edge of one box to the upper edge of another."""
    start_x = upper.left + BOX_WIDTH // 2
    start_y = upper.top + BOX_HEIGHT
    width = lower.left - upper.left
    height = lower.top - start_y
    bend = height // 2
    curve = f"M{start_x} {start_y}c0 {bend} {width} {bend} {width} {height}"
    return f'<path d="{curve}" stroke="{color}"/>'


def _box(package: str, corner: Corner) -> Iterator[str]:
    """Yield a package's box, its name and its lines of text."""
    middle = corner.left + BOX_WIDTH // 2
    edge = COLORS.get(package, EDGE_COLOR)
    box = (
        f'<rect x="{corner.left}" y="{corner.top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
        f'rx="8" stroke="{edge}"/>'
    )
    name = f'<text x="{middle}" y="{corner.top + NAME_BASELINE}" class="name">{package}/</text>'
    yield box + name
    for number, text in enumerate(SENTENCES[package]):
        baseline = corner.top + TEXT_BASELINE + LINE_HEIGHT * number
        yield f'<text x="{middle}" y="{baseline}">{escape(text)}</text>'


if __name__ == "__main__":
    DRAWING.write_text(draw(), encoding="utf-8")
