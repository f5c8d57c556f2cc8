import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanabi_grpo.charts import learning_curve, read_metrics, smooth
from hanabi_grpo.env_config import EnvConfig
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation import evaluate_scripted

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)


def write_rows(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_moving_mean_stays_centred_at_both_ends() -> None:
    assert smooth([0.0, 3.0, 6.0, 3.0], 3) == [0.0, 3.0, 4.0, 3.0]
    assert smooth([5.0], 9) == [5.0]


@given(st.floats(-5, 5), st.floats(-1, 1), st.integers(1, 40), st.integers(1, 15))
def test_smoothing_leaves_a_straight_line_as_it_is(start: float, slope: float, count: int, width: int) -> None:
    line = [start + slope * index for index in range(count)]
    assert smooth(line, width) == pytest.approx(line, abs=1e-9)


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
def test_a_learning_curve_is_a_png_of_readable_size(tmp_path: Path, num_steps: int) -> None:
    rows = [
        {"step": step, "score/mean": 1 + step / 40, "illegal_per_game": 1 / step} for step in range(1, num_steps + 1)
    ]
    metrics = write_rows(tmp_path / "metrics.jsonl", *rows)
    before, after = (evaluate_scripted(name, LAPTOP, 30) for name in ("random", "hint-bot"))
    picture = tmp_path / "new" / "curve.png"
    learning_curve(metrics, picture, before, after, references=[before, after])
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (1105, 806)


def test_importing_charts_loads_no_matplotlib() -> None:
    code = "import sys, hanabi_grpo.charts; print('matplotlib' in sys.modules, 'torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "False"]
