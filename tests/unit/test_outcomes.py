"""Shares of wins, draws and losses: their intervals, and the names of equal roles."""

import dataclasses
import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, variance

import numpy as np
import pytest

from crossplay_parts import plan_of, play
from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import EnvSpec, Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.summary import all_sheets, summarise, summary_json
from hanabi_grpo.evaluation.evaluate import evaluate_lineup
from hanabi_grpo.evaluation.outcomes import outcome_sheets, wilson
from hanabi_grpo.runs.evaluation_result import EvaluationResult, result_of_json, result_to_json
from hanabi_grpo.types import ALL_STARTS
from toy_kuhn import KUHN, Kuhn, KuhnConfig

KUHN_SETUP = Setup(KUHN, KUHN.presets["kuhn"])
OUTCOMES = {"win": 1, "draw": 0, "loss": -1}


class EqualKuhn(Kuhn):
    """Kuhn poker whose players have equal roles; the games are the same."""

    def spec(self, config: KuhnConfig) -> EnvSpec:
        return dataclasses.replace(super().spec(config), roles=("player", "player"))


EQUAL = Setup(EqualKuhn(), KUHN.presets["kuhn"])
SEATS = ("player (seat 0)", "player (seat 1)")


def evaluate(text: str, setup: Setup[KuhnConfig], num_tasks: int, suite: str = "eval"):  # type: ignore[no-untyped-def]
    lineup = parse_lineup(text, 2, env="kuhn")
    return evaluate_lineup(lineup, setup, num_tasks, suite=suite)


def with_outcomes(
    example: EvaluationResult, outcomes: Mapping[str, Sequence[int]], **changes: object
) -> EvaluationResult:
    """Return a result whose games have these outcomes, by role and task."""
    figures = dict(example.figures)
    for role, signs in outcomes.items():
        for outcome, sign in OUTCOMES.items():
            figures[f"{outcome} as {role}"] = fmean(value == sign for value in signs)
    by_role = {role: tuple(signs) for role, signs in outcomes.items()}
    changed = {"figures": figures, "outcomes": by_role, **changes}
    return dataclasses.replace(example, **changed)  # type: ignore[arg-type]


def cells(result: EvaluationResult) -> dict[str, list[str]]:
    """Return by seat what the table says of wins, draws and losses."""
    [sheet] = outcome_sheets([result])
    by_seat = {}
    for row in sheet.groups[0]:
        by_seat[row[1]] = list(row[2:5])
    return by_seat


def interval(cell: str) -> tuple[float, float]:
    """Return the interval of a cell such as "0.500 (0.40 to 0.60)"."""
    low, high = cell.partition("(")[2].removesuffix(")").split(" to ")
    return float(low), float(high)


def resampled(shares: Sequence[float], starts: Sequence[int]) -> tuple[float, float]:
    """Return the percentiles of the mean over whole starts, drawn one by one."""
    tasks_of_start: dict[int, list[float]] = {}
    for start, share in zip(starts, shares, strict=True):
        tasks_of_start.setdefault(start, []).append(share)
    clusters = list(tasks_of_start.values())
    rng = random.Random(5)
    means = []
    for _ in range(4000):
        drawn: list[float] = []
        for cluster in rng.choices(clusters, k=len(clusters)):
            drawn += cluster
        means.append(fmean(drawn))
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def test_the_share_over_both_seats_has_the_error_of_its_tasks() -> None:
    """Both seats of a deal are not independent games, here with luck that the seats share."""
    example = evaluate("random,equilibrium-0", KUHN_SETUP, 200)
    rng = random.Random(3)
    lucky = [rng.choice((1, -1)) for _ in range(200)]
    # The deal decides for whoever is first: the two games of a task cancel out, but for a few.
    other = [-sign if rng.random() < 0.9 else sign for sign in lucky]
    for second, is_narrow in ((other, True), ([-sign for sign in other], False)):
        result = with_outcomes(example, {"first": lucky, "second": second})
        shares = []
        for first_sign, second_sign in zip(lucky, second, strict=True):
            shares.append(((first_sign == 1) + (second_sign == 1)) / 2)
        found = interval(cells(result)["both"][0])
        assert found == pytest.approx(resampled(shares, range(200)), abs=0.011)
        low, high = wilson(fmean(shares), 400)
        ratio = (found[1] - found[0]) / (high - low)
        assert ratio < 0.7 if is_narrow else ratio > 1.2
    # One game of each task, each with a start of its own: Wilson's interval.
    low, high = wilson(lucky.count(1) / 200, 200)
    assert interval(cells(result)["first"][0]) == (round(low, 2), round(high, 2))


