import json
from pathlib import Path

import pytest

from crossplay_parts import LAPTOP, plan_of, play, save_checkpoint, summary_of
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.summary import summarise, summary_json
from hanabi_grpo.evaluation.evaluate import evaluate_line_up
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.rollout.lineups import parse_line_up
from hanabi_grpo.rollout.resolver import SeatResolver
from hanabi_grpo.settings import Settings
from server_app import push_to, running_app


def served_by(client: RolloutClient, temperature: float = 1.0) -> Served:
    return Served(client=client, resolver=SeatResolver(client, Settings()), max_tokens=4, temperature=temperature)


def test_every_ordered_pair_plays_the_same_deals_without_rotation(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, "hint-bot", "random", deals=40)
    for i, first in enumerate(("hint-bot", "random")):
        for j, second in enumerate(("hint-bot", "random")):
            alone = evaluate_line_up(parse_line_up(f"{first},{second}", 2), LAPTOP, 40, rotate=False)
            assert tuple(summary.matrix.scores[i, j]) == alone.scores
            assert summary.matrix.cell(i, j) == pytest.approx((alone.mean, alone.standard_error))
    assert summary.num_decks == 40, "laptop deals all of its decks, so its deals are independent"


def test_with_four_players_a_cell_is_one_newcomer_in_a_team(tmp_path: Path) -> None:
    plan = plan_of("iggi", "piers", config=EnvConfig(preset="full", players=4), deals=2)
    assert [cell.line_up.words for cell in plan.cells] == [
        ("iggi",) * 4,
        ("iggi", "piers", "piers", "piers"),
        ("piers", "iggi", "iggi", "iggi"),
        ("piers",) * 4,
    ]


def test_finished_cells_are_not_played_again(tmp_path: Path) -> None:
    first = play(plan_of("iggi", "random"), tmp_path)
    assert first.begun == ["0-0", "0-1", "1-0", "1-1"]
    again = play(plan_of("a=iggi", "random"), tmp_path)
    assert again.begun == [] and again.cells == first.cells
    grown = play(plan_of("iggi", "random", "blind"), tmp_path)
    assert grown.begun == ["0-2", "1-2", "2-0", "2-1", "2-2"]


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["random", "iggi"], {}, r"0-0\.json: was played otherwise \(seats: there .*iggi.*, here .*random"),
        (["iggi", "random"], {"deals": 9}, "deals: there 8, here 9"),
        (["iggi", "random"], {"suite": "test"}, "suite: there eval, here test"),
        (["iggi", "random"], {"config": EnvConfig(preset="marshal-mini")}, "spec_hash: there"),
        (["iggi", "random"], {"config": LAPTOP.model_copy(update={"max_turns": 3})}, "env_config: there"),
    ],
)
def test_cells_of_other_work_are_refused(tmp_path: Path, texts: list[str], options: dict, message: str) -> None:  # type: ignore[type-arg]
    play(plan_of("iggi", "random"), tmp_path)
    with pytest.raises(SettingsError, match=message):
        play(plan_of(*texts, **options), tmp_path)


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
    whole = play(plan, tmp_path / "whole")
    assert rest.cells == whole.cells
    assert not list((tmp_path / "cut" / "cells").glob("*.part.jsonl"))


def test_adapters_of_each_player_are_also_played_in_the_other_seat(tmp_path: Path) -> None:
    own = save_checkpoint(tmp_path / "own", 5, [0.1, 0.2])
    shared = save_checkpoint(tmp_path / "shared", 5, [0.3], shared=True)
    with running_app() as app, RolloutClient(app.url) as client:
        push_to(client, app)
        served = served_by(client)
        texts = [f"own={own}", f"shared={shared}", "served", "iggi"]
        plan = plan_of(*texts, deals=30, served=served)
        assert list(plan.no_swap) == ["shared"]
        assert [cell.name for cell in plan.cells[16:]] == [
            *("swap-0-1-0", "swap-0-0-0", "swap-0-1-1"),
            *("swap-2-1-0", "swap-2-0-0", "swap-2-1-1"),
        ]
        played = play(plan, tmp_path / "out", served)
        assert played.cells["0-0"].result.seats[0] == plan.seats[0]
        assert played.cells["swap-0-1-0"].result.seats[0] == plan.seats[0][::-1]
        assert played.cells["swap-2-1-1"].result.seats == (("player_1@1", "player_1@1"),)
        assert played.cells["3-3"].result.temperature is None and played.cells["3-0"].result.temperature == 1.0
        summary = summarise(plan, played.cells)
        [mine, theirs] = summary.swaps
        assert (mine.label, theirs.label) == ("own", "served")
        swapped = next(team for team in mine.teams if team.order == (1, 0))
        straight, other = (played.cells[name].result for name in ("0-0", "swap-0-1-0"))
        assert swapped.minus_straight.mean == pytest.approx(other.mean - straight.mean)
        assert other.scores != straight.scores, "other adapters must play in other seats"
        data = summary_json(summary)
        assert data["seat_swaps"][0]["teams"][0]["adapters"] == ["player_1", "player_0"]
        assert data["no_seat_swap"] == {"shared": plan.no_swap["shared"]}
        # Another adapter under the same name and version is other work.
        key = json.loads((tmp_path / "out" / "cells" / "2-2.json").read_text())["key"]
        assert key["policies"]["player_0"] != key["policies"]["player_1"]
