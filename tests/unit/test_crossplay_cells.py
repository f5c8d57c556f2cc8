import json
from pathlib import Path
from typing import Any

import pytest

from crossplay_parts import plan_of, play, save_checkpoint, summary_of
from hanabi_grpo.client.lineups import SeatResolver, parse_line_up
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.kuhn import KUHN
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.entries import Entry, parse_entries, unit_of
from hanabi_grpo.evaluation.crossplay.summary import summary_json
from hanabi_grpo.evaluation.crossplay.tables import all_sheets
from hanabi_grpo.evaluation.evaluate import evaluate_line_up
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.refs import ScriptRef, parse_checkpoint
from server_app import push_to, running_app
from training_runs import LAPTOP


def test_entries_are_words_with_or_without_a_name() -> None:
    entries = parse_entries(["iggi", "mine=piers", " player_1@latest ", "served"], LAPTOP)
    assert [(entry.label, entry.word) for entry in entries] == [
        ("iggi", "iggi"),
        ("mine", "piers"),
        ("player_1@latest", "player_1@latest"),
        ("served", "served"),
    ]
    for texts, message in (
        ([], "0 entries: cross-play needs 2"),
        (["iggi"], "1 entries: cross-play needs 2"),
        (["iggi"] * 65, "65 entries"),
        (["iggi", "iggy"], "Did you mean 'iggi'"),
        (["iggi", "piers,outer"], "an entry is one word"),
        (["iggi", "human"], "hanabi-grpo play"),
        (["iggi", "iggi"], "'iggi' is there 2 times"),
        (["iggi", "a=iggi"], "entry 'iggi' is there 2 times; give each entry once"),
        (["a=iggi", "a=piers"], "name 'a' is there 2 times; name them apart"),
        (["iggi", "=piers"], "a name has 1 to 80"),
        (["iggi", "a\x1bb=piers"], "a name has 1 to 80"),
        (["iggi", "x" * 81 + "=piers"], "a name has 1 to 80"),
        (["iggi", "nowhere/at/all"], "no such folder"),
        (["iggi", ""], "unknown"),
        (["iggi", "a="], "unknown"),
    ):
        with pytest.raises(SettingsError, match=message):
            parse_entries(texts, LAPTOP)


def test_a_run_stands_for_the_checkpoint_that_is_newest_now(tmp_path: Path) -> None:
    run = tmp_path / "lr=3e-3"
    save_checkpoint(run, 10, [0.1, 0.2])
    newest = save_checkpoint(run, 20, [0.3, 0.4])
    entries = parse_entries([str(run), f"{run}:player_1", f"old={run}/checkpoint-10", "iggi"], LAPTOP)
    assert [(entry.label, entry.word) for entry in entries] == [
        ("lr=3e-3/checkpoint-20", str(newest)),
        ("lr=3e-3/checkpoint-20:player_1", f"{newest}:player_1"),
        ("old", f"{run}/checkpoint-10"),
        ("iggi", "iggi"),
    ]
    assert [entry.run for entry in entries] == [run, run, run, None]


def test_the_error_is_over_training_seeds_only_where_every_entry_is_a_run_of_its_own() -> None:
    words = ("a/checkpoint-5", "a/checkpoint-9", "b/checkpoint-5")
    a, later_a, b = (Entry(label=word, ref=parse_checkpoint(f"runs/{word}")) for word in words)
    bot = Entry(label="iggi", ref=ScriptRef(name="iggi"))
    assert unit_of([a, b]) == "training seeds"
    assert unit_of([a, later_a, b]) == unit_of([a, b, bot]) == "entries"


def test_every_ordered_pair_plays_the_same_deals_without_rotation(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, "hint-bot", "random", deals=40)
    for i, first in enumerate(("hint-bot", "random")):
        for j, second in enumerate(("hint-bot", "random")):
            alone = evaluate_line_up(parse_line_up(f"{first},{second}", 2), LAPTOP, 40, rotate=False)
            assert tuple(summary.matrix.scores[i, j]) == alone.scores
            assert summary.matrix.cell(i, j) == pytest.approx((alone.mean, alone.standard_error))
    assert summary.num_starts == 40, "laptop deals all of its decks, so its deals are independent"


