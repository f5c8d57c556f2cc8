"""Print what `credit_ablation.sh` left as one table: `python tools/recipes/credit_table.py FOLDER
ARM ...`.
"""

import json
import math
import statistics
import sys
from pathlib import Path

from safetensors.numpy import load_file


def noise(run: Path) -> float:
    """Return the variance of a step's gradient over its squared mean, summed over a team's weights.

    Of a run that moved nothing, Adam's first moment is a mean m = Σ wᵢ gᵢ of gradients and the
    second one a mean v = Σ uᵢ gᵢ². With μ the true gradient and σ² the variance of one, E Σ v =
    |μ|² + σ² and E |m|² = |μ|² + σ² Σ wᵢ²."""
    adam = json.loads((run / "args.json").read_text())
    beta_1, beta_2 = adam["adam_beta1"], adam["adam_beta2"]
    last = max(run.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    state = load_file(last / "trainer" / "optimizer.safetensors")
    steps = max(float(value) for name, value in state.items() if name.endswith("|step"))
    first = sum(
        float((value.astype(float) ** 2).sum())
        for name, value in state.items()
        if name.endswith("|exp_avg")
    )
    second = sum(
        float(value.astype(float).sum())
        for name, value in state.items()
        if name.endswith("|exp_avg_sq")
    )
    first, second = first / (1 - beta_1**steps) ** 2, second / (1 - beta_2**steps)
    share = (1 - beta_1) * (1 + beta_1**steps) / ((1 + beta_1) * (1 - beta_1**steps))
    variance = (second - first) / (1 - share)
    signal = second - variance
    return variance / signal if signal > 0 else math.inf


def main(folder: str, *arms: str) -> None:
    """Print a row for each arm: means over seeds, ± their standard error."""
    print(
        "| arm | held out | last 10 steps of training | noise ÷ signal of a gradient | seconds a "
        "step |"
    )
    print("|---|---|---|---|---|")
    for arm in arms:
        scores, ends, seconds = [], [], []
        for run in sorted(Path(folder).glob(f"{arm}-[0-9]*")):
            if not (run / "sampled.json").exists():
                continue
            scores.append(json.loads((run / "sampled.json").read_text())["summary"]["mean"])
            rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            ends.append(statistics.fmean(row["score/mean"] for row in rows[-10:]))
            # Not the first ones, in which torch makes its kernels.
            seconds.append(statistics.median(row["step_time"] for row in rows[5:]))
        still = Path(folder) / f"noise-{arm}"
        measured = f"{noise(still):.1f}" if still.exists() else ""
        print(f"| `{arm}` | {_cell(scores)} | {_cell(ends)} | {measured} | {_cell(seconds, 2)} |")


def _cell(values: list[float], digits: int = 3) -> str:
    if not values:
        return ""
    shown = f"{statistics.fmean(values):.{digits}f}"
    if len(values) > 1:
        shown += f" ± {statistics.stdev(values) / math.sqrt(len(values)):.{digits}f}"
    return shown


if __name__ == "__main__":
    main(*sys.argv[1:])
