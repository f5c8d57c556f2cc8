"""`hanabi-grpo cross-play`: entries, cells that are played once, figures, tables and files."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from crossplay_parts import plan_of, play, save_checkpoint, summary_of
from hanabi_grpo.cli import app
from hanabi_grpo.client.lineups import SeatResolver, parse_lineup
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.base_models import group_cells
from hanabi_grpo.evaluation.crossplay.plan import make_plan, parse_entries
from hanabi_grpo.evaluation.crossplay.summary import Summary, all_sheets, summarise, summary_json
from hanabi_grpo.evaluation.evaluate import evaluate_lineup
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.report.cross_play_page import heat_map, render_cross_play, write_cross_play
from hanabi_grpo.runs.manifest import read_manifest, write_manifest
from hanabi_grpo.settings import Settings
from server_app import push_to, running_app
from toy_kuhn import KUHN
from training_runs import LAPTOP


@pytest.fixture(scope="module")
def bots(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return summary_of(tmp_path_factory.mktemp("bots"), "hint-bot", "random", "blind", tasks=20)


def test_entries_are_policy_specs_with_or_without_a_name() -> None:
    entries = parse_entries(["iggi", "mine=piers", " player_1@latest ", "served"], LAPTOP)
    assert [(entry.label, str(entry.ref)) for entry in entries] == [
        ("iggi", "iggi"),
        ("mine", "piers"),
        ("player_1@latest", "player_1@latest"),
        ("served", "served"),
    ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["iggi"], "1 entries: cross-play needs 2"),
        (["iggi"] * 65, "65 entries"),
        (["iggi", "piers,outer"], "an entry is one policy"),
        (["iggi", "a=iggi"], "entry 'iggi' is given 2 times; give each entry once"),
        (["a=iggi", "a=piers"], "name 'a' is given 2 times; give them different names"),
        (["iggi", "=piers"], "a name needs visible"),
        (["iggi", "a\x1bb=piers"], "a name needs visible"),
        (["iggi", "a="], "unknown"),
    ],
    ids=["one", "many", "list", "same policy", "same name", "no name", "invisible", "no policy"],
)
def test_entries_that_cannot_be_crossed_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_entries(texts, LAPTOP)


@pytest.mark.parametrize("command", ["cross-play", "adhoc"])
@pytest.mark.parametrize("board", ["frozen_lake", "sokoban"])
def test_a_game_of_one_player_has_nobody_to_pair(command: str, board: str) -> None:
    answer = CliRunner().invoke(app, [command, "random", "bfs", "--env", board, "--tasks", "4"])
    assert answer.exit_code == 2
    assert f"{board} has one player, so there is nobody to pair; use hanabi-grpo evaluate A B" in (
        " ".join(answer.stderr.split())
    )


def test_a_run_stands_for_the_checkpoint_that_is_newest_now(tmp_path: Path) -> None:
    run = tmp_path / "lr=3e-3"
    save_checkpoint(run, 10, [0.1, 0.2])
    newest = save_checkpoint(run, 20, [0.3, 0.4])
    entries = parse_entries(
        [str(run), f"{run}:player_1", f"old={run}/checkpoint-10", "iggi"], LAPTOP
    )
    assert [(entry.label, str(entry.ref)) for entry in entries] == [
        ("lr=3e-3/checkpoint-20", str(newest)),
        ("lr=3e-3/checkpoint-20:player_1", f"{newest}:player_1"),
        ("old", f"{run}/checkpoint-10"),
        ("iggi", "iggi"),
    ]


def test_every_ordered_pair_plays_the_same_tasks_without_rotation(tmp_path: Path) -> None:
    names = ("hint-bot", "random")
    summary = summary_of(tmp_path, *names, tasks=40)
    for i, first in enumerate(names):
        for j, second in enumerate(names):
            pair = parse_lineup(f"{first},{second}", 2)
            expected = evaluate_lineup(pair, LAPTOP, 40, rotate=False)
            assert tuple(summary.matrix.scores[i, j]) == expected.scores
            cell = summary.matrix.cell(i, j)
            assert cell == pytest.approx((expected.mean, expected.standard_error))
    assert summary.num_starts == 40, "laptop draws from all of its decks, so tasks are independent"


def test_where_one_wins_what_the_other_loses_a_cell_is_the_rows_return_in_every_seat(
    tmp_path: Path,
) -> None:
    poker = Setup(KUHN, KUHN.presets["kuhn"])
    summary = summary_of(tmp_path, "equilibrium-0", "random", tasks=100, setup=poker)
    means = summary.matrix.means
    assert means[0, 1] == pytest.approx(-means[1, 0])
    assert means[0, 1] > 0.1
    assert summary.cells["0-1"].seats == (("equilibrium-0", "random"), ("random", "equilibrium-0"))
    wins, draws, losses = summary.outcomes(0, 1)
    assert wins + draws + losses == pytest.approx(100)
    assert summary.outcomes(1, 0) == pytest.approx([losses, draws, wins])
    matrix, _, entries = all_sheets(summary)
    assert matrix.columns[0] == "return of \\ against"
    assert entries.columns == ("entry", "return against others", "worst with")
    assert [row[0] for row in entries.groups[0]] == ["equilibrium-0", "random"]
    data = summary_json(summary)
    assert "gap" not in data
    assert data["score"] == "return"
    assert data["score_range"] == (-2.0, 2.0)


def test_with_four_players_a_cell_is_one_newcomer_in_a_team(tmp_path: Path) -> None:
    setup = Setup(HANABI, EnvConfig(preset="full", players=4))
    summary = summary_of(tmp_path, "iggi", "random", setup=setup, tasks=2)
    teams = [tuple(map(str, lineup.refs)) for lineup in summary.plan.cells.values()]
    assert teams == [
        ("iggi", "iggi", "iggi", "iggi"),
        ("iggi", "random", "random", "random"),
        ("random", "iggi", "iggi", "iggi"),
        ("random", "random", "random", "random"),
    ]
    page = render_cross_play(summary)
    assert "Off the diagonal: the row in seat 0, the column in all other seats" in page
    assert "in seats 1 to 3" in page


def test_finished_tasks_are_not_played_again(tmp_path: Path) -> None:
    first = play(plan_of("iggi", "random"), tmp_path)
    ledgers = {path: path.read_text() for path in (tmp_path / "cells").iterdir()}
    assert len(ledgers) == 4
    again = play(plan_of("a=iggi", "random", "blind", tasks=9), tmp_path)
    assert len(again) == 9
    assert again["0-1"].scores[:8] == first["0-1"].scores
    for path, text in ledgers.items():
        longer_text = path.read_text()
        assert longer_text.startswith(text)
        assert longer_text.count("\n") == 1 + 9, "the key and the tasks"


def test_finished_tasks_hold_in_another_order_of_entries_and_in_a_part_of_them(
    tmp_path: Path,
) -> None:
    first = play(plan_of("iggi", "random", "blind"), tmp_path)
    ledgers = {path: path.read_text() for path in (tmp_path / "cells").iterdir()}
    again = play(plan_of("blind", "iggi"), tmp_path)
    assert again["0-1"].scores == first["2-0"].scores
    assert {path: path.read_text() for path in (tmp_path / "cells").iterdir()} == ledgers


@pytest.mark.parametrize(
    "options",
    [
        {"suite": "test"},
        {"setup": Setup(HANABI, EnvConfig(preset="marshal-mini"))},
    ],
    ids=["suite", "board"],
)
def test_finished_tasks_of_other_work_are_kept_beside(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    play(plan_of("iggi", "random"), tmp_path)
    ledgers = {path: path.read_text() for path in (tmp_path / "cells").iterdir()}
    play(plan_of("iggi", "random", **options), tmp_path)
    now = {path: path.read_text() for path in (tmp_path / "cells").iterdir()}
    assert len(now) == 8
    assert ledgers.items() < now.items()


def test_checkpoints_scripts_and_what_is_served_are_crossed_on_one_server(tmp_path: Path) -> None:
    own = save_checkpoint(tmp_path / "own", 5, [0.1, 0.2])
    copy = save_checkpoint(tmp_path / "copy", 5, [0.1, 0.2])
    with running_app() as server, RolloutClient(server.url) as client:
        push_to(client, server)
        served = Served(
            client=client, resolver=SeatResolver(client, Settings()), max_tokens=4, temperature=1.0
        )
        plan = plan_of(f"own={own}", "served", "iggi", tasks=20, served=served)
        cells = play(plan, tmp_path / "out", served)
        own_seats = plan.seats[0]
        assert cells["0-0"].seats[0] == own_seats
        assert cells["0-1"].seats == ((own_seats[0], "player_1@1"),)
        assert cells["2-2"].temperature is None
        assert cells["2-0"].temperature == 1.0
        # Another adapter under the same name and version is a different job.
        policies = cells["1-1"].policies
        assert policies["player_0"] != policies["player_1"]
        with pytest.raises(SettingsError, match="are the same players"):
            plan_of(f"own={own}", f"copy={copy}", served=served)


def test_the_tables_say_what_the_figures_are_and_markdown_escapes_names(bots: Summary) -> None:
    first, *others = bots.plan.entries
    entries = (replace(first, label="a|b\\c"), *others)
    summary = replace(bots, plan=replace(bots.plan, entries=entries))
    matrix, whole, _, ranked = all_sheets(summary)
    assert matrix.groups[0][0][0] == "a|b\\c"
    first_column = [row[1].split(" ± ")[0] for row in matrix.groups[0]]
    assert first_column == [f"{mean:.3f}" for mean in bots.matrix.means[:, 0]]
    gap = whole.groups[0][2]
    assert gap[0] == "self-play minus cross-play"
    assert float(gap[1]) == pytest.approx(bots.whole["gap"].mean, abs=5e-4)
    assert whole.columns[3] == "± over entries"
    means = [entry.cross_play.mean for entry in bots.entries]
    mean_of = dict(zip(summary.labels, means, strict=True))
    ranking = [row[0] for row in ranked.groups[0]]
    assert ranking == sorted(summary.labels, key=lambda label: -mean_of[label])
    random_row = next(row for row in ranked.groups[0] if row[0] == "random")
    assert "(blind)" in random_row[-1]
    lines = [line for sheet in (matrix, whole, ranked) for line in sheet.markdown().splitlines()]
    rows = [line for line in lines if line.startswith("| a\\|b\\\\c ")]
    num_bars = {len(re.findall(r"(?<!\\)\|", line)) for line in rows}
    assert num_bars == {5, 8}, "of the matrix and of the entries' table"


@pytest.fixture
def unfinished(bots: Summary) -> Summary:
    """Five of nine cells."""
    cells = {name: cell for name, cell in bots.cells.items() if name < "1-2"}
    return summarise(bots.plan, cells)


def test_an_unfinished_matrix_says_so_and_shows_what_is_there(
    bots: Summary, unfinished: Summary, tmp_path: Path
) -> None:
    texts = [text.get_text().split("\n")[0] for text in heat_map(unfinished).axes[0].texts]
    played = [f"{mean:.2f}" for mean in bots.matrix.means.ravel()[:5]]
    assert texts == [*played, "–", "–", "–", "–"]
    assert "not finished: 5 of 9 pairs" in render_cross_play(unfinished)
    json_file, picture, _ = write_cross_play(tmp_path, unfinished)
    data = json.loads(json_file.read_text())
    assert data["complete"] is False
    assert data["num_played"] == 5
    assert data["gap"]["mean"] is None
    assert data["cells"][2] == [None] * 3
    first_entry = data["entries"][0]
    assert first_entry["gap"]["mean"] is None
    assert first_entry["first_seat"]["mean"] is not None
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_a_file_that_cannot_be_written_is_named(bots: Summary, tmp_path: Path) -> None:
    (tmp_path / "cross_play.html").mkdir()
    with pytest.raises(SettingsError, match=r"cross_play\.html: cannot be written"):
        write_cross_play(tmp_path, bots)


def test_the_command_leaves_every_file_and_is_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    command = ["cross-play", "hint-bot", "me=random", "--preset", "laptop", "--out", str(out)]
    answer = CliRunner().invoke(app, [*command, "--tasks", "30", "--json"])
    assert answer.exit_code == 0, answer.output
    assert {path.name for path in out.iterdir()} == {
        "cells",
        "cross_play.json",
        "cross_play.html",
        "heat_map.png",
    }
    data = json.loads(answer.stdout)
    assert data == json.loads((out / "cross_play.json").read_text())
    assert data["preset"] == "laptop"
    assert data["num_tasks"] == 30
    assert data["temperature"] is None
    assert data["complete"] is True
    assert data["gap"]["error_entries"] is None, "two entries have no error over entries"
    cell = data["cells"][0][1]
    low, high = cell["interval_95"]
    assert cell["seats"] == ["hint-bot", "random"]
    assert low < cell["mean"] < high
    for name in ("cross_play.html", "cross_play.json"):
        assert str(tmp_path) not in (out / name).read_text()
    again = CliRunner().invoke(app, [*command, "--tasks", "30", "blind"])
    assert again.exit_code == 0
    for text in (
        "30 tasks of suite eval",
        "Self-play and cross-play",
        "best first",
        f"wrote {out}",
    ):
        assert text in again.output


def run_with_model(run: Path, value: float, model: str) -> Path:
    """Write a run whose checkpoint names its base model."""
    checkpoint = save_checkpoint(run, 10, [value, value])
    manifest = read_manifest(checkpoint)
    write_manifest(checkpoint, step=10, facts={**manifest.facts, "model": model})
    return run


def test_pairs_of_several_base_models_are_gathered_on_few_servers(tmp_path: Path) -> None:
    runs = {
        name: run_with_model(tmp_path / name, number / 10, model)
        for number, (name, model) in enumerate({"a": "A", "b": "B", "c": "C", "a2": "A"}.items())
    }
    texts = [f"{name}={folder}" for name, folder in runs.items()]
    entries = parse_entries([*texts, "iggi", "base"], LAPTOP)
    plan = make_plan(entries, LAPTOP, 4, suite="eval", served=None, resolve=False)
    groups = group_cells(plan, "A")
    # A server for each two models; what needs one, or none, is played on the first that has it.
    assert [group.model for group in groups] == [
        "player_0=A,B",
        "player_0=A,C",
        "player_0=B,C",
    ]
    cells = [cell for group in groups for cell in group.cells]
    assert sorted(cells) == sorted(plan.cells)
    by_model = {group.model: set(group.cells) for group in groups}
    assert {"0-1", "1-0", "0-0", "1-1", "3-1", "4-4", "5-0", "5-1"} <= by_model["player_0=A,B"]
    assert {"1-2", "2-1"} == by_model["player_0=B,C"]
    assert "2-2" in by_model["player_0=A,C"]
    one = make_plan(
        parse_entries([texts[0], texts[3], "iggi"], LAPTOP),
        LAPTOP,
        4,
        suite="eval",
        served=None,
        resolve=False,
    )
    [group] = group_cells(one, "Z")
    assert group.model == "A" and len(group.cells) == 9


def test_a_pair_with_more_base_models_than_seats_is_refused(tmp_path: Path) -> None:
    team = run_with_model(tmp_path / "team", 0.1, "player_0=A,player_1=B")
    other = run_with_model(tmp_path / "other", 0.2, "C")
    entries = parse_entries([f"team={team}", f"other={other}"], LAPTOP)
    plan = make_plan(entries, LAPTOP, 4, suite="eval", served=None, resolve=False)
    with pytest.raises(SettingsError, match=r"needs 3 base models \(A, B, C\)"):
        group_cells(plan, "A")
