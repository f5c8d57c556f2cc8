import base64
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.smoothing import bin_means, trailing_mean
from hanabi_grpo.report.charts.alarms import alarm_figure
from hanabi_grpo.report.charts.canvas import data_address
from hanabi_grpo.report.charts.run import PICTURES, RunPictures, small_figure
from hanabi_grpo.runs.alarms import alarms_of


def test_a_line_ends_in_the_mean_of_the_last_steps_and_not_in_one_step() -> None:
    assert trailing_mean([0.0, 3.0, 6.0, 3.0], 3) == [0.0, 1.5, 3.0, 4.0]
    assert bin_means([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]


def rows_of(num: int, *, players: int = 2) -> list[dict[str, Any]]:
    """Rows whose last step alone lies far above the others."""
    rows = []
    for step in range(1, num + 1):
        row = {"step": step, "games": 64.0, "score/mean": 2.8 if step == num else 1.0, "illegal_per_game": 0.1}
        row |= {"unparsable_per_game": 0.2, "time/rollout": 2.0, "time/train": 1.0}
        row |= {f"player_{player}/blind_share": 0.1 * player + 0.001 * step for player in range(players)}
        rows.append(row)
    return rows


@pytest.mark.parametrize(("num_steps", "end"), [(1, "2.80"), (30, "1.20")])
def test_a_learning_curve_names_every_line_from_high_to_low(num_steps: int, end: str) -> None:
    run = RunPictures(
        title="$a$: 30 steps",
        rows=rows_of(num_steps),
        settings={"HANABI_PRESET": "laptop"},
        levels={"hint-bot": 2.64},
        points=[(0, 0.6, 0.1), (num_steps, 2.1, 0.1)],
    )
    score, replies = run.draw("score").axes
    names = [f"training games {end}", "hint-bot 2.64", "held-out deals 2.10"]
    legends = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in (score, replies)]
    assert legends == [names if num_steps == 1 else [*names[1:], names[0]], ["unparsable 0.20", "illegal 0.10"]]
    assert score.get_title(loc="left") == "$a$: 30 steps" and score.get_ylim()[0] == 0
    assert score.get_ylabel() == "mean score, 0 to 4"


def test_a_score_that_may_be_negative_has_room_below() -> None:
    rows = [{"step": step, "games": 1.0, "score/mean": -1.95 + 0.01 * step} for step in range(1, 11)]
    run = RunPictures(title="t", rows=rows, settings={"HANABI_ENV": "kuhn", "HANABI_PRESET": "kuhn"})
    axes = run.draw("score").axes[0]
    assert axes.get_ylim()[0] < -1.94 and axes.get_ylim()[1] > 0
    assert axes.get_ylabel() == "mean score, -2 to 2"


def test_every_picture_of_short_and_long_runs_is_a_png_and_equal_runs_give_equal_files(tmp_path: Path) -> None:
    for num, players in ((2, 5), (700, 2)):
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


def test_pictures_without_figures_are_left_out_with_the_reason_and_a_place_that_is_none_refused(tmp_path: Path) -> None:
    run = RunPictures(title="t", rows=[{"step": 1, "games": 4.0, "score/mean": 1.0}])
    left_out = run.save_all({name: tmp_path / f"{name}.png" for name in PICTURES})
    assert {path.name for path in tmp_path.iterdir()} == {"score.png"}
    assert {name: reason.partition(";")[0] for name, reason in left_out.items()} == {
        "phases": 'no two rows have a "time/…"',
        "alarms": "no row has a figure that an alarm watches",
    }
    with pytest.raises(SettingsError, match=r"p\.png: cannot be written \(File exists\)"):
        run.save_all({"score": tmp_path / "score.png" / "p.png"})


def test_alarms_that_were_raised_come_first_and_constants_are_left_out() -> None:
    rows = [
        {"step": step, "games": 1.0, "kl": 0.0, "flat_group_share": 0.1 + 0.001 * step, "player_0/blind_share": 0.95}
        for step in range(1, 41)
    ]
    figure = alarm_figure(rows, alarms_of({}), title="t")
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert titles == ["share of moves: play the oldest card", "share of tasks without spread in rewards"]
