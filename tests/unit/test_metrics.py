"""Figures of a step: true ones, or none."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import stdev
from typing import Any

import pytest
import torch

from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.registry import setup
from hanabi_grpo.runs.task_statistics import estimate
from hanabi_grpo.training import metrics
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn
from made_games import made_episode as game
from made_games import made_turn
from toy_kuhn import KUHN

SETUPS = {"x": setup("hanabi", {"preset": "laptop"}), "kuhn": setup("kuhn", {"preset": "kuhn"})}


def episode_metrics(groups: Sequence[Sequence[Episode]], **other: Any) -> dict[str, float]:
    return metrics.episode_metrics(groups, SETUPS, **other)


def turn(player: int, kind: ReplyKind = ReplyKind.LEGAL, **rewards: float) -> Turn:
    logprobs = (-0.25, -0.75)
    return made_turn(
        player, 2, 3, rewards=rewards, logprobs=logprobs, prompt_ids=(1,), text="Hint R", kind=kind
    )


def test_utilisation_is_told_of_gpus_whose_data_sheet_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, expected in (
        ("NVIDIA H100 80GB HBM3", {"utilisation/learning": 0.25}),
        ("Some other GPU", {}),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert metrics.utilisation(torch.device("cuda", 0), 989e12 / 2, 2.0) == expected
        assert metrics.utilisation(torch.device("cpu"), 1.0, 1.0) == {}


def test_a_step_s_figures_are_counted_from_its_games() -> None:
    groups = [
        [
            game(turn(0, score=1.0), turn(1), score=1),
            game(turn(0, ReplyKind.ILLEGAL, illegal=-0.5)),
        ],
        [
            game(turn(0), score_kept=2, bombed=1, seed=1),
            game(turn(0), status=EpisodeStatus.TRUNCATED_TURNS, seed=1),
        ],
    ]
    assert episode_metrics(groups, games_dropped=3, groups_dropped=1) == {
        "games": 4.0,
        "games_dropped": 3.0,
        "groups_dropped": 1.0,
        "games_all_bad": 1.0,
        "groups_without_spread": 1.0,
        "flat_group_share": 0.5,
        "reply_tokens": 10.0,
        "games/laptop": 4.0,
        "score/laptop": 0.25,
        # The board has 4 points.
        "score/normalized": 0.0625,
        "score/mean": 0.25,
        "score/se": 0.25,
        "truncated_per_game": 0.25,
        "out_of_tokens_per_game": 0.0,
        "illegal_per_game": 0.25,
        "unparsable_per_game": 0.0,
        "turns_per_game": 1.25,
        # 5 turns of a prompt of one token and a reply of two.
        "tokens/prompts_per_game": 1.25,
        "tokens/replies_per_game": 2.5,
        "player_0/games_without_turn": 0.0,
        "player_0/bad_reply_share": 0.25,
        "player_0/unparsable_share": 0.0,
        "player_0/tokens_per_reply": 2.0,
        "player_0/reward": 0.125,
        "player_0/score/max": 1.0,
        "player_0/score/min": -0.5,
        "player_0/samples": 4.0,
        "player_0/entropy_estimate": 0.5,
        "player_1/games_without_turn": 3.0,
        "player_1/bad_reply_share": 0.0,
        "player_1/unparsable_share": 0.0,
        "player_1/tokens_per_reply": 2.0,
        "player_1/reward": 1.0,
        "player_1/score/max": 1.0,
        "player_1/score/min": 1.0,
        "player_1/samples": 1.0,
        "player_1/entropy_estimate": 0.5,
        # Hanabi's own.
        "score_kept/mean": 0.75,
        "bombs_per_game": 0.25,
        "hints_per_game": 1.25,
        "hint_pairs": 0.0,
    }


def _poker(first: float, *actions: str) -> Episode:
    turns = []
    for number, action in enumerate(actions):
        paid = first if number == len(actions) - 1 else 0.0
        one = replace(
            turn(number % 2),
            action=action,
            step=number,
            rewards=({"chips": paid}, {"chips": -paid}),
        )
        turns.append(one)
    result = {"first_chips": first, "showdown": 1.0}
    return replace(game(*turns), env="kuhn", preset="kuhn", spec_hash="kuhn", result=result)


def test_a_zero_sum_game_is_scored_by_the_first_players_return_and_brings_figures_of_its_own() -> (
    None
):
    group = [_poker(1.0, "check", "check"), _poker(-2.0, "bet", "call")]
    found = episode_metrics([group])
    expected = {
        "score/mean": -0.5,
        "score/kuhn": -0.5,
        # Of at most 2 chips.
        "score/normalized": -0.25,
        "player_0/reward": -0.5,
        "player_1/reward": 0.5,
        "player_0/score/max": 1.0,
        "player_0/score/min": -2.0,
        "player_1/score/max": 2.0,
        "player_1/score/min": -1.0,
        "player_1/samples": 2.0,
        "first_chips": -0.5,
        "bets": 1 / 3,
        "groups_without_spread": 0.0,
    }
    assert {name: found[name] for name in expected} == expected
    assert "hints_per_game" not in found
    # Where a step has several environments, the figures of each say whose they are.
    both = episode_metrics([group, [game(turn(0, score=1.0), score=3)]])
    assert (both["kuhn/first_chips"], both["hanabi/hints_per_game"]) == (-0.5, 1.0)
    assert (both["score/kuhn"], both["score/laptop"], both["games/kuhn"], both["games/laptop"]) == (
        -0.5,
        3.0,
        2.0,
        1.0,
    )


def test_a_partners_winnings_are_not_the_runs_score_with_it() -> None:
    in_seat_0 = replace(_poker(2.0, "bet", "call"), seats=("iggi", OWN[1]))
    in_seat_1 = replace(_poker(-1.0, "check", "check"), seats=(OWN[0], "iggi"))
    alone = replace(_poker(1.0, "check", "check"), seats=OWN)
    found = episode_metrics(
        [[in_seat_0], [in_seat_1], [alone]], own_seats=OWN, partners={"iggi": "iggi"}
    )
    # The run's own players lost 2 and 1 to it. By themselves the first one won 1.
    assert found["partners/iggi/score"] == -1.5
    assert found["partners/iggi/games"] == 2.0
    assert found["self_play/score"] == 1.0


def test_replies_that_are_cut_are_those_of_the_greatest_length_without_an_end() -> None:
    group = [game(turn(0), turn(0), turn(1)), game(replace(turn(0), reply_ids=(2,)), made_turn(1))]
    assert "player_0/cut_share" not in episode_metrics([group])
    found = episode_metrics([group], reply_limit=2, end_id=9)
    assert (found["player_0/cut_share"], found["player_1/cut_share"]) == (2 / 3, 1.0)
    assert episode_metrics([group], reply_limit=2, end_id=3)["player_0/cut_share"] == 0.0
    # A script's turn has no tokens.
    assert found["player_1/tokens_per_reply"] == 2.0


def test_a_step_without_games_has_counts_and_no_means_and_what_one_game_cannot_tell_is_absent() -> (
    None
):
    counts = {
        "games": 0.0,
        "games_dropped": 4.0,
        "groups_dropped": 2.0,
        "games_all_bad": 0.0,
        "reply_tokens": 0.0,
    }
    assert episode_metrics([], games_dropped=4, groups_dropped=2) == {
        **counts,
        "groups_without_spread": 0.0,
    }
    found = episode_metrics([[game(turn(0))]])
    assert found["player_1/games_without_turn"] == 1.0 and all(map(math.isfinite, found.values()))
    assert found["player_1/samples"] == 0.0
    absent = {"score/se", "player_1/reward", "player_1/score/max", "player_1/entropy_estimate"}
    assert not absent & set(found)


def test_the_error_of_a_step_s_score_is_over_its_tasks_not_over_their_games() -> None:
    scores = (0, 2, 4)
    groups = [[game(turn(0), score=score, seed=score)] * 8 for score in scores]
    once = [group[:1] for group in groups]
    expected = stdev(scores) / len(scores) ** 0.5
    assert episode_metrics(groups)["score/se"] == pytest.approx(expected)
    assert episode_metrics(once)["score/se"] == pytest.approx(expected)
    # A single task has no error.
    assert "score/se" not in episode_metrics(groups[:1])


def test_games_of_one_start_are_a_cluster_where_a_suite_has_few_starts() -> None:
    debate = setup("debate", {"preset": "debate"})
    suite = "eval-validation"
    seeds = range(40)
    starts = [debate.environment.start_id(debate.config, split=suite, seed=seed) for seed in seeds]
    assert len(set(starts)) < len(starts)
    # Who is right depends on the problem alone.
    scores = [float(start < sorted(starts)[20]) for start in starts]
    episodes = []
    for seed, score in zip(seeds, scores, strict=True):
        spec = debate.spec
        played = game(made_turn(0, 1, rewards={"correct": score}), env="debate", preset=spec.preset)
        episodes.append(
            replace(played, spec_hash=spec.hash, suite=suite, seed=seed, result={spec.score: score})
        )
    found = metrics.score_figures(episodes, {debate.spec.hash: debate})
    number_of_start = {start: number for number, start in enumerate(dict.fromkeys(starts))}
    expected = estimate(tuple(scores), tuple(number_of_start[start] for start in starts))
    assert found["score/se"] == pytest.approx(expected.standard_error)
    assert found["score/se"] > stdev(scores) / len(scores) ** 0.5


def test_a_share_of_the_greatest_score_grows_with_the_score_where_no_score_is_positive() -> None:
    spec = SETUPS["x"].spec
    negative = replace(spec, return_range=(-10.0, -1.0), score="return", max_score=None)
    flat = replace(spec, return_range=(-1.0, -1.0), score="return", max_score=None)
    for score, share in ((-10.0, 0.0), (-1.0, 1.0)):
        assert metrics._score_share(score, negative) == share
    assert metrics._score_share(-1.0, flat) is None
    assert metrics._score_share(2.0, spec) == 0.5


def test_spread_is_of_any_player_s_reward_and_only_where_it_played() -> None:
    def flat(*group: Episode) -> float:
        return episode_metrics([group])["groups_without_spread"]

    assert flat(game(turn(0)), game(turn(0))) == 1
    assert flat(game(turn(0), score=3), game(turn(0), score=0)) == 1, (
        "a score without its reward teaches nothing"
    )
    assert flat(game(turn(0)), game(turn(0, ReplyKind.ILLEGAL, illegal=-0.5))) == 0
    assert flat(game(turn(0), turn(1, illegal=-0.5)), game(turn(0), turn(1))) == 0
    # Player 1 moved in one of the games only, so there is nothing to compare it with.
    assert flat(game(turn(0), turn(1, illegal=-0.5)), game(turn(0))) == 1


OWN = ("player_0@0", "player_1@0")


def test_hanabis_figures_of_play_are_of_the_seats_that_the_runs_own_players_hold() -> None:
    own = setup("hanabi", {"preset": "laptop"}).spec.hash
    played = [game(turn(0), spec_hash=own, seats=seats) for seats in (OWN, ("iggi", OWN[1]))]
    assert HANABI.metrics(HANABI.presets["laptop"], played)["player_0/share/hint"] == 1.0
    assert "player_0/share/hint" not in HANABI.metrics(HANABI.presets["laptop"], played[1:])
    assert KUHN.metrics(KUHN.presets["kuhn"], [])["bets"] == 0.0
