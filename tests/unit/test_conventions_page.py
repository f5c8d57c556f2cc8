import json
from pathlib import Path

import pytest

from boards import ALL_BOARDS, scripted_episodes
from convention_games import golden_game, some_counts
from fake_engine import LAPTOP
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.conventions.cells import matrix_rows, shade
from hanabi_grpo.envs.hanabi.conventions.counts import ConventionCounts
from hanabi_grpo.envs.hanabi.conventions.report import MoveMatrix, convention_json, convention_report
from hanabi_grpo.envs.hanabi.rules import make_spec
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.hanabi.conventions_page import render_conventions, write_conventions
from hanabi_grpo.runs.recordings import write_episodes
from pages import Reader


def page_of(*labels: str, num_games: int = 40) -> str:
    return render_conventions(
        [convention_report(label, some_counts(num_games)) for label in labels], title="some line-ups"
    )


def test_every_board_has_a_page() -> None:
    for preset, num_players in ALL_BOARDS:
        spec = make_spec(preset, num_players)
        report = convention_report("r", some_counts(3, policy="random", spec=spec))
        text = Reader(render_conventions([report], title="t")).text
        assert f"board {spec.hash}" in text and "nan" not in text.lower().split()
        assert ("+1 to the seat after the mover" in text) == (num_players > 2)


def test_a_cell_shows_its_share_its_count_and_the_usual_share() -> None:
    counts = ConventionCounts(golden_game().spec)
    counts.add(golden_game())
    page = render_conventions([convention_report("golden", counts)], title="t")
    assert '<td class="thin" title="hint red → play card 1: 1 of 1; usually 20.0%">100</td>' in page
    assert 'id="compared"' not in page
    assert "standard errors from 1 group of deals: too few to trust them" in page
    assert page.count('class="r0"') == 6  # R, 2 and any hint: of the team and of the seat that was hinted


def test_a_heat_map_is_coloured_by_what_differs_from_its_last_row() -> None:
    matrix = MoveMatrix(
        counts=((90, 10), (0, 20), (0, 0)),
        shares=((0.9, 0.1), (0.0, 1.0), (None, None)),
        marginal=(0.75, 0.25),
    )
    actions = [("P0", "play card 0"), ("P1", "play card 1"), ("P2", "play card 2")]
    assert list(map(shade, (0, 0.02, 0.07, -0.07, -1, 1))) == ["", "", "u1", "d1", "d8", "u8"]
    found = matrix_rows(matrix, actions)
    first, second = found["rows"]
    assert [(cell.text, cell.style) for cell in first["cells"]] == [("90", "u2"), ("10", "d2")]
    # Twenty observations: grey, whatever they say; and what never happened is left empty.
    assert [(cell.text, cell.style) for cell in second["cells"]] == [("", "thin"), ("100", "thin")]
    assert [cell.text for cell in found["marginal"]] == ["75", "25"]


def test_recorded_games_are_counted_each_place_a_section(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_episodes(run, 7, [scripted_episodes(LAPTOP, ["hint-bot"] * 2, range(60), suite="eval")])
    page = tmp_path / "pages" / "conventions.html"
    [line] = write_conventions(page, [run, run / "episodes"])
    assert line.startswith(f"wrote {page} (")
    assert 'id="compared"' in page.read_text()
    found = json.loads(page.with_suffix(".json").read_text())["line_ups"]
    expected = json.loads(json.dumps(convention_json(convention_report("hint-bot", some_counts(60)))))
    assert [{**one, "label": "hint-bot"} for one in found] == [expected, expected]


def test_a_team_has_one_plain_sentence() -> None:
    assert "After a hint its receiver plays a touched card in" in page_of("bots", num_games=200)
    report = convention_report("random", some_counts(200, policy="random"))
    assert "Hints hardly change what the next player does." in render_conventions([report], title="t")
    assert 'class="lead"' not in page_of("too few", num_games=2)


def test_games_of_two_boards_in_one_place_are_refused(tmp_path: Path) -> None:
    for step, config in enumerate((LAPTOP, EnvConfig(preset="marshal-mini"))):
        write_episodes(tmp_path, step, [scripted_episodes(config, ["random"] * 2, [0])])
    games = [path.read_text() for path in sorted((tmp_path / "episodes").iterdir())]
    (tmp_path / "both.jsonl").write_text("".join(games))
    with pytest.raises(SettingsError, match="holds games of several boards"):
        write_conventions(tmp_path / "page.html", [tmp_path / "both.jsonl"])
