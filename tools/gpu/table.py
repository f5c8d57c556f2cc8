"""The results of the calls, as the table for docs/benchmarks.md.

A call without results has a row that says so.

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
    "A-parts": "parts of the trainer",
    "B": "the machine",
    "C": "server and trainer, the small model",
    "D": "server and trainer, the large model",
    "D-overlap": "the same with HANABI_OVERLAP=1",
    "C-zero2": "the same under ZeRO-2",
    "C-kills": "kill -9 of engine and server",
    "D-256": "the same with 256 games per step",
    "E": "a team of two base models",
    "K": "the engine killed while the trainer runs",
    "S": "an engine that sleeps",
    "V-runner1": "vLLM's first model runner",
    "V-runner1-top-p": "the same with TOP_P=0.9",
    "V-runner2": "vLLM's second model runner",
    "V-runner2-top-p": "the same with TOP_P=0.9",
    "R": "bench rows",
}
"""The calls of check.sh and what they run, in the order of the table."""
_PREFIXES = ("time/", "step_time", "tokens/", "memory/", "push/")
"""Metrics whose names begin with one of these are summarized."""
_PARTS = ("parity", "mismatch")
"""Metrics whose names contain one of these are summarized, too."""
_NOT_SHOWN = ("packages", "facts", "details")
"""Keys whose values are too long for a table."""
_LONG_NUMBER = 1e9
"""Numbers of at least this size are shown in units of 1e9."""


def steps_of(run: Path) -> dict[str, Any]:
    """Return the medians of a run's times, tokens, memory and logprob mismatch.

    They are taken over all steps except the first, e.g. {"steps": 3, "time/train": 3.75}.
    """
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    steps = [row for row in rows if "step" in row]
    measured = steps[1:] or steps
    medians: dict[str, Any] = {"steps": len(steps)}
    figures: dict[str, list[float]] = {}
    for row in measured:
        for name, value in row.items():
            # null if a step had nothing to measure.
            if isinstance(value, int | float) and _is_summarised(name):
                figures.setdefault(name, []).append(value)
    for name, values in figures.items():
        medians[name] = statistics.median(values)
    return medians


def _is_summarised(name: str) -> bool:
    return name.startswith(_PREFIXES) or any(part in name for part in _PARTS)


def table_of(folder: Path) -> str:
    """Return the Markdown table of a folder's JSON files."""
    lines = ["| call | what | figure |", "|---|---|---|"]
    for call, title in CALLS.items():
        path = folder / f"{call}.json"
        if not path.is_file():
            # Calls with a longer name are in the log of their letter.
            log = call.partition("-")[0] + ".log"
            lines.append(f"| {call} | {title} | not run or not finished, see {log} |")
            continue
        results = json.loads(path.read_text(encoding="utf-8"))
        for name, figure in _figures(results):
            # A plain vertical bar would end the cell.
            cell = figure.replace("|", "∣")
            lines.append(f"| {call} | {title}: {name} | {cell} |")
    return "\n".join(lines) + "\n"


def _figures(results: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every figure; nested names begin with their keys."""
    for name, value in results.items():
        if name in _NOT_SHOWN:
            continue
        if isinstance(value, dict):
            yield from _figures(value, f"{prefix}{name}, ")
        elif _is_list_of_results(value):
            for number, result in enumerate(value, start=1):
                is_benchmark = "id" in result
                if is_benchmark:
                    yield f"{result['id']} {result['name']}", _text(result.get("median"))
                else:
                    yield from _figures(result, f"{prefix}{name} {number}, ")
        elif isinstance(value, list):
            yield f"{prefix}{name}", "; ".join(str(entry) for entry in value) or "none"
        else:
            yield f"{prefix}{name}", _text(value)


def _is_list_of_results(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(entry, dict) for entry in value)


def _text(value: object) -> str:
    """Return a figure with four digits, e.g. "1.235" or "2.50e9"; other values as they are."""
    if value is None:
        return "not measured"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if abs(value) >= _LONG_NUMBER:
        return f"{value / _LONG_NUMBER:.2f}e9"
    return f"{value:.4g}"


def main(command: str, path: str) -> None:
    """Print the medians of a run or the table of a folder."""
    if command == "steps":
        print(json.dumps(steps_of(Path(path)), indent=1))
    else:
        print(table_of(Path(path)))


if __name__ == "__main__":
    main(*sys.argv[1:])
