import json
import math
import random
import statistics
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from boards import ALL_BOARDS, random_game, scripted_game
from convention_games import LAPTOP, golden_game, played, some_counts
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.conventions.counts import ConventionCounts, Row, count_game
from hanabi_grpo.envs.hanabi.conventions.report import (
    ConventionReport,
    convention_json,
    convention_report,
    leave_one_out,
    standard_error,
)
from hanabi_grpo.envs.hanabi.rules import Card, Game, GameSpec, PlayerView, make_spec


def counted(game: Game, *start: Any) -> dict[Any, float]:
    """Return the counters whose key begins like this, by the rest of it, without those that are 0."""
    row = Row(float)
    count_game(game, row)
    found = {key[len(start) :]: n for key, n in row.items() if isinstance(key, tuple) and key[: len(start)] == start}
    return {rest[0] if len(rest) == 1 else rest: n for rest, n in found.items() if n}


def of_seat(game: Game, seat: int) -> dict[Any, float]:
    return {name: n for name, n in counted(game, seat).items() if isinstance(name, str)}


def report_of(policy: str, spec: GameSpec, num_games: int) -> ConventionReport:
    return convention_report(policy, some_counts(num_games, policy=policy, spec=spec))


def test_the_figures_of_that_game() -> None:
    counts = ConventionCounts(LAPTOP)
    counts.add(golden_game())
    report = convention_report("golden", counts)
    first, second = report.seats
    assert (report.num_games, report.num_groups, report.num_unfinished) == (1, 1, 0)
    values = {name: one.value for name, one in second.figures.items()}
    assert values["bits_per_play"] == pytest.approx((np.log2(5 / 3) + 2 + np.log2(3)) / 3)
    assert values["chance_per_play"] == pytest.approx((2 / 3 + 1) / 3)
    assert values["certain_plays"] == values["misplay_share"] == pytest.approx(1 / 3)
    assert (values["score"], values["score_kept"], values["bombs"], values["plays"]) == (0, 2, 1, 3)
    # Both hints are played; the seat's one turn without a new hint is a play as well.
    assert second.hints["any"]["play_signal"].value == 0
    assert report.team.hints["any"]["play_signal"].value == 1 - 1 / 4
    assert second.hints["any"]["newest_of_choices"].value == 0.5
    assert second.hints["R"]["playable_when_hinted"].value == 0.5
    assert first.hints["any"]["play_signal"].value is None
    assert all(one.error is None for one in first.figures.values())
    assert first.matrix.shares[6][1] == 1
    assert first.matrix.marginal[:2] == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert report.actions[6] == ("R", "hint red")


def test_wasted_hints_and_critical_discards() -> None:
    spec = replace(LAPTOP, hand_size=1)
    game = played(
        spec,
        "R1 Y2  R1 R1 R2 Y1 Y1 Y1",
        "Hint Y, Hint R, Hint Y, Discard 0, Discard 0, Discard 0, Hint R, Hint 1, Discard 0, Discard 0",
    )
    # Seat 0 says Y twice and throws the last R1; seat 1 throws the only Y2, and R2 when it is out of reach.
    mine, its = of_seat(game, 0), of_seat(game, 1)
    assert (mine["wasted_hints"], mine["critical_discards"], mine["discards"]) == (1, 1, 2)
    assert (its.get("wasted_hints", 0), its["critical_discards"], its["discards"]) == (0, 1, 3)
    counts = ConventionCounts(spec)
    counts.add(game)
    assert convention_report("one", counts).num_unfinished == (not game.is_over)


def by_hand(game: Game) -> Row:
    """Work figures out card by card, from what `Game.view` shows."""
    table, sums = Game(game.spec, game.deck), Row(float)
    for event in game.events:
        view, card = table.view(event.player), event.card
        if event.action.kind == "play":
            unseen = _unseen(view, game.deck)
            known = view.own_hand[event.action.slot]
            possible = [card for card in unseen if card.color in known.colors and card.rank in known.ranks]
            fits = [card for card in possible if view.fireworks[card.color] == card.rank]
            sums["bits"] += math.log2(len(unseen) / len(possible))
            sums["chance"] += len(fits) / len(possible)
            sums["certain_plays"] += len(fits) == len(possible)
        elif event.action.kind == "discard" and card is not None:
            gone, copies = Counter(view.discards), Counter(game.deck)
            below = [Card(card.color, rank) for rank in range(view.fireworks[card.color], card.rank)]
            can_score = view.fireworks[card.color] <= card.rank and all(gone[one] < copies[one] for one in below)
            sums["critical_discards"] += can_score and gone[card] + 1 == copies[card]
        table.apply(event.action)
    return sums


def _unseen(view: PlayerView, deck: tuple[Card, ...]) -> list[Card]:
    left = Counter(deck)
    left.subtract(view.discards)
    left.subtract(card for hand in view.hands for card in hand)
    left.subtract(Card(color, rank) for color, height in enumerate(view.fireworks) for rank in range(height))
    assert min(left.values()) >= 0
    return list(left.elements())


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_on_every_board_counts_agree_with_what_players_see_and_shares_are_shares(preset: str, num_players: int) -> None:
    spec, rng = make_spec(preset, num_players), random.Random(f"{preset}{num_players}")
    for _ in range(6):
        game, totals = random_game(spec, rng), Row(float)
        for seat in range(num_players):
            for name, value in of_seat(game, seat).items():
                totals[name] += value
        for name, value in by_hand(game).items():
            assert totals[name] == pytest.approx(value), name
        assert totals["turns"] == totals["plays"] + totals["discards"] + totals["hints"] == len(game.events)
        assert sum(counted(game, "pair").values()) == max(0, len(game.events) - 1)
    report = report_of("random", spec, 12)
    for side in (report.team, *report.seats):
        for counts, shares in zip(side.matrix.counts, side.matrix.shares, strict=True):
            assert sum(share or 0 for share in shares) == pytest.approx(1) if sum(counts) else set(shares) == {None}
        for row in side.hints.values():
            parts = [row[name].value for name in ("plays", "discards", "hints_back")]
            assert None in parts or sum(part or 0 for part in parts) == pytest.approx(1)
    pooled = np.sum([seat.matrix.counts for seat in report.seats], axis=0)
    assert (np.array(report.team.matrix.counts) == pooled).all()
    assert json.loads(json.dumps(convention_json(report), allow_nan=False))["board"]["hash"] == spec.hash


def test_all_games_of_a_deal_are_one_group() -> None:
    counts = ConventionCounts(LAPTOP)
    for name in ("random", "iggi", "hint-bot"):
        counts.add(scripted_game(EnvConfig(preset="laptop"), [name] * 2, seed=3))
    assert [group["games"] for group in counts.groups if group] == [3]


def test_standard_errors_of_single_games_are_the_textbook_ones() -> None:
    values = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])
    sums = leave_one_out(np.stack([np.ones(8), values], axis=1))
    error = standard_error(sums[:, 1] / sums[:, 0], np.ones(8))
    assert error == pytest.approx(statistics.stdev(values) / 8**0.5)
    assert np.isnan(standard_error(np.array([0.5, 0.5]), np.array([3])))
