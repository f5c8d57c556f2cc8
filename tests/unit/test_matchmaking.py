"""HANABI_PARTNER_DRAW=worst: what is remembered of partners, and how likely each is drawn."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from hanabi_grpo.runs.manifest import read_manifest
from hanabi_grpo.settings.partners import draw, own_seats, parse_pool
from hanabi_grpo.training.checkpoint import PARTNERS
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.matchmaking import RECENT_TASKS, PartnerRecord
from hanabi_grpo.types import Episode
from loop_parts import LAPTOP, RunOfATest, written_games
from made_games import made_episode

POOL = parse_pool(("iggi", "player_1=piers*3"), 2)
NAMES = {"iggi": "iggi", "piers": "piers"}
SPECS = {"iggi": "iggi", "piers": "piers"}
OWN = own_seats(2, ("player_0", "player_1"), 7)
SETUPS = {LAPTOP.spec.hash: LAPTOP}


def group(*seats: str, scores: Sequence[int]) -> list[Episode]:
    """Return a task's games on a board of at most 4 points."""
    return [made_episode(seats=seats, score=score, spec_hash=LAPTOP.spec.hash) for score in scores]


def after(record: PartnerRecord, step: int, *groups: list[Episode]) -> PartnerRecord:
    return record.with_games(groups, SETUPS, step=step, own_seats=OWN, names=NAMES, specs=SPECS)


def test_a_partner_is_drawn_by_its_weight_and_by_how_much_is_missing_to_the_greatest_score() -> (
    None
):
    # Nothing is known: iggi in either seat by 1/2 each, piers, of weight 3, by 6/8 in its only one.
    assert PartnerRecord().chances(POOL, 2, 2.0) == [1 / 8, 1 / 8, 3 / 8, 3 / 8]
    record = after(
        PartnerRecord(),
        7,
        group("iggi", OWN[1], scores=(4, 4)),
        group(OWN[0], "iggi", scores=(1, 3)),
        group(OWN[0], "piers", scores=(3, 3)),
        group(*OWN, scores=(0, 0)),
    )
    assert record.recent == {
        "iggi player_0": [(7, 1.0)],
        "iggi player_1": [(7, 0.5)],
        "piers player_1": [(7, 0.75)],
    }
    assert record.games == {"iggi": 4, "piers": 2}
    # (1 - 1)^2, (1 - .5)^2, 3 * (1 - .75)^2 twice: a fixed seat counts as both.
    parts = [0.0, 0.25, 3 / 16, 3 / 16]
    expected = [part / sum(parts) for part in parts]
    assert record.chances(POOL, 2, 2.0) == pytest.approx(expected)
    figures = record.figures(POOL, 2, 2.0)
    assert figures == pytest.approx(
        {"partners/iggi/chance": expected[1], "partners/piers/chance": 2 * expected[2]}
    )
    # Without a power, and where nothing is left to win, the weights decide.
    assert record.chances(POOL, 2, 0.0) == [1 / 8, 1 / 8, 3 / 8, 3 / 8]
    perfect = PartnerRecord(
        recent={key: [(0, 1.0)] for key in ("iggi player_0", "iggi player_1", "piers player_1")}
    )
    assert perfect.chances(POOL, 2, 2.0) == [1 / 8, 1 / 8, 3 / 8, 3 / 8]


def test_draws_follow_the_chances_and_are_the_same_for_the_same_task() -> None:
    chances = [0.0, 0.25, 0.5, 0.25]

    def pair(task: int) -> str:
        drawn = draw(POOL, task, share=1, seed=3, num_players=2, chances=chances)
        assert drawn is not None
        return f"{drawn.partner.spec} {drawn.seat}"

    counts = Counter(map(pair, range(4000)))
    assert set(counts) == {"iggi 1", "piers 1"}
    assert abs(counts["iggi 1"] - 1000) < 120
    assert [pair(task) for task in range(40)] == [pair(task) for task in range(40)]


def test_the_newest_tasks_count_and_those_of_the_step_in_progress_do_not() -> None:
    record = PartnerRecord()
    for step in range(RECENT_TASKS + 10):
        record = after(record, step, group(OWN[0], "iggi", scores=(step % 5,)))
    last = RECENT_TASKS + 9
    seen = record.before(last + 1).recent["iggi player_1"]
    assert [step for step, _ in seen] == list(range(10, last + 1))
    # With overlap the draws of the next step look at one step fewer, and at as many tasks.
    seen = record.before(last).recent["iggi player_1"]
    assert [step for step, _ in seen] == list(range(9, last))
    assert PartnerRecord.from_json(json.loads(json.dumps(record.to_json()))).to_json() == (
        record.to_json()
    )


def test_games_of_replacements_count_as_played_but_not_as_results() -> None:
    own = group(OWN[0], "iggi", scores=(1, 2))
    replacement = group(OWN[0], "iggi", scores=(3, 3))
    record = PartnerRecord().with_games(
        [own],
        SETUPS,
        step=0,
        own_seats=OWN,
        names={"iggi": "iggi"},
        specs={},
        further=[replacement, []],
    )
    assert record.games == {"iggi": 4}
    assert len(record.recent["iggi player_1"]) == 1


def games_with_iggi(step: int) -> list[list[Episode]]:
    """Return a step's games, the first group of which has iggi in seat 1, ever better."""
    first, second = written_games(step)
    seats = (own_seats(2, ("player_0", "player_1"), step)[0], "iggi")
    with_iggi = []
    for number, episode in enumerate(first):
        # What a partner says was not sampled by the run.
        turns = [turn for turn in episode.turns if turn.player == 0]
        game = made_episode(
            *turns, seats=seats, score=step, seed=0, game=number, spec_hash=episode.spec_hash
        )
        with_iggi.append(game)
    return [with_iggi, second]


def test_a_resumed_run_draws_partners_by_the_record_of_the_whole_one(tmp_path: Path) -> None:
    settings = {
        "partners": ("iggi",),
        "partner_draw": "worst",
        "games": games_with_iggi,
        "num_steps": 4,
        "advantage": "baseline",
    }
    whole = RunOfATest(tmp_path / "whole", **settings)
    whole.link.partner_names["iggi"] = "iggi"
    whole.events.save_every = 1
    train(whole.run)
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    resumed = RunOfATest(tmp_path / "resumed", **settings, resume_folder=checkpoint, first_step=2)
    resumed.link.partner_names["iggi"] = "iggi"
    train(resumed.run)
    # Both before the games and before further tasks of each step.
    assert [record.to_json() for record in resumed.link.partner_records] == [
        record.to_json() for record in whole.link.partner_records[4:]
    ]
    assert whole.link.partner_records[4].recent == {"iggi player_1": [(0, 0.0), (1, 0.25)]}
    assert whole.run.state.partners.to_json() == resumed.run.state.partners.to_json()
    assert json.loads((checkpoint / "trainer" / PARTNERS).read_text())["games"] == {"iggi": 4}
    assert read_manifest(checkpoint).facts["trained_with"] == {"iggi": 4}
    assert [row["partners/iggi/chance"] for row in whole.events.rows] == [1.0] * 4


def test_a_run_without_partners_has_no_record_of_them(tmp_path: Path) -> None:
    made = RunOfATest(tmp_path, num_steps=1)
    made.events.save_every = 1
    train(made.run)
    assert not (tmp_path / "checkpoint-1" / "trainer" / PARTNERS).exists()
    assert "trained_with" not in read_manifest(tmp_path / "checkpoint-1").facts
