import itertools
import json
import statistics

import numpy as np
import pytest

from boards import ALL_BOARDS
from convention_games import golden_game, some_counts
from hanabi_grpo.envs.hanabi.conventions import ConventionCounts, ConventionReport, convention_json, convention_report
from hanabi_grpo.envs.hanabi.conventions.estimates import (
    chance_information,
    entropy,
    leave_one_out,
    mutual_information,
    standard_error,
)
from hanabi_grpo.envs.hanabi.policies import make_policy, play_scripted
from hanabi_grpo.envs.hanabi.rules import GameSpec, make_spec


def report_of(policy: str, spec: GameSpec, num_games: int) -> ConventionReport:
    return convention_report(policy, some_counts(num_games, policy=policy, spec=spec))


def test_the_figures_of_a_game_made_by_hand() -> None:
    counts = ConventionCounts(golden_game().spec)
    counts.add(golden_game())
    report = convention_report("golden", counts)
    first, second = report.seats
    assert (report.num_games, report.num_groups, report.num_unfinished) == (1, 1, 0)
    values = {name: one.value for name, one in second.figures.items()}
    assert values["bits_per_play"] == pytest.approx((np.log2(5 / 3) + 2 + np.log2(3)) / 3, abs=1e-6)
    assert values["chance_per_play"] == pytest.approx((2 / 3 + 1) / 3, abs=1e-6)
    assert values["certain_plays"] == values["misplay_share"] == pytest.approx(1 / 3)
    assert values["misplays_knowing_both"] == 0.5
    assert values["misplays_knowing_none"] is None
    assert (values["score"], values["score_kept"], values["bombs"], values["plays"]) == (0, 2, 1, 3)
    # Both hints are played; the seat's one turn without a new hint is a play as well.
    assert second.hints["any"]["play_signal"].value == 0
    assert report.team.hints["any"]["play_signal"].value == 1 - 1 / 4
    assert second.hints["any"]["newest_of_choices"].value == 0.5
    assert second.hints["R"]["playable_when_hinted"].value == 0.5
    assert first.hints["any"]["play_signal"].value is None
    # Three moves, all different: every pairing is as telling as the one that was seen.
    assert first.figures["action_information"].value == pytest.approx(0, abs=1e-12)
    assert first.figures["next_entropy"].value == pytest.approx(np.log2(3) - 2 / 3)
    assert all(one.error is None for one in first.figures.values())
    assert first.matrix.shares[6][1] == 1
    assert first.matrix.marginal[:2] == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert report.actions[6] == ("R", "hint red")


def test_standard_errors_of_single_games_are_the_textbook_ones() -> None:
    values = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])
    groups = np.stack([np.ones(8), values], axis=1)
    sums = leave_one_out(groups)
    error = standard_error(sums[:, 1] / sums[:, 0], np.ones(8))
    assert error == pytest.approx(statistics.stdev(values) / 8**0.5)


def test_standard_errors_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    ratios = []
    for _ in range(400):
        sizes = rng.poisson(6, 32) + 1
        sums = np.array([rng.normal(0, 1, size).sum() for size in sizes])
        replicates = leave_one_out(np.stack([sizes, sums], axis=1))
        means = replicates[:, 1] / replicates[:, 0]
        ratios.append(means[0] / standard_error(means, sizes))
    assert statistics.stdev(ratios) == pytest.approx(1.0, abs=0.12)


def test_one_group_of_deals_gives_no_standard_error() -> None:
    assert np.isnan(standard_error(np.array([0.5, 0.5]), np.array([3])))


def test_chance_information_is_the_mean_over_every_pairing() -> None:
    before, after = [0, 0, 1, 2, 2], [0, 1, 1, 1, 0]

    def table(order: tuple[int, ...]) -> np.ndarray:
        counts = np.zeros((3, 2), dtype=np.int64)
        np.add.at(counts, (before, list(order)), 1)
        return counts

    every = [float(mutual_information(table(order))) for order in itertools.permutations(after)]
    assert chance_information(table(tuple(after))) == pytest.approx(statistics.fmean(every), abs=1e-12)


def test_chance_information_of_many_observations_is_the_chi_square_approximation() -> None:
    counts = np.full((20, 20), 5000)
    assert chance_information(counts) == pytest.approx(19 * 19 / (2 * np.log(2) * counts.sum()), rel=1e-3)


def test_entropy_and_information_of_known_tables() -> None:
    assert entropy(np.array([4, 4, 4, 4])) == 2
    assert np.isnan(entropy(np.array([0, 0])))
    assert mutual_information(np.array([[5, 0], [0, 5]])) == 1
    assert mutual_information(np.array([[2, 4], [3, 6]])) == pytest.approx(0)


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_on_every_board_shares_are_shares_and_rows_sum_to_1(preset: str, num_players: int) -> None:
    report = report_of("random", make_spec(preset, num_players), 12)
    assert len(report.seats) == num_players
    for side in (report.team, *report.seats):
        for counts, shares in zip(side.matrix.counts, side.matrix.shares, strict=True):
            if sum(counts):
                assert sum(share or 0 for share in shares) == pytest.approx(1)
            else:
                assert set(shares) == {None}
        for row in side.hints.values():
            if row["plays"].value is not None:
                parts = [row[name].value for name in ("plays", "discards", "hints_back")]
                assert sum(part or 0 for part in parts) == pytest.approx(1)
    pooled = np.sum([seat.matrix.counts for seat in report.seats], axis=0)
    assert (np.array(report.team.matrix.counts) == pooled).all()
    assert sum(seat.figures["turns"].value or 0 for seat in report.seats) == pytest.approx(
        report.team.figures["turns"].value
    )
    text = json.dumps(convention_json(report), allow_nan=False)
    assert json.loads(text)["board"]["hash"] == report.spec.hash


@pytest.mark.parametrize("num_players", [2, 5])
def test_the_hints_of_random_play_carry_no_information(num_players: int) -> None:
    """Without the correction, 300 games of five players would show about one bit."""
    report = report_of("random", make_spec("full", num_players), 300)
    found = report.team.figures["hint_information"]
    assert found.value is not None and found.error is not None
    assert abs(found.value) < 4 * found.error
    assert abs(found.value) < 0.15
    assert (report.team.hints["any"]["play_signal"].value or 0) < 0


def test_hint_bots_hint_of_a_rank_means_play_on_the_demos_board() -> None:
    rank_1 = report_of("hint-bot", make_spec("laptop"), 300).team.hints["1"]
    assert rank_1["plays_touched"].value == pytest.approx(0.81, abs=0.06)
    assert rank_1["touched_of_plays"].value == 1
    assert (rank_1["play_signal"].value or 0) > 0.6


def test_simple_bots_hints_mean_play_this() -> None:
    report = report_of("simple-bot", make_spec("full", 5), 60)
    blue = report.team.hints["B"]
    assert blue["playable_when_hinted"].value == 1
    assert blue["scored_of_touched"].value == 1
    assert (blue["plays"].value or 0) > 0.95
    # Yet it plays what the hints alone leave uncertain.
    assert (report.team.figures["certain_plays"].value or 0) < 0.6


def test_a_seat_that_does_not_listen_shows() -> None:
    spec = make_spec("laptop")
    counts = ConventionCounts(spec)
    team = [make_policy("hint-bot"), make_policy("random")]
    for seed in range(200):
        counts.add(play_scripted(spec, team, suite="eval", seed=seed))
    listener, deaf = convention_report("mixed", counts).seats
    assert (listener.hints["any"]["play_signal"].value or 0) > 0.1
    assert (deaf.hints["any"]["play_signal"].value or 0) < 0
