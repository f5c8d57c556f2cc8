"""Draw the packages of `src/hanabi_grpo`, and what imports what, as docs/architecture.svg.

    .venv/bin/python tools/architecture.py

A box is a package with what its docstring begins with; it stands above all that it imports. tests/unit/test_docs.py
compares.
"""

import ast
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "hanabi_grpo"
PROCESSES = {"server": "terminal 1", "training": "terminal 2", "envs": "what is played"}
"""Boxes in colour."""
WIDTH, HEIGHT, GAP, MARGIN = 720, 30, 10, 150


def imports() -> dict[str, set[str]]:
    """Return each package of the package, and the other ones that its files import."""
    found: dict[str, set[str]] = {folder.parent.name: set() for folder in sorted(PACKAGE.glob("*/__init__.py"))}
    for name, others in found.items():
        for path in sorted((PACKAGE / name).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hanabi_grpo."):
                    others |= {str(node.module).split(".")[1]} & found.keys() - {name}
    return found


def order(found: dict[str, set[str]]) -> list[str]:
    """Return the packages from the ground up: each behind all that it imports; ValueError: two import each other."""
    placed: list[str] = []
    while len(placed) < len(found):
        ready = [name for name in found if name not in placed and found[name] <= set(placed)]
        if not ready:
            raise ValueError(f"import each other: {sorted(found.keys() - set(placed))}")
        placed.append(max(ready, key=lambda name: (sum(name in others for others in found.values()), name)))
    return placed


def draw() -> str:
    """Return the picture."""
    found = imports()
    names = order(found)[::-1]
    top = {name: GAP + row * (HEIGHT + GAP) for row, name in enumerate(names)}
    width, height = MARGIN + WIDTH + GAP, len(names) * (HEIGHT + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        "<title>Packages of hanabi_grpo; a line leads from a package up to one that imports it</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for name in names:
        for other in sorted(found[name], key=names.index):
            start, end = top[name] + HEIGHT / 2, top[other] + HEIGHT / 2
            bend = MARGIN - 12 - (end - start) / (height / (MARGIN - 20))
            parts.append(
                f'<path d="M{MARGIN} {start:.0f} C{bend:.0f} {start:.0f} {bend:.0f} {end:.0f} {MARGIN} {end:.0f}" '
                'fill="none" stroke="#8899aa" stroke-opacity=".45"/>'
            )
    for name in names:
        doc = ast.get_docstring(ast.parse((PACKAGE / name / "__init__.py").read_text(encoding="utf-8"))) or ""
        text = doc.split("\n")[0].rstrip(".")
        text = text if len(text) <= 95 else text[:94].rsplit(" ", 1)[0] + " …"
        fill = "#dcebff" if name in PROCESSES else "#f4f4f0"
        parts += [
            f'<rect x="{MARGIN}" y="{top[name]}" width="{WIDTH}" height="{HEIGHT}" fill="{fill}" stroke="#556"/>',
            f'<text x="{MARGIN + 10}" y="{top[name] + 20}" fill="#112"><tspan font-weight="bold">{name}</tspan>'
            f'<tspan x="{MARGIN + 100}" fill="#445">{escape(text)}</tspan></text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "architecture.svg").write_text(draw(), encoding="utf-8")