def test_shares_of_a_suite_with_some_of_the_starts_are_clustered_by_start() -> None:
    result = evaluate("equilibrium-0,random", KUHN_SETUP, 120, suite="split-eval")
    assert len(set(result.starts)) == 6
    assert set(result.outcomes) == {"first", "second"}
    for role in ("first", "second"):
        signs = result.outcomes[role]
        assert result.figures[f"win as {role}"] == pytest.approx(signs.count(1) / 120)
        shares = [float(sign == 1) for sign in signs]
        found = interval(cells(result)[role][0])
        assert found == pytest.approx(resampled(shares, result.starts), abs=0.03)
        low, high = wilson(fmean(shares), 120)
        assert found[1] - found[0] > 1.5 * (high - low), "cards decide most games"


def test_shares_over_all_starts_have_the_error_within_a_start() -> None:
    setup = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
    lineup = parse_lineup("random,cfr", 2, env="kuhn_poker")
    result = evaluate_lineup(lineup, setup, 12, suite=ALL_STARTS)
    first, second = setup.spec.roles
    shares = []
    for first_sign, second_sign in zip(*result.outcomes.values(), strict=True):
        shares.append(((first_sign == 1) + (second_sign == 1)) / 2)
    variances = [variance((shares[start], shares[start + 6])) for start in range(6)]
    half_width = 1.96 * math.sqrt(sum(variances) / 2) / 6
    assert half_width > 0
    share = fmean(shares)
    expected = (max(0.0, share - half_width), min(1.0, share + half_width))
    assert interval(cells(result)["both"][0]) == pytest.approx(expected, abs=0.0051)
    # The same outcome in both games of each start: no sampling error is left.
    signs = [1, 1, 1, 0, -1, -1] * 2
    scores = tuple(map(float, signs))
    agreed = with_outcomes(result, {first: signs, second: signs}, scores=scores)
    greedy = dataclasses.replace(agreed, is_sampled=False)
    assert greedy.estimate.is_exact
    for row in cells(greedy).values():
        assert row == ["0.500 exact", "0.167 exact", "0.333 exact"]
    # Replies that were drawn may have agreed by chance: Wilson's bound for 0 of 12 games.
    assert result.is_sampled, "one of its players is the random script"
    most = wilson(0.0, 12)[1]
    expected = (0.5 - 0.5 * most, 0.5 + 0.5 * most)
    assert interval(cells(agreed)["both"][0]) == pytest.approx(expected, abs=0.0051)