def test_where_one_wins_what_the_other_loses_a_cell_is_the_rows_return_in_every_seat(tmp_path: Path) -> None:
    poker = Setup(KUHN, KUHN.presets["kuhn"])
    summary = summary_of(tmp_path, "equilibrium-0", "random", deals=100, setup=poker)
    means = summary.matrix.means
    assert means[0, 1] == pytest.approx(-means[1, 0]) and means[0, 1] > 0.1
    assert summary.cells["0-1"].seats == (("equilibrium-0", "random"), ("random", "equilibrium-0"))
    matrix, entries = all_sheets(summary)
    assert matrix.columns[0] == "return of \\ against"
    assert entries.columns == ("entry", "return against others", "worst with")
    assert [row[0] for row in entries.groups[0]] == ["equilibrium-0", "random"]
    data = summary_json(summary)
    assert "gap" not in data and (data["score"], data["score_range"]) == ("return", (-2.0, 2.0))


def test_with_four_players_a_cell_is_one_newcomer_in_a_team() -> None:
    plan = plan_of("iggi", "piers", setup=Setup(HANABI, EnvConfig(preset="full", players=4)), deals=2)
    assert [cell.line_up.words for cell in plan.cells] == [
        ("iggi",) * 4,
        ("iggi", "piers", "piers", "piers"),
        ("piers", "iggi", "iggi", "iggi"),
        ("piers",) * 4,
    ]


def test_finished_cells_are_not_played_again_and_those_of_other_work_are_refused(tmp_path: Path) -> None:
    first = play(plan_of("iggi", "random"), tmp_path)
    assert first.begun == ["0-0", "0-1", "1-0", "1-1"]
    again = play(plan_of("a=iggi", "random"), tmp_path)
    assert again.begun == [] and again.cells == first.cells
    other: dict[str, Any]
    for texts, other, message in (
        (["random", "iggi"], {}, r"0-0\.json: was played otherwise \(seats: there .*iggi.*, here .*random"),
        (["iggi", "random"], {"deals": 9}, "deals: there 8, here 9"),
        (["iggi", "random"], {"suite": "test"}, "suite: there eval, here test"),
        (["iggi", "random"], {"setup": Setup(HANABI, EnvConfig(preset="marshal-mini"))}, "spec_hash: there"),
        (
            ["iggi", "random"],
            {"setup": Setup(HANABI, LAPTOP.config.model_copy(update={"max_turns": 3}))},
            "env_config: there",
        ),
    ):
        with pytest.raises(SettingsError, match=message):
            play(plan_of(*texts, **other), tmp_path)
    grown = play(plan_of("iggi", "random", "blind"), tmp_path)
    assert grown.begun == ["0-2", "1-2", "2-0", "2-1", "2-2"]
    (tmp_path / "cells" / "0-0.json").write_text(
        json.dumps(json.loads((tmp_path / "cells/0-0.json").read_text()) | {"key": 3})
    )
    with pytest.raises(SettingsError, match="not a cell of a cross-play"):
        play(plan_of("iggi", "random"), tmp_path)


def test_an_interrupted_cell_goes_on_from_its_finished_deals(tmp_path: Path) -> None:
    plan = plan_of("iggi", "random", deals=120)
    seen: list[int] = []

    def stop(done: int) -> None:
        seen.append(done)
        if len(seen) == 6:  # in the second cell, after its first 50 deals
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(plan, tmp_path / "cut", progress=stop)
    left = sorted(path.name for path in (tmp_path / "cut" / "cells").iterdir())
    assert left == ["0-0.json", "0-1.part.jsonl"]
    counts: list[int] = []
    rest = play(plan, tmp_path / "cut", progress=counts.append)
    assert rest.begun == ["0-1", "1-0", "1-1"] and counts[0] == 50
    assert rest.cells == play(plan, tmp_path / "whole").cells
    assert not list((tmp_path / "cut" / "cells").glob("*.part.jsonl"))


def test_checkpoints_scripts_and_what_is_served_are_crossed_on_one_server(tmp_path: Path) -> None:
    own = save_checkpoint(tmp_path / "own", 5, [0.1, 0.2])
    with running_app() as app, RolloutClient(app.url) as client:
        push_to(client, app)
        served = Served(client=client, resolver=SeatResolver(client, Settings()), max_tokens=4, temperature=1.0)
        plan = plan_of(f"own={own}", "served", "iggi", deals=20, served=served)
        played = play(plan, tmp_path / "out", served)
        assert played.cells["0-0"].seats[0] == plan.seats[0]
        assert played.cells["0-1"].seats == ((plan.seats[0][0], "player_1@1"),)
        assert played.cells["2-2"].temperature is None and played.cells["2-0"].temperature == 1.0
        # Another adapter under the same name and version is other work.
        key = json.loads((tmp_path / "out" / "cells" / "1-1.json").read_text())["key"]
        assert key["policies"]["player_0"] != key["policies"]["player_1"]
        with pytest.raises(SettingsError, match="are the same players"):
            plan_of(f"own={own}", f"copy={save_checkpoint(tmp_path / 'copy', 5, [0.1, 0.2])}", served=served)
