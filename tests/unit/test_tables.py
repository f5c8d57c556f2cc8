"""Tables of the commands at the widths of terminals: names stay, and no figure is cut."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.evaluation.exploit_results import exploit_sheet
from hanabi_grpo.evaluation.sheets import Sheet
from hanabi_grpo.settings import load_settings, settings_table
from hanabi_grpo.terminal import ColumnKind, FittedTable
from training_runs import made_run

WIDTHS = (80, 120)
OLD_RUN = Path(__file__).parents[1] / "data" / "version-0.2" / "run"
BOARD = ("--preset", "laptop", "--tasks", "8")
CUT = re.compile("…|[0-9]\\.\\s|±\\s*[│┃]|\\bto\\s*[│┃]")
"""A figure that was cut or broken."""


def run_at(width: int, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    """Return what a command prints where COLUMNS says so, with a piped output."""
    monkeypatch.setenv("COLUMNS", str(width))
    answer = CliRunner().invoke(app, list(map(str, arguments)))
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def printed(table: FittedTable | Sheet, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(table.rich() if isinstance(table, Sheet) else table)
    return console.export_text()


def table_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line[:1] in "┏┃┡│├└"]


def check_tables(text: str, width: int, names: tuple[str, ...]) -> None:
    """Check that tables fit, begin with names in each part, and cut no figure."""
    lines = table_lines(text)
    assert lines
    for line in lines:
        assert len(line) <= width, line
        # A line that goes past the edge loses its last corner.
        assert line[-1] in "┓┃┩│┤┘", line
        if line[0] == "│":
            assert not CUT.search(line), line
    for name in names:
        rows = [line for line in lines if re.match(rf"│ {re.escape(name)}", line)]
        assert rows, name


@pytest.mark.parametrize("width", WIDTHS)
def test_evaluate_names_its_rows(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = run_at(width, monkeypatch, "evaluate", "iggi,piers", "random", *BOARD)
    check_tables(text, width, ("iggi,piers", "random", "blind", "hint-bot", "best known"))
    assert "unparsable/game" in text
    assert "perfect" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_cross_play_names_its_rows(
    width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entries = ("iggi", "piers", "hint-bot", "random", "outer", "blind")
    text = run_at(width, monkeypatch, "cross-play", *entries, *BOARD, "--out", tmp_path)
    check_tables(text, width, entries)
    assert "worst with" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_report_names_its_rows(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = run_at(width, monkeypatch, "report", OLD_RUN, "--alarms")
    check_tables(text, width, ("blind", "random", "hint-bot", "outputs", "best known"))
    assert "perfect" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_teams_and_compare_name_their_rows(
    width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    teams = run_at(width, monkeypatch, "teams", "vote=solver", "debate=solver", "--tasks", 8)
    check_tables(teams, width, ("solver",))
    other = made_run(tmp_path / "other", [1.0, 1.5], settings={"HANABI_PRESET": "laptop"})
    compare = run_at(width, monkeypatch, "compare", f"one={OLD_RUN}", f"another={other}")
    check_tables(compare, width, ("one", "another"))


@pytest.mark.parametrize("width", WIDTHS)
def test_view_obeys_columns_and_names_its_games(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = run_at(width, monkeypatch, "view", OLD_RUN)
    check_tables(text, width, ("0", "1"))
    game = run_at(width, monkeypatch, "view", OLD_RUN, "--game", 0)
    panel = next(line for line in game.splitlines() if line.startswith("╭"))
    assert len(panel) == width


@pytest.mark.parametrize("width", WIDTHS)
def test_settings_and_exploit_name_their_rows(width: int) -> None:
    settings = printed(
        settings_table(load_settings({"MODEL": "models/" + 40 * "long-name-"})), width
    )
    check_tables(settings, width, ("MODEL", "HANABI_GPU_MEMORY_UTILIZATION"))
    row = {
        "exploitability": 0.20711,
        "nash_conv": 0.41422,
        "best_responses": [0.1, 0.3],
        "values": [-0.05, 0.05],
        "illegal": [0.0, 0.01],
    }
    names = ("served", "outputs-of-a-long-name")
    rows = {names[0]: row, f"{names[1]}, average of 12 checkpoints": row}
    exploit = printed(exploit_sheet("exploit", rows, ("first", "second")), width)
    check_tables(exploit, width, names)
    assert "0.2071" in exploit


def test_columns_without_room_follow_below_with_the_names_again() -> None:
    kinds = [ColumnKind.NAME] + 3 * [ColumnKind.FIGURE]
    table = FittedTable("scores", ("lineup", "a", "b", "c"), kinds, caption="A note.")
    table.add_row("iggi", "1.000 ± 0.100", "2.000 ± 0.100", "3.000 ± 0.100")
    lines = [line.rstrip() for line in printed(table, 44).splitlines()]
    assert lines[0] == "scores"
    assert "│ iggi   │ 1.000 ± 0.100 │ 2.000 ± 0.100 │" in lines
    assert "│ iggi   │ 3.000 ± 0.100 │" in lines
    assert lines[-1] == "A note."
    assert [line.strip() for line in lines].count("scores") == 1


def test_a_long_name_is_broken_and_the_figure_beside_it_is_whole() -> None:
    table = FittedTable("", ("lineup", "score"), (ColumnKind.NAME, ColumnKind.FIGURE))
    table.add_row("outputs/" + 30 * "run", "2.659 ± 0.041")
    text = printed(table, 40)
    assert "2.659 ± 0.041 │" in text
    check_tables(text, 40, ("outputs/run",))
