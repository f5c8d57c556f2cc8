import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hanabi_grpo.evaluation.crossplay.tables import entries_table, number, show, whole_table
from hanabi_grpo.report.charts.heat_map import contrast

from crossplay_parts import summary_of
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.summary import Summary, summarise, summary_json
from hanabi_grpo.report.cross_play_page import markdown_report, render_cross_play, write_cross_play


@pytest.fixture(scope="module")
def bots(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return summary_of(tmp_path_factory.mktemp("bots"), "hint-bot", "random", "blind", deals=20)


def test_every_cell_has_its_value_a_colour_and_more_of_it_behind_it(bots: Summary) -> None:
    page = render_cross_play(bots)
    cells = re.findall(r'<td class="(k\d+)( self)?" title="([^"]*)"><b>([\d.]+)</b><small>±([\d.]+)</small></td>', page)
    assert [float(cell[3]) for cell in cells] == [round(value, 2) for value in bots.matrix.means.ravel().tolist()]
    assert [bool(cell[1]) for cell in cells] == [True, False, False, False, True, False, False, False, True]
    assert {cell[0] for cell in cells} <= set(re.findall(r"^\.(k\d+) ", page, re.MULTILINE))
    assert cells[1][2].startswith("hint-bot in seat 0, random in seat 1: ")
    assert "95 % interval" in cells[1][2] and "bombed " in cells[1][2]
    rules = re.findall(r"\.k\d+ \{ background: (#\w{6}); color: (#\w{6}); \}", page)
    assert len(rules) == 33 and min(contrast(*rule) for rule in rules) > 4.5


def test_an_unfinished_matrix_says_so_and_shows_what_is_there(bots: Summary, tmp_path: Path) -> None:
    partial = summarise(bots.plan, {name: cell for name, cell in bots.cells.items() if name < "1-2"})
    page = render_cross_play(partial)
    assert page.count('class="missing"') == 4
    assert "not finished: 5 of 9 pairs" in page
    files = write_cross_play(tmp_path, partial)
    data = json.loads(files[0].read_text())
    assert (data["complete"], data["num_played"], data["gap"]["mean"], data["cells"][2]) == (False, 5, None, [None] * 3)
    assert data["entries"][0]["gap"]["mean"] is None and data["entries"][0]["first_seat"]["mean"] is not None
    assert "not finished: 5 of 9 pairs" in files[1].read_text()
    assert files[2].read_bytes()[:4] == b"\x89PNG"
    assert render_cross_play(summarise(bots.plan, {})).count('class="missing"') == 9
    files[1].unlink()
    files[1].mkdir()
    with pytest.raises(SettingsError, match=r"cross_play\.md: cannot be written"):
        write_cross_play(tmp_path, bots)


def test_markdown_has_every_table_and_escapes_names(bots: Summary) -> None:
    entries = (replace(bots.plan.entries[0], label="a|b\\c"), *bots.plan.entries[1:])
    text = markdown_report(replace(bots, plan=replace(bots.plan, entries=entries)))
    assert [line for line in text.splitlines() if line.startswith("**")] == [
        "**Mean scores**",
        "**Self-play and cross-play**",
        "**Entries**",
    ]
    rows = [line for line in text.splitlines() if line.startswith("| a\\|b\\\\c ")]
    assert len(rows) == 2
    bars = {len(re.findall(r"(?<!\\)\|", line)) for line in rows}
    assert bars == {5, 8}
    assert f"| {show(bots, bots.matrix.cell(0, 1))} |" in rows[0]


def test_the_tables_say_what_the_figures_are(bots: Summary) -> None:
    gap = whole_table(bots).groups[0][2]
    assert gap[0] == "self-play minus cross-play" and float(gap[1]) == pytest.approx(bots.whole["gap"].mean, abs=5e-4)
    assert whole_table(bots).columns[3] == "± over entries"
    entries = entries_table(bots).groups[0]
    means = {label: one.cross_play.mean for one, label in zip(bots.entries, bots.labels, strict=True)}
    assert [row[0] for row in entries] == sorted(bots.labels, key=lambda label: -means[label])
    assert "(blind)" in next(row for row in entries if row[0] == "random")[-1]


def test_three_players_are_told_that_a_cell_is_a_newcomer(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, "iggi", "random", setup=Setup(HANABI, EnvConfig(preset="full", players=3)), deals=3)
    page = render_cross_play(summary)
    assert "one newcomer, the row, in seat 0 of a team of the column" in page and "in seats 1 to 2" in page
    values = (1.0, -0.001, -2.0, math.nan)
    assert [number(summary, value, sign=True) for value in values] == ["+1.00", "+0.00", "-2.00", "–"]


def test_the_json_holds_the_matrix_and_who_played(bots: Summary) -> None:
    data = summary_json(bots)
    assert [[cell["mean"] for cell in row] for row in data["cells"]] == bots.matrix.means.tolist()
    assert data["cells"][0][1]["seats"] == ("hint-bot", "random")
    assert data["entries"][2]["worst_partner"] == bots.labels[bots.entries[2].worst_partner or 0]
    assert (data["preset"], data["num_deals"], data["temperature"], data["complete"]) == ("laptop", 20, None, True)
    low, high = data["cells"][0][0]["interval_95"]
    assert low < data["cells"][0][0]["mean"] < high
