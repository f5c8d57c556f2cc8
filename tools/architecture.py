#!/usr/bin/env python3
"""Draw docs/architecture.svg: the packages of src/hanabi_grpo, and who imports whom.

python tools/architecture.py writes it anew; tests/unit/test_docs.py holds it against the code.
"""

import ast
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "hanabi_grpo"
DRAWING = ROOT / "docs" / "architecture.svg"
SENTENCES = {
    "commands": "one file a command",
    "report": "charts, pages, screens",
    "server": "terminal 1: plays the games,; serves the adapters (vLLM)",
    "training": "terminal 2: GRPO (ms-swift),; an adapter per player",
    "sft": "learning from recorded games",
    "evaluation": "matches, cross-play",
    "agents": "script, model, URL, person:; what answers for a seat",
    "client": "requests to rollout servers",
    "tracking": "W&B, the Hub",
    "rollout": "the loop over a game,; the wire",
    "runs": "run folders, checkpoints",
    "settings": "every variable, its default",
    "envs": "games, rules, prompts, bots",
}
WIDTH, HEIGHT, BOX, GAP, TOP = 960, 66, 222, 40, 56
"""Of the drawing, a box, between rows, and above the first one."""
LOW_ROOM = "hanabi_grpo.training.estimators"
"""Imports nothing but types and errors, so that the settings may import it: not drawn."""
COLORS = {"server": "#1f5fa8", "training": "#b5651d"}


def imports() -> dict[str, set[str]]:
    """Return the packages that the files of each package import."""
    found: dict[str, set[str]] = {package: set() for package in SENTENCES}
    for package in SENTENCES:
        for path in (PACKAGE / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Import | ast.ImportFrom):
                    continue
                names = [alias.name for alias in node.names]
                if isinstance(node, ast.ImportFrom):
                    names = [f"{node.module}.{name}" for name in names]
                names = [name for name in names if not name.startswith(LOW_ROOM)]
                packages = {name.split(".")[1] for name in names if name.startswith("hanabi_grpo.")}
                found[package] |= packages & set(SENTENCES) - {package}
    return found


def below(packages: dict[str, set[str]], package: str) -> set[str]:
    """Return all that a package imports, directly or by others."""
    return packages[package].union(*(below(packages, other) for other in packages[package]))


def draw() -> str:
    """Return the drawing: each package above what it imports, with a line where no other package
    lies between.
    """
    packages = imports()
    lines = {
        package: packages[package].difference(
            *(below(packages, other) for other in packages[package])
        )
        for package in packages
    }

    def row_of(package: str) -> int:
        return 1 + max(
            (row_of(other) for other in SENTENCES if package in packages[other]), default=-1
        )

    last = max(map(row_of, packages))
    rows = [[package for package in SENTENCES if row_of(package) == row] for row in range(last + 1)]
    places = {}
    for number, row in enumerate(rows):
        left = (WIDTH - len(row) * (BOX + 14) + 14) // 2
        places |= {
            package: (left + at * (BOX + 14), TOP + number * (HEIGHT + GAP))
            for at, package in enumerate(row)
        }
    height = TOP + len(rows) * (HEIGHT + GAP)
    style = (
        "text{font:12px "
        "system-ui,sans-serif;text-anchor:middle;fill:#1c1c1e}.name{font-weight:700;font-size:15px}"
        "path{fill:none;stroke-width:1.6}rect{fill:#fff;stroke-width:1.5}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>The packages of hanabi_grpo</title><style>{style}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="10" style="fill:#f6f5f2"/>',
        f'<text x="{WIDTH // 2}" y="32">A line leads from a package down to one that it imports. '
        "What is imported by way of another package has no line of its own.</text>",
    ]
    for package in SENTENCES:
        for other in sorted(lines[package]):
            (left, top), (to, under) = places[package], places[other]
            start, end, bend = (
                (left + BOX // 2, top + HEIGHT),
                (to + BOX // 2, under),
                (under - top - HEIGHT) // 2,
            )
            curve = (
                f"M{start[0]} {start[1]}c0 {bend} {end[0] - start[0]} {bend} "
                f"{end[0] - start[0]} {end[1] - start[1]}"
            )
            parts.append(f'<path d="{curve}" stroke="{COLORS.get(package, "#8b8d94")}"/>')
    for package, (left, top) in places.items():
        middle, edge = left + BOX // 2, COLORS.get(package, "#3a3d45")
        parts.append(
            f'<rect x="{left}" y="{top}" width="{BOX}" height="{HEIGHT}" rx="8" stroke="{edge}"/>'
            f'<text x="{middle}" y="{top + 21}" class="name">{package}/</text>'
        )
        for number, words in enumerate(SENTENCES[package].split("; ")):
            parts.append(f'<text x="{middle}" y="{top + 40 + 15 * number}">{escape(words)}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    DRAWING.write_text(draw(), encoding="utf-8")
