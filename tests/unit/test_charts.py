import base64
import math
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hanabi_grpo.report.charts.heat_map import color_at, contrast, draw_heat_map, ink_on
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.smoothing import trailing_mean
from hanabi_grpo.report.charts.alarms import alarm_figure
from hanabi_grpo.report.charts.canvas import data_address
from hanabi_grpo.report.charts.run import PICTURES, Point, RunPictures, small_figure
from hanabi_grpo.runs.alarms import alarms_of


def test_a_line_ends_in_the_mean_of_the_last_steps_and_not_in_one_step() -> None:
    assert trailing_mean([0.0, 3.0, 6.0, 3.0], 3) == [0.0, 1.5, 3.0, 4.0]
    assert trailing_mean([5.0], 9) == [5.0]


@given(st.floats(-0.5, 1.5))
def test_text_is_readable_on_every_colour(position: float) -> None:
    color = color_at(position)
    assert contrast(color, ink_on(color)) >= 4.5


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("count", "label"), [(2, "a"), (9, "runs/a-run-with-a-long-name/checkpoint-12345 $x_1$ {}^")])
def test_a_heat_map_shows_its_cells_in_their_colours(tmp_path: Path, count: int, label: str) -> None:
    means = [[float(i + j) for j in range(count)] for i in range(count)]
    means[0][1] = math.nan
    picture = tmp_path / "new" / "map.png"
    errors = [[math.nan] * count] * count
    draw_heat_map(
        picture, means, errors, [f"{label}{i}" for i in range(count)], limits=(0, 25), title="a\nb",
        row_title="in seat 0", column_title="in seat 1", note="c",
    )  # fmt: skip
    pixels = imread(picture)
    shown = {tuple(pixel) for pixel in (pixels[..., :3].reshape(-1, 3) * 255).round().astype(int).tolist()}
    for value in {value for row in means for value in row if math.isfinite(value)}:
        color = color_at(value / 25)
        assert tuple(int(color[start : start + 2], 16) for start in (1, 3, 5)) in shown
    assert pixels.shape[0] < 2000 and pixels.shape[1] < 2600


def rows_of(num: int, *, players: int = 2) -> list[dict[str, Any]]:
    """Rows whose last step alone lies far above the others."""
    rows = []
    for step in range(1, num + 1):
        row = {"step": step, "games": 64.0, "score/mean": 2.8 if step == num else 1.0, "illegal_per_game": 0.1}
        row |= {"unparsable_per_game": 0.2, "time/rollout": 2.0, "time/train": 1.0}
        row |= {f"player_{player}/blind_share": 0.1 * player + 0.001 * step for player in range(players)}
        rows.append(row)
    return rows


@pytest.mark.parametrize("num_steps", [1, 30])
def test_a_learning_curve_names_every_line_at_its_end(num_steps: int) -> None:
    points = [Point(step=0, mean=0.6, error=0.1), Point(step=num_steps, mean=2.1, error=0.1)]
    run = RunPictures(
        title="$a$: 30 steps",
        rows=rows_of(num_steps),
        settings={"HANABI_PRESET": "laptop"},
        levels={"hint-bot": 2.64},
        points=points,
    )
    score, replies = run.score().axes
    end = 1.2 if num_steps == 30 else 2.8
    assert sorted(text.get_text() for text in score.texts) == [
        "held-out deals 2.10", "hint-bot 2.64", f"training games {end:.2f}"
    ]  # fmt: skip
    assert sorted(text.get_text() for text in replies.texts) == ["illegal 0.10", "unparsable 0.20"]
    assert score.get_title(loc="left") == "$a$: 30 steps" and score.get_ylim()[0] == 0


def test_a_score_that_may_be_negative_has_room_below_and_only_within_what_is_possible() -> None:
    rows = [{"step": step, "games": 1.0, "score/mean": -1.95 + 0.01 * step} for step in range(1, 11)]
    axes = RunPictures(title="t", rows=rows, settings={"HANABI_ENV": "kuhn", "HANABI_PRESET": "kuhn"}).score().axes[0]
    assert axes.get_ylim() == (pytest.approx(-2.12), pytest.approx(0.194))
    assert axes.get_ylabel() == "mean score, -2 to 2"


def test_every_picture_of_short_and_long_runs_is_a_png_and_equal_runs_give_equal_files(tmp_path: Path) -> None:
    for num, players in ((1, 2), (11, 5), (700, 2)):
        run = RunPictures(title="$x_1$ <b> ünïcode", rows=rows_of(num, players=players))
        for turn in ("a", "b"):
            assert run.save_all({name: tmp_path / turn / f"{name}.png" for name in PICTURES}) == {}
        for name in PICTURES:
            content = (tmp_path / "a" / f"{name}.png").read_bytes()
            width, height = struct.unpack(">II", content[16:24])
            assert (content[:8], width > 300, height > 200) == (b"\x89PNG\r\n\x1a\n", True, True)
            assert content == (tmp_path / "b" / f"{name}.png").read_bytes()


def test_an_svg_keeps_its_text_and_few_points(tmp_path: Path) -> None:
    run = RunPictures(title="many & more", rows=rows_of(5000))
    assert run.save_all({"score": tmp_path / "score.svg"}) == {}
    text = (tmp_path / "score.svg").read_text()
    assert "many &amp; more" in text and ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert len(text) < 100_000
    address = data_address(small_figure({"player_0": ([1, 2], [0.0, 1.0]), "player_1": ([1, 2], [1.0, 0.0])}))
    assert "player_1" in base64.b64decode(address.removeprefix("data:image/svg+xml;base64,")).decode()


def test_pictures_without_figures_are_left_out_with_the_reason(tmp_path: Path) -> None:
    run = RunPictures(title="t", rows=[{"step": 1, "games": 4.0, "score/mean": 1.0}])
    left_out = run.save_all({name: tmp_path / f"{name}.png" for name in PICTURES})
    assert {path.name for path in tmp_path.iterdir()} == {"score.png"}
    assert {name: reason.partition(";")[0] for name, reason in left_out.items()} == {
        "phases": 'no row has a "time/…"',
        "alarms": "no row has a figure that an alarm watches",
    }


def test_a_picture_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = RunPictures(title="t", rows=rows_of(3))
    with pytest.raises(SettingsError, match=r"p\.png: cannot be written \(File exists\)"):
        run.save_all({"score": tmp_path / "file" / "p.png"})


def test_alarms_that_were_raised_come_first_and_constants_are_left_out() -> None:
    rows = [
        {"step": step, "games": 1.0, "kl": 0.0, "flat_group_share": 0.1 + 0.001 * step, "player_0/blind_share": 0.95}
        for step in range(1, 41)
    ]
    titles = [
        axes.get_title(loc="left") for axes in alarm_figure(rows, alarms_of({}), title="t").axes if axes.get_visible()
    ]
    assert titles == ["share of moves: play the oldest card", "share of tasks without spread in rewards"]
