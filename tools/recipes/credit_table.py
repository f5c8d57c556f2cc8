"""Print the runs of `credit_ablation.sh` as one table.

python tools/recipes/credit_table.py FOLDER ARM ...
"""

import json
import math
import statistics
import sys
from pathlib import Path

from safetensors.numpy import load_file

LAST_STEPS = 10
"""Last steps of a run over which its training score is averaged."""
WARM_UP_STEPS = 5
"""First steps whose duration is not counted, because torch compiles its kernels in them."""
HEADER = (
    "| arm | held out | last 10 steps of training | noise ÷ signal of a gradient "
    "| seconds per step |"
)


def noise(run: Path) -> float:
    """Return the variance of a step's gradient over its squared mean, summed over a team's weights.

    In a run whose weights do not change, Adam's first moment is a mean m = Σ wᵢ gᵢ of gradients,
    and the second one is a mean v = Σ uᵢ gᵢ². With μ the true gradient and σ² the variance of one
    step's gradient, E Σ v = |μ|² + σ² and E |m|² = |μ|² + σ² Σ wᵢ².
    """
    arguments = json.loads((run / "args.json").read_text())
    beta_1 = arguments["adam_beta1"]
    beta_2 = arguments["adam_beta2"]
    checkpoints = sorted(run.glob("checkpoint-*"), key=_step_of)
    moments = load_file(checkpoints[-1] / "trainer" / "optimizer.safetensors")
    num_steps = 0.0
    squared_first = 0.0
    second = 0.0
    for name, value in moments.items():
        if name.endswith("|step"):
            num_steps = max(num_steps, float(value))
        elif name.endswith("|exp_avg"):
            squared_first += float((value.astype(float) ** 2).sum())
        elif name.endswith("|exp_avg_sq"):
            second += float(value.astype(float).sum())
    # Adam's corrections for moments that begin at zero.
    squared_first /= (1 - beta_1**num_steps) ** 2
    second /= 1 - beta_2**num_steps
    # Σ wᵢ² of the corrected first moment.
    squared_weights = ((1 - beta_1) * (1 + beta_1**num_steps)) / (
        (1 + beta_1) * (1 - beta_1**num_steps)
    )
    variance = (second - squared_first) / (1 - squared_weights)
    signal = second - variance
    if signal <= 0:
        return math.inf
    return variance / signal


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def main(folder: str, *arms: str) -> None:
    """Print a row for each arm: means over seeds, ± their standard error."""
    print(HEADER)
    print("|---|---|---|---|---|")
    for arm in arms:
        print(_row(Path(folder), arm))


def _row(folder: Path, arm: str) -> str:
    scores = []
    training_scores = []
    seconds = []
    for run in sorted(folder.glob(f"{arm}-[0-9]*")):
        evaluation = run / "sampled.json"
        if not evaluation.exists():
            continue
        scores.append(json.loads(evaluation.read_text())["summary"]["mean"])
        lines = (run / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        training_scores.append(statistics.fmean(row["score/mean"] for row in rows[-LAST_STEPS:]))
        counted = rows[WARM_UP_STEPS:] or rows
        seconds.append(statistics.median(row["step_time"] for row in counted))
    still_run = folder / f"noise-{arm}"
    ratio = f"{noise(still_run):.1f}" if still_run.exists() else ""
    cells = [f"`{arm}`", _cell(scores), _cell(training_scores), ratio, _cell(seconds, digits=2)]
    return "| " + " | ".join(cells) + " |"


def _cell(values: list[float], digits: int = 3) -> str:
    """Return e.g. "2.513 ± 0.021", without the error of a single value."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean} ± {error:.{digits}f}"


if __name__ == "__main__":
    main(*sys.argv[1:])
