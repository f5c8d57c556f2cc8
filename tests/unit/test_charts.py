import json
import math
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.image import imread

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import evaluate_scripted
from hanabi_grpo.evaluation.smoothing import trailing_mean
from hanabi_grpo.report.charts import ColorScale, draw_heat_map, learning_curve, read_metrics
from hanabi_grpo.report.charts.color_scale import color_at, contrast, ink_on

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)


def write_rows(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_line_ends_in_the_mean_of_the_last_steps_and_not_in_one_step() -> None:
    assert trailing_mean([0.0, 3.0, 6.0, 3.0], 3) == [0.0, 1.5, 3.0, 4.0]
    assert trailing_mean([5.0], 9) == [5.0]


def test_metrics_are_the_rows_with_a_score_in_order_of_steps(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "metrics.jsonl",
        {"step": 2, "score/mean": 1.5},
        {"step": 3, "train_runtime": 9.0},
        {"step": 1, "score/mean": 1.0, "illegal_per_game": 0.5},
        {"step": 4, "score/mean": None},
    )
    assert [(row["step"], row["score/mean"]) for row in read_metrics(path)] == [(1, 1.0), (2, 1.5)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no row has"),
        ('{"step": 1}\n', "no row has"),
        ('{"step": 1}\n{"st', "line 2: not JSON"),
        ("[1]\n", "line 1: not a JSON object"),
    ],
)
def test_metrics_that_cannot_be_drawn_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(content)
    with pytest.raises(SettingsError, match=message):
        read_metrics(path)


@pytest.mark.parametrize("num_steps", [1, 30])
def test_a_learning_curve_names_every_line_at_its_end(
    tmp_path: Path, num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {"illegal_per_game": 0.1, "unparsable_per_game": 0.2}
    # The last step alone lies far above the others.
    scores = [1.0] * (num_steps - 1) + [2.8]
    rows = [{"step": step, "score/mean": score, **bad} for step, score in enumerate(scores, start=1)]
    metrics = write_rows(tmp_path / "metrics.jsonl", *rows)
    before, after = (evaluate_scripted(name, LAPTOP, 30) for name in ("random", "hint-bot"))
    drawn: list[Figure] = []
    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda one, *args, **kw: (drawn.append(one), savefig(one, *args, **kw)))
    picture = tmp_path / "new" / "curve.png"
    learning_curve(metrics, picture, before, after, references=[before])
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (1170, 832)
    score, replies = drawn[0].axes
    end = 1.2 if num_steps == 30 else 2.8
    assert sorted(text.get_text() for text in score.texts) == [
        *(f"after {after.mean:.2f}", "attainable 3.78", f"before {before.mean:.2f}"),
        *(f"random {before.mean:.2f}", f"training games {end:.2f}"),
    ]
    assert sorted(text.get_text() for text in replies.texts) == ["illegal 0.10", "unparsable 0.20"]
    assert score.get_title(loc="left") == "2 players on laptop" and score.get_legend() is None


def test_importing_charts_loads_no_matplotlib() -> None:
    code = "import sys, hanabi_grpo.report.charts; print('matplotlib' in sys.modules, 'torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "False"]


def test_the_colours_are_viridis() -> None:
    for step in range(101):
        mine = [int(color_at(step / 100)[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        assert mine == pytest.approx(colormaps["viridis"](step / 100)[:3], abs=0.02)


@given(st.floats(-0.5, 1.5))
def test_text_is_readable_on_every_colour(position: float) -> None:
    color = color_at(position)
    assert contrast(color, ink_on(color)) >= 4.5


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([0.0, 17.5, 25.0], 0.0, 25.0),
        ([5.0, 20.0, math.nan], 5.0, 20.0),
        ([12.0, 13.0], 9.375, 15.625),
        ([0.0, 0.0], 0.0, 6.25),
        ([25.0, 24.0], 18.75, 25.0),
        ([math.nan, math.inf], 0.0, 6.25),
        ([], 0.0, 6.25),
    ],
)
def test_the_scale_is_the_scores_range_but_never_a_narrow_one(values: list[float], low: float, high: float) -> None:
    assert ColorScale.over(values, 25) == ColorScale(low=low, high=high)


def test_values_outside_the_scale_take_the_colour_of_its_end() -> None:
    scale = ColorScale(low=1, high=3)
    assert scale.color(-9) == scale.color(1) == "#440154" and scale.color(9) == scale.color(3) == "#fde725"
    assert ColorScale(low=1, high=1).position(1) == 0.5


@pytest.mark.parametrize(("count", "label"), [(2, "a"), (9, "runs/a-run-with-a-long-name/checkpoint-12345 $x_1$ {}^")])
def test_a_heat_map_shows_its_cells_in_their_colours(tmp_path: Path, count: int, label: str) -> None:
    means = [[float(i + j) for j in range(count)] for i in range(count)]
    means[0][1] = math.nan
    picture = tmp_path / "new" / "map.png"
    errors = [[math.nan] * count] * count
    draw_heat_map(
        picture, means, errors, [f"{label}{i}" for i in range(count)], maximum=25, title="a\nb", row_title="in seat 0",
        column_title="in seat 1", note="c",
    )  # fmt: skip
    pixels = imread(picture)
    scale = ColorScale.over([value for row in means for value in row], 25)
    shown = {tuple(pixel) for pixel in (pixels[..., :3].reshape(-1, 3) * 255).round().astype(int).tolist()}
    for value in {value for row in means for value in row if math.isfinite(value)}:
        color = scale.color(value)
        assert tuple(int(color[start : start + 2], 16) for start in (1, 3, 5)) in shown
    assert pixels.shape[0] < 2000 and pixels.shape[1] < 2600
