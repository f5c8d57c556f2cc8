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
from hanabi_grpo.evaluation.crossplay.plan import parse_entries
from hanabi_grpo.evaluation.crossplay.summary import Summary, all_sheets, summarise, summary_json
from hanabi_grpo.evaluation.evaluate import evaluate_lineup
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.report.cross_play_page import heat_map, render_cross_play, write_cross_play
from hanabi_grpo.settings import Settings
from server_app import push_to, running_app
from toy_kuhn import KUHN
from training_runs import LAPTOP


@pytest.fixture(scope="module")
def bots(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return summary_of(tmp_path_factory.mktemp("bots"), "hint-bot", "random", "blind", tasks=20)


def test_entries_are_words_with_or_without_a_name() -> None:
    entries = parse_entries(["iggi", "mine=piers", " player_1@latest ", "served"], LAPTOP)
    assert [(entry.label, str(entry.ref)) for entry in entries] == [
        ("iggi", "iggi"),
        ("mine", "piers"),
        ("player_1@latest", "player_1@latest"),
        ("served", "served"),
    ]
    for texts, message in (
        (["iggi"], "1 entries: cross-play needs 2"),
        (["iggi"] * 65, "65 entries"),
        (["iggi", "piers,outer"], "an entry is one policy"),
        (["iggi", "a=iggi"], "entry 'iggi' is there 2 times; give each entry once"),
        (["a=iggi", "a=piers"], "name 'a' is there 2 times; name them apart"),
        (["iggi", "=piers"], "a name has visible"),
        (["iggi", "a\x1bb=piers"], "a name has visible"),
        (["iggi", "a="], "unknown"),
    ):
        with pytest.raises(SettingsError, match=message):
            parse_entries(texts, LAPTOP)


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


def test_every_ordered_pair_plays_the_same_deals_without_rotation(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, "hint-bot", "random", tasks=40)
    for i, first in enumerate(("hint-bot", "random")):
        for j, second in enumerate(("hint-bot", "random")):
            alone = evaluate_lineup(parse_lineup(f"{first},{second}", 2), LAPTOP, 40, rotate=False)
            assert tuple(summary.matrix.scores[i, j]) == alone.scores
            assert summary.matrix.cell(i, j) == pytest.approx((alone.mean, alone.standard_error))
    assert summary.num_starts == 40, "laptop tasks all of its decks, so its tasks are independent"


def test_where_one_wins_what_the_other_loses_a_cell_is_the_rows_return_in_every_seat(
    tmp_path: Path,
) -> None:
    poker = Setup(KUHN, KUHN.presets["kuhn"])
    summary = summary_of(tmp_path, "equilibrium-0", "random", tasks=100, setup=poker)
    means = summary.matrix.means
    assert means[0, 1] == pytest.approx(-means[1, 0]) and means[0, 1] > 0.1
    assert summary.cells["0-1"].seats == (("equilibrium-0", "random"), ("random", "equilibrium-0"))
    wins, draws, losses = summary.outcomes(0, 1)
    assert wins + draws + losses == pytest.approx(100) and summary.outcomes(1, 0) == pytest.approx(
        [losses, draws, wins]
    )
    matrix, entries = all_sheets(summary)
    assert matrix.columns[0] == "return of \\ against"
    assert entries.columns == ("entry", "return against others", "worst with")
    assert [row[0] for row in entries.groups[0]] == ["equilibrium-0", "random"]
    data = summary_json(summary)
    assert "gap" not in data and (data["score"], data["score_range"]) == ("return", (-2.0, 2.0))


def test_with_four_players_a_cell_is_one_newcomer_in_a_team(tmp_path: Path) -> None:
    setup = Setup(HANABI, EnvConfig(preset="full", players=4))
    summary = summary_of(tmp_path, "iggi", "random", setup=setup, tasks=2)
    assert [lineup.words for lineup in summary.plan.cells.values()] == [
        ("iggi",) * 4,
        ("iggi", "random", "random", "random"),
        ("random", "iggi", "iggi", "iggi"),
        ("random",) * 4,
    ]
    page = render_cross_play(summary)
    assert (
        "one newcomer, the row, in seat 0 of a team of the column" in page
        and "in seats 1 to 3" in page
    )


def test_finished_deals_are_not_played_again_and_those_of_other_work_are_refused(
    tmp_path: Path,
) -> None:
    first = play(plan_of("iggi", "random"), tmp_path)
    ledgers = {path: path.read_text() for path in (tmp_path / "cells").iterdir()}
    assert sorted(path.name for path in ledgers) == [
        "0-0.jsonl",
        "0-1.jsonl",
        "1-0.jsonl",
        "1-1.jsonl",
    ]
    again = play(plan_of("a=iggi", "random", "blind", tasks=9), tmp_path)
    assert again["0-1"].scores[:8] == first["0-1"].scores and len(again) == 9
    assert all(
        path.read_text().startswith(text) and path.read_text().count("\n") == 10
        for path, text in ledgers.items()
    )
    other: dict[str, Any]
    for texts, other, message in (
        (
            ["random", "iggi"],
            {},
            r"0-0\.jsonl: holds .* other work .*seats: there .*iggi.*, here .*random",
        ),
        (["iggi", "random"], {"suite": "test"}, "suite: there eval, here test"),
        (
            ["iggi", "random"],
            {"setup": Setup(HANABI, EnvConfig(preset="marshal-mini"))},
            "spec_hash: there",
        ),
    ):
        with pytest.raises(SettingsError, match=message):
            play(plan_of(*texts, **other), tmp_path)


def test_checkpoints_scripts_and_what_is_served_are_crossed_on_one_server(tmp_path: Path) -> None:
    own = save_checkpoint(tmp_path / "own", 5, [0.1, 0.2])
    with running_app() as app, RolloutClient(app.url) as client:
        push_to(client, app)
        served = Served(
            client=client, resolver=SeatResolver(client, Settings()), max_tokens=4, temperature=1.0
        )
        plan = plan_of(f"own={own}", "served", "iggi", tasks=20, served=served)
        played = play(plan, tmp_path / "out", served)
        assert played["0-0"].seats[0] == plan.seats[0]
        assert played["0-1"].seats == ((plan.seats[0][0], "player_1@1"),)
        assert played["2-2"].temperature is None and played["2-0"].temperature == 1.0
        # Another adapter under the same name and version is other work.
        assert played["1-1"].policies["player_0"] != played["1-1"].policies["player_1"]
        with pytest.raises(SettingsError, match="are the same players"):
            plan_of(
                f"own={own}",
                f"copy={save_checkpoint(tmp_path / 'copy', 5, [0.1, 0.2])}",
                served=served,
            )


def test_the_tables_say_what_the_figures_are_and_markdown_escapes_names(bots: Summary) -> None:
    entries = (replace(bots.plan.entries[0], label="a|b\\c"), *bots.plan.entries[1:])
    summary = replace(bots, plan=replace(bots.plan, entries=entries))
    matrix, whole, ranked = all_sheets(summary)
    assert matrix.groups[0][0][0] == "a|b\\c"
    assert [row[1].split(" ± ")[0] for row in matrix.groups[0]] == [
        f"{mean:.3f}" for mean in bots.matrix.means[:, 0]
    ]
    gap = whole.groups[0][2]
    assert gap[0] == "self-play minus cross-play" and float(gap[1]) == pytest.approx(
        bots.whole["gap"].mean, abs=5e-4
    )
    assert whole.columns[3] == "± over entries"
    means = {
        label: one.cross_play.mean for one, label in zip(bots.entries, summary.labels, strict=True)
    }
    assert [row[0] for row in ranked.groups[0]] == sorted(
        summary.labels, key=lambda label: -means[label]
    )
    assert "(blind)" in next(row for row in ranked.groups[0] if row[0] == "random")[-1]
    lines = [line for sheet in (matrix, whole, ranked) for line in sheet.markdown().splitlines()]
    rows = [line for line in lines if line.startswith("| a\\|b\\\\c ")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {5, 8}


def test_an_unfinished_matrix_says_so_and_shows_what_is_there(
    bots: Summary, tmp_path: Path
) -> None:
    partial = summarise(
        bots.plan, {name: cell for name, cell in bots.cells.items() if name < "1-2"}
    )
    texts = [text.get_text().split("\n")[0] for text in heat_map(partial).axes[0].texts]
    assert texts == [f"{mean:.2f}" for mean in bots.matrix.means.ravel()[:5]] + ["–"] * 4
    assert "not finished: 5 of 9 pairs" in render_cross_play(partial)
    files = write_cross_play(tmp_path, partial)
    data = json.loads(files[0].read_text())
    assert (data["complete"], data["num_played"], data["gap"]["mean"], data["cells"][2]) == (
        False,
        5,
        None,
        [None] * 3,
    )
    assert (
        data["entries"][0]["gap"]["mean"] is None
        and data["entries"][0]["first_seat"]["mean"] is not None
    )
    assert files[1].read_bytes()[:4] == b"\x89PNG"
    files[2].unlink()
    files[2].mkdir()
    with pytest.raises(SettingsError, match=r"cross_play\.html: cannot be written"):
        write_cross_play(tmp_path, bots)


def test_the_command_leaves_every_file_and_is_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    words = [
        "cross-play",
        "hint-bot",
        "me=random",
        "--preset",
        "laptop",
        "--out",
        str(out),
        "--tasks",
    ]
    answer = CliRunner().invoke(app, [*words, "30", "--json"])
    assert answer.exit_code == 0, answer.output
    assert {path.name for path in out.iterdir()} == {
        "cells", "cross_play.json", "cross_play.html", "heat_map.png"
    }  # fmt: skip
    data = json.loads(answer.stdout)
    assert data == json.loads((out / "cross_play.json").read_text())
    assert (data["preset"], data["num_tasks"], data["temperature"], data["complete"]) == (
        "laptop",
        30,
        None,
        True,
    )
    assert data["gap"]["error_entries"] is None, "two entries have no error over entries"
    cell = data["cells"][0][1]
    assert (
        cell["seats"] == ["hint-bot", "random"]
        and cell["interval_95"][0] < cell["mean"] < cell["interval_95"][1]
    )
    assert (
        str(tmp_path)
        not in (out / "cross_play.html").read_text() + (out / "cross_play.json").read_text()
    )
    again = CliRunner().invoke(app, [*words, "30", "blind"])
    assert again.exit_code == 0
    for text in (
        "30 tasks of suite eval",
        "Self-play and cross-play",
        "best first",
        f"wrote {out}",
    ):
        assert text in again.output
