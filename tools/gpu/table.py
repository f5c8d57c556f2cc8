"""What the calls wrote, as the table for docs/benchmarks.md; a call that left nothing has a row
that says so.

python -m gpu.table steps RUN      # JSON: medians over the steps of a run
python -m gpu.table table FOLDER   # Markdown
"""

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CALLS = {
    "A": "trainer alone",
    "B": "the machine",
    "C": "server and trainer, the small model",
    "D": "server and trainer, the large model",
    "D-overlap": "the same with HANABI_OVERLAP=1",
    "C-kills": "kill -9 of engine and server",
    "R": "bench rows",
}
_WANTED = ("time/", "step_time", "tokens/", "memory/", "push/")


def steps_of(run: Path) -> dict[str, Any]:
    """Return the medians over a run's steps, the first left out, of times, tokens, memory and
    logprob mismatch.
    """
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if "step" in row]
    measured = rows[1:] or rows
    names = [
        name
        for name, value in measured[-1].items()
        if isinstance(value, int | float)
        and (name.startswith(_WANTED) or "parity" in name or "mismatch" in name)
    ]
    medians = {
        name: statistics.median(row[name] for row in measured if name in row) for name in names
    }
    return {"steps": len(rows), **medians}


def table_of(folder: Path) -> str:
    """Return the Markdown table of a folder's JSON files."""
    lines = ["| call | what | figure |", "|---|---|---|"]
    for call, title in CALLS.items():
        path = folder / f"{call}.json"
        if not path.is_file():
            lines.append(
                f"| {call} | {title} | not run, or it did not end: see "
                f"{call.partition('-')[0]}.log |"
            )
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        lines += [
            f"| {call} | {title}: {name} | {figure.replace('|', '∣')} |"
            for name, figure in _figures(found)
        ]
    return "\n".join(lines) + "\n"


def _figures(found: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in found.items():
        if name in ("packages", "facts", "details"):
            continue
        if isinstance(value, dict):
            yield from _figures(value, f"{before}{name}, ")
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            for number, one in enumerate(value, start=1):
                if "id" in one:  # a row of the benchmarks
                    yield f"{one['id']} {one['name']}", _shown(one.get("median"))
                else:
                    yield from _figures(one, f"{before}{name} {number}, ")
        else:
            yield (
                f"{before}{name}",
                "; ".join(map(str, value)) or "none" if isinstance(value, list) else _shown(value),
            )


def _shown(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "not measured" if value is None else str(value)
    return f"{value / 1e9:.2f}e9" if abs(value) >= 1e9 else f"{value:.4g}"


if __name__ == "__main__":
    given = Path(sys.argv[2])
    print(json.dumps(steps_of(given), indent=1) if sys.argv[1] == "steps" else table_of(given))