def test_a_share_without_any_variation_is_not_certain() -> None:
    example = evaluate("random,equilibrium-0", KUHN_SETUP, 60)
    for starts in (range(60), [task // 2 for task in range(60)]):
        always = with_outcomes(
            example, {"first": [1] * 60, "second": [1] * 60}, starts=tuple(starts)
        )
        low, high = wilson(1.0, len(set(starts)))
        won, drawn, _ = cells(always)["both"]
        assert won == f"1.000 ({low:.2f} to {high:.2f})"
        assert drawn == f"0.000 ({1 - high:.2f} to {1 - low:.2f})"
    # Every start has one win in three tasks: none differs from the others.
    starts = tuple(task // 3 for task in range(60))
    third = with_outcomes(example, {"first": [1, -1, -1] * 20}, starts=starts)
    most = wilson(0.0, 20)[1]
    expected = (1 / 3 - most / 3, 1 / 3 + most * 2 / 3)
    assert interval(cells(third)["first"][0]) == pytest.approx(expected, abs=0.0051)
    # One role always wins, the other never: each may be wrong by what Wilson's bound allows.
    split = with_outcomes(example, {"first": [1] * 60, "second": [-1] * 60})
    assert cells(split)["both"][0] == "0.500 (0.47 to 0.53)"


def test_results_of_earlier_versions_keep_wilsons_intervals(tmp_path: Path) -> None:
    result = evaluate("random,equilibrium-0", KUHN_SETUP, 40)
    data = json.loads(json.dumps(result_to_json(result)))
    assert result_of_json(data) == result
    for wrong in ([1] * 39, [2] * 40):
        with pytest.raises(ValueError, match="outcomes need one entry per task"):
            result_of_json({**data, "outcomes": {"first": wrong}})
    del data["outcomes"]
    old = result_of_json(data)
    assert old.outcomes == {}
    share = (old.figures["win as first"] + old.figures["win as second"]) / 2
    low, high = wilson(share, 80)
    assert cells(old)["both"][0] == f"{share:.3f} ({low:.2f} to {high:.2f})"
    low, high = wilson(old.figures["win as first"], 40)
    assert interval(cells(old)["first"][0]) == (round(low, 2), round(high, 2))


def test_equal_roles_are_told_apart_by_their_seats(tmp_path: Path) -> None:
    apart = evaluate("random,equilibrium-0", KUHN_SETUP, 50)
    equal = evaluate("random,equilibrium-0", EQUAL, 50)
    for outcome in (*OUTCOMES, "bad-reply win", "return"):
        for role, seat in zip(("first", "second"), SEATS, strict=True):
            assert equal.figures[f"{outcome} as {seat}"] == apart.figures[f"{outcome} as {role}"]
    assert equal.outcomes == dict(zip(SEATS, apart.outcomes.values(), strict=True))
    assert list(cells(equal)) == [*SEATS, "both"]
    assert cells(equal)["both"] == cells(apart)["both"]


def test_a_cross_play_with_equal_roles_counts_every_game_once(tmp_path: Path) -> None:
    summaries = []
    for name, setup in (("apart", KUHN_SETUP), ("equal", EQUAL)):
        plan = plan_of("random", "equilibrium-0", "equilibrium-0.3", tasks=20, setup=setup)
        summaries.append(summarise(plan, play(plan, tmp_path / name)))
    apart, equal = summaries
    assert apart.opponents is not None and equal.opponents is not None
    # Three pairs, both seats, 20 tasks.
    assert equal.opponents.num_games == 120
    assert equal.opponents == dataclasses.replace(apart.opponents, first_role=SEATS[0])
    assert summary_json(equal)["opponents"]["first_role"] == SEATS[0]
    [sheet] = [sheet for sheet in all_sheets(equal) if sheet.title == "Ratings"]
    assert "Playing as player (seat 0) is worth" in sheet.note


def test_finished_tasks_with_outcomes_of_one_seat_alone_are_not_used(tmp_path: Path) -> None:
    ledger = tmp_path / "old.jsonl"
    lineup = parse_lineup("random,equilibrium-0", 2, env="kuhn")
    evaluate_lineup(lineup, EQUAL, 4, ledger=ledger)
    first, *rows = ledger.read_text().splitlines()
    key = json.loads(first)["key"]
    assert key.pop("roles") == list(SEATS)
    ledger.write_text("\n".join([json.dumps({"key": key}), *rows, ""]))
    with pytest.raises(SettingsError, match=r"different job \(roles: there None"):
        evaluate_lineup(lineup, EQUAL, 4, ledger=ledger)
