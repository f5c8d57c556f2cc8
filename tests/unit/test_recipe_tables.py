"""tools/recipes: the tables at the end of recipes."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def table(name: str, *arguments: str) -> list[str]:
    """Return the rows of a table, without its head."""
    answer = subprocess.run(
        [sys.executable, str(ROOT / "tools/recipes" / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()[2:]


def write_run(folder: Path, *, score: float, step_times: list[float]) -> None:
    folder.mkdir()
    (folder / "sampled.json").write_text(json.dumps({"summary": {"mean": score}}))
    rows = [{"score/mean": score, "step_time": seconds} for seconds in step_times]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_credit_is_a_mean_over_seeds_with_its_standard_error_behind_five_steps_of_warm_up(
    tmp_path: Path,
) -> None:
    for seed, score in enumerate((0.8, 0.9, 1.0)):
        write_run(tmp_path / f"group-{seed}", score=score, step_times=[9.0] * 5 + [1.0, 2.0, 3.0])
    # The deviation of the scores is .1, that of their mean .1 / √3.
    row = "| `group` | 0.900 ± 0.058 | 0.900 ± 0.058 |  | 2.00 ± 0.00 |"
    assert table("credit_table.py", str(tmp_path), "group", "vdn") == [row, "| `vdn` |  |  |  |  |"]


def test_credit_of_runs_as_short_as_the_warm_up_has_the_seconds_of_all_steps(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "group-0", score=0.8, step_times=[1.0, 2.0, 6.0])
    row = "| `group` | 0.800 | 0.800 |  | 2.00 |"
    assert table("credit_table.py", str(tmp_path), "group") == [row]


def test_a_calculator_that_nobody_calls_is_a_tool_without_calls(tmp_path: Path) -> None:
    shares_of_runs: dict[str, dict[str, float]] = {
        "calls-0": {"tools/turn_share": 0.5, "tools/error_share": 0.25},
        "nobody_calls-0": {"tools/turn_share": 0.0},
        "without-0": {},
    }
    for run, figures in shares_of_runs.items():
        (tmp_path / run).mkdir()
        document = {"summary": {"mean": 0.75, "standard_error": 0.01}, "figures": figures}
        (tmp_path / run / "after.json").write_text(json.dumps(document))
    assert table("calculator_table.py", str(tmp_path)) == [
        "| calls-0 | after | 0.750 | 0.010 | 0.500 | 0.250 |",
        "| nobody_calls-0 | after | 0.750 | 0.010 | 0.000 | no call |",
        "| without-0 | after | 0.750 | 0.010 | no tool | no tool |",
    ]
