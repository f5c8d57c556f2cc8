#!/usr/bin/env python3
"""Draw docs/architecture.svg: the rooms of src/hanabi_grpo, and who imports whom.

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
    "client": "requests to rollout servers",
    "tracking": "W&B, the Hub",
    "rollout": "the loop over a game,; conversations",
    "runs": "run folders, checkpoints",
    "settings": "every variable, its default",
    "envs": "games, rules, prompts, bots",
}
WIDTH, HEIGHT, BOX, GAP, TOP = 960, 66, 222, 40, 56
"""Of the drawing, a box, between rows, and above the first one."""
COLORS = {"server": "#1f5fa8", "training": "#b5651d"}


def imports() -> dict[str, set[str]]:
    """Return the rooms that the files of each room import."""
    found: dict[str, set[str]] = {room: set() for room in SENTENCES}
    for room in SENTENCES:
        for path in (PACKAGE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Import | ast.ImportFrom):
                    continue
                names = [alias.name for alias in node.names]
                if isinstance(node, ast.ImportFrom):
                    names = [f"{node.module}.{name}" for name in names]
                rooms = {name.split(".")[1] for name in names if name.startswith("hanabi_grpo.")}
                found[room] |= rooms & set(SENTENCES) - {room}
    return found


def below(rooms: dict[str, set[str]], room: str) -> set[str]:
    """Return all that a room imports, directly or by others."""
    return rooms[room].union(*(below(rooms, other) for other in rooms[room]))


def draw() -> str:
    """Return the drawing: each room above what it imports, with a line where no other room lies between."""
    rooms = imports()
    lines = {room: rooms[room].difference(*(below(rooms, other) for other in rooms[room])) for room in rooms}

    def row_of(room: str) -> int:
        return 1 + max((row_of(other) for other in SENTENCES if room in rooms[other]), default=-1)

    last = max(map(row_of, rooms))
    rows = [[room for room in SENTENCES if row_of(room) == row] for row in range(last + 1)]
    places = {}
    for number, row in enumerate(rows):
        left = (WIDTH - len(row) * (BOX + 14) + 14) // 2
        places |= {room: (left + at * (BOX + 14), TOP + number * (HEIGHT + GAP)) for at, room in enumerate(row)}
    height = TOP + len(rows) * (HEIGHT + GAP)
    style = (
        "text{font:12px system-ui,sans-serif;text-anchor:middle;fill:#1c1c1e}.name{font-weight:700;font-size:15px}"
        "path{fill:none;stroke-width:1.6}rect{fill:#fff;stroke-width:1.5}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>The rooms of hanabi_grpo</title><style>{style}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="10" style="fill:#f6f5f2"/>',
        f'<text x="{WIDTH // 2}" y="32">A line leads from a room down to one that it imports. '
        "What is imported by way of another room has no line of its own.</text>",
    ]
    for room in SENTENCES:
        for other in sorted(lines[room]):
            (left, top), (to, under) = places[room], places[other]
            start, end, bend = (left + BOX // 2, top + HEIGHT), (to + BOX // 2, under), (under - top - HEIGHT) // 2
            curve = (
                f"M{start[0]} {start[1]}c0 {bend} {end[0] - start[0]} {bend} {end[0] - start[0]} {end[1] - start[1]}"
            )
            parts.append(f'<path d="{curve}" stroke="{COLORS.get(room, "#8b8d94")}"/>')
    for room, (left, top) in places.items():
        middle, edge = left + BOX // 2, COLORS.get(room, "#3a3d45")
        parts.append(
            f'<rect x="{left}" y="{top}" width="{BOX}" height="{HEIGHT}" rx="8" stroke="{edge}"/>'
            f'<text x="{middle}" y="{top + 21}" class="name">{room}/</text>'
        )
        for number, words in enumerate(SENTENCES[room].split("; ")):
            parts.append(f'<text x="{middle}" y="{top + 40 + 15 * number}">{escape(words)}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    DRAWING.write_text(draw(), encoding="utf-8")
