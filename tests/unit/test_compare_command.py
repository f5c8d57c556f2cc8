"""`hanabi-grpo compare` and its picture."""

import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.evaluation.tables import ATTAINABLE_SOURCE
from hanabi_grpo.report.charts.labels import spread
from training_runs import made_evaluation, made_run

RUNNER = CliRunner()
BLUE, VERMILION = "#0072B2", "#D55E00"


def arms(folder: Path) -> list[str]:
    for name, height in (("a", 1.0), ("b", 2.0)):
        for seed in range(3):
            run = folder / f"{name}-{seed}"
            made_run(run / "train", [height + 0.1 * seed] * 12, settings={"SEED": seed})
            for kind, rise in (("sampled", 0.0), ("greedy", 0.5)):
                scores = [height + rise + 0.1 * seed] * 3 + [height + rise - 0.1]
                made_evaluation(run / f"{kind}.json", scores, temperature=1.0 if kind == "sampled" else 0.0)
    return [f"per player={folder}/a-*", f"shared={folder}/b-0,{folder}/b-1,{folder}/b-2"]


def colors(path: Path) -> set[tuple[int, ...]]:
    pixels = (imread(path)[..., :3].reshape(-1, 3) * 255).round().astype(int)
    return {tuple(pixel) for pixel in pixels.tolist()}


def of(color: str) -> tuple[int, ...]:
    return tuple(round(255 * part) for part in to_rgb(color))


def test_two_arms_are_compared_in_tables_a_picture_and_figures(tmp_path: Path) -> None:
    out = tmp_path / "new folder"
    files = [f"--out-png={out}/c.png", f"--out-markdown={out}/c.md", f"--out-json={out}/c.json"]
    answer = RUNNER.invoke(
        app, ["compare", *arms(tmp_path), "--reference", "hint-bot=2.632", "--title", "T [x]", *files]
    )
    assert answer.exit_code == 0, answer.output
    lines = (out / "c.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "### T [x]"
    assert "| arm | runs | games/run | seconds/run | training, last 10 steps | greedy | sampled (T=1) |" in lines
    # Means 1.1 of training; of sampled 0.975, 1.05 and 1.125.
    error = 0.075 / math.sqrt(3)
    assert f"| per player | 3 | 768 | 24 | 1.100 ± 0.058 | 1.550 ± {error:.3f} | 1.050 ± {error:.3f} |" in lines
    row = next(line for line in lines if line.startswith("| shared − per player"))
    assert row.startswith(f"| shared − per player | +1.000 ± {error * math.sqrt(2):.3f} | +")
    assert lines[-2:] == ["- To compare with: hint-bot 2.632, attainable 3.78.", f"- {ATTAINABLE_SOURCE}"]
    assert "| attainable | – | – | – | – | 3.78 | 3.78 |" in lines
    assert lines.count("| attainable | 3.78 | – | – | – | – |") == 2
    assert any(line.startswith("| arm | score_kept | bombed |") for line in lines)
    assert any("same deals" in line for line in lines)
    figures = json.loads((out / "c.json").read_text(encoding="utf-8"))
    shared = figures["arms"][1]
    assert [run["seed"] for run in shared["runs"]] == [0, 1, 2]
    assert shared["evaluations"]["sampled.json"]["difference"]["seeds"]["mean"] == pytest.approx(1.0)
    assert len(shared["curve"]["x"]) == len(shared["curve"]["low"]) == 12
    shown = colors(out / "c.png")
    assert of(BLUE) in shown and of(VERMILION) in shown


def test_one_run_has_no_errors_and_says_so(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", [1.0, 2.0], preset=None)
    answer = RUNNER.invoke(app, ["compare", f"alone={run}", f"--out-json={tmp_path}/c.json", "--window", "1"])
    assert answer.exit_code == 0, answer.output
    assert re.search(r"alone │ +1 │ +128 │ +4 │ +2\.000 ± –", answer.output)
    assert "One run only, so nothing is known about other seeds: alone." in answer.output
    assert json.loads((tmp_path / "c.json").read_text())["arms"][0]["training"]["standard_error"] is None


def test_runs_of_different_length_are_cut_at_the_common_step_and_it_is_said(tmp_path: Path) -> None:
    short = made_run(tmp_path / "short", [1.0, 2.0, 3.0])
    long = made_run(tmp_path / "long", [1.0, 2.0, 3.0, 9.0, 9.0], games=128)
    made_evaluation(long / "sampled.json", [1.0, 2.0])
    words = ["compare", f"a={short}", f"b={long}", "--window", "1"]
    answer = RUNNER.invoke(app, words)
    assert answer.exit_code == 0, answer.output
    assert "up to step 3" in answer.output and "9.000" not in answer.output
    for note in (
        "Runs have 3 to 5 steps: curves and training means use the first 3.",
        "--x games compares them at equal games",
        "sampled.json: 0 of 1 runs of a have it.",
    ):
        assert note in answer.output
    answer = RUNNER.invoke(app, [*words, "--x", "games"])
    assert "Runs have 192 to 640 games: curves and training means use the first 192." in answer.output
    assert "--x games compares" not in answer.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a=missing"], "missing: no such folder"),
        (["missing"], "an arm needs a name"),
        (["a=RUN", "--x", "hours"], "Invalid value for '--x'"),
        (["a=RUN", "--window", "0"], "Invalid value for '--window'"),
        (["a=RUN", "--reference", "x"], "--reference 'x': give NAME=SCORE"),
        (["a=RUN", "--preset", "mini"], "--preset mini:"),
        (["a=RUN", "--out-json", "RUN/metrics.jsonl/c.json"], "c.json: cannot be written ("),
        (["a=RUN", "--out-markdown", "RUN/metrics.jsonl/c.md"], "c.md: cannot be written ("),
        (["a=RUN", "--out-png", "RUN/metrics.jsonl/c.png"], "choose another place"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    run = made_run(tmp_path / "run", [1.0])
    answer = RUNNER.invoke(app, ["compare", *(word.replace("RUN", str(run)) for word in words)])
    assert answer.exit_code == 2, answer.output
    assert message in answer.output.replace("\n", " ")


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.04, 0.08])), max_size=12))
def test_labels_never_overlap_and_stay_inside(wanted: list[tuple[float, float]]) -> None:
    wanted = sorted(wanted)
    sizes = [size for _, size in wanted]
    places = spread([height for height, _ in wanted], sizes)
    for index in range(1, len(places)):
        assert places[index] - places[index - 1] >= (sizes[index] + sizes[index - 1]) / 2 - 1e-9
    if places:
        assert places[0] >= sizes[0] / 2 - 1e-9 and places[-1] <= 1 - sizes[-1] / 2 + 1e-9
