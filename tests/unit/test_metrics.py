"""Figures of a step: true ones, or none."""

import math
from dataclasses import replace

import pytest

from hanabi_grpo.training.metrics import episode_metrics, step_warnings
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn
from made_games import made_episode as game
from made_games import made_turn


def turn(player: int, kind: ReplyKind = ReplyKind.LEGAL, **rewards: float) -> Turn:
    logprobs = (-0.25, -0.75)
    return made_turn(player, 2, 3, rewards=rewards, logprobs=logprobs, prompt_ids=(1,), text="Hint R", kind=kind)


BAD = game(turn(0, ReplyKind.ILLEGAL, illegal=-0.5), turn(1, ReplyKind.UNPARSABLE, unparsable=-0.5))


def test_a_step_s_figures_are_counted_from_its_games() -> None:
    groups = [
        [game(turn(0, score=1.0), turn(1), score=1), game(turn(0, ReplyKind.ILLEGAL, illegal=-0.5))],
        [game(turn(0), score_kept=2, status=EpisodeStatus.BOMBED), game(turn(0), status=EpisodeStatus.TRUNCATED_TURNS)],
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
        "hint_pairs": 0.0,
        "score/mean": 0.25,
        "score/se": 0.25,
        "score_kept/mean": 0.75,
        "bombs_per_game": 0.25,
        "truncated_per_game": 0.25,
        "out_of_tokens_per_game": 0.0,
        "illegal_per_game": 0.25,
        "unparsable_per_game": 0.0,
        "hints_per_game": 1.25,
        "turns_per_game": 1.25,
        "player_0/games_without_turn": 0.0,
        "player_0/bad_reply_share": 0.25,
        "player_0/unparsable_share": 0.0,
        "player_0/tokens_per_reply": 2.0,
        "player_0/reward": 0.125,
        "player_0/entropy_estimate": 0.5,
        "player_1/games_without_turn": 3.0,
        "player_1/bad_reply_share": 0.0,
        "player_1/unparsable_share": 0.0,
        "player_1/tokens_per_reply": 2.0,
        "player_1/reward": 1.0,
        "player_1/entropy_estimate": 0.5,
    }


@pytest.mark.parametrize("groups", [[], [[]], [[], []]])
def test_a_step_without_games_has_counts_and_no_means(groups: list[list[Episode]]) -> None:
    assert episode_metrics(groups, games_dropped=4, groups_dropped=2) == {
        "games": 0.0,
        "games_dropped": 4.0,
        "groups_dropped": 2.0,
        "games_all_bad": 0.0,
        "groups_without_spread": float(len(groups)),
        "reply_tokens": 0.0,
        **({"flat_group_share": 1.0} if groups else {}),
    }


def test_what_one_game_cannot_tell_is_absent() -> None:
    metrics = episode_metrics([[game(turn(0))]])
    assert metrics["score/mean"] == 0.0
    assert metrics["player_1/games_without_turn"] == 1.0
    assert not {"score/se", "player_1/reward", "player_1/entropy_estimate"} & set(metrics)
    assert all(map(math.isfinite, metrics.values()))


def test_spread_is_of_any_player_s_reward_and_only_where_it_played() -> None:
    def flat(*group: Episode) -> float:
        return episode_metrics([group])["groups_without_spread"]

    assert flat(game(turn(0)), game(turn(0))) == 1
    assert flat(game(turn(0), score=3), game(turn(0), score=0)) == 1, "a score without its reward teaches nothing"
    assert flat(game(turn(0)), game(turn(0, ReplyKind.ILLEGAL, illegal=-0.5))) == 0
    assert flat(game(turn(0), turn(1, illegal=-0.5)), game(turn(0), turn(1))) == 0
    # Player 1 moved in one of the games only, so there is nothing to compare it with.
    assert flat(game(turn(0), turn(1, illegal=-0.5)), game(turn(0))) == 1


def test_a_healthy_step_warns_of_nothing() -> None:
    groups = [[game(turn(0, score=1.0)), game(turn(0)), BAD]]
    assert step_warnings(episode_metrics(groups), 1) == []


def test_a_step_of_bad_replies_warns_from_half_of_the_games_on() -> None:
    good = game(turn(0, score=1.0))
    assert step_warnings(episode_metrics([[good, good, BAD]]), 1) == []
    (warning,) = step_warnings(episode_metrics([[good, BAD]]), 1)
    assert warning.startswith("all replies were illegal or unparsable in 1 of 2 games")


def test_a_step_without_spread_warns_only_when_no_group_has_any() -> None:
    flat, spread = [game(turn(0)), game(turn(0))], [game(turn(0)), game(turn(0, score=1.0))]
    assert step_warnings(episode_metrics([flat, spread]), 2) == []
    (warning,) = step_warnings(episode_metrics([flat, flat]), 2)
    assert warning.startswith(
        "every group has zero variance in rewards (2 of 2): comparing their games teaches nothing"
    )


def test_games_without_a_turn_of_a_trained_player_warn_and_say_why() -> None:
    own = ("player_0@0", "player_1@0")
    ended = replace(game(turn(0)), seats=("blind", own[1]))
    (warning,) = step_warnings(episode_metrics([[ended, ended]], own=own), 1)
    assert warning == (
        "no trained player had a turn in any of 2 games, so nothing moves in this step; does a partner end them on its "
        "first move?"
    )
    assert step_warnings(episode_metrics([[ended], [game(turn(0)), game(turn(0, score=1.0))]], own=own), 2) == []


def test_dropped_games_are_told_with_what_is_left() -> None:
    (warning,) = step_warnings(episode_metrics([], games_dropped=5, groups_dropped=2), 0)
    assert warning == "5 game(s) and 2 whole group(s) were dropped; this step has 0 game(s) in 0 group(s)."
