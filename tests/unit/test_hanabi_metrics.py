"""Hanabi's metrics of a step, on games of scripts and on tables made by hand."""

import itertools
import statistics
from dataclasses import replace

import numpy as np
import pytest

from boards import scripted_episodes
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.metrics import (
    chance_information,
    information_above_chance,
    replayed,
    step_metrics,
)
from hanabi_grpo.types import Episode, ReplyKind

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)


def play(*team: str, num_deals: int = 8) -> list[Episode]:
    """Return four games of each deal by a team of scripts."""
    return scripted_episodes(LAPTOP, team, range(num_deals), num_games=4)


def mean_result(games: list[Episode], name: str) -> float:
    return statistics.fmean(game.result[name] for game in games)


def test_blind_play_is_recognised_and_scores_what_blind_play_scores() -> None:
    games = play("blind", "blind")
    metrics = step_metrics(games)
    assert metrics["player_0/blind_share"] == 1.0
    assert metrics["player_0/top_move_share"] == 1.0
    assert metrics["share/play"] == 1.0
    assert metrics["share/hint"] == 0.0
    assert metrics["player_0/share/hint_color"] == 0.0
    assert metrics["over_blind/laptop"] == 0.0
    assert metrics["blind/laptop"] == mean_result(games, "score")
    assert metrics["score_kept/mean"] == mean_result(games, "score_kept")
    assert metrics["bombs_per_game"] == mean_result(games, "bombed")
    assert metrics["hint_pairs"] == 0.0
    assert metrics["hints_per_game"] == 0.0
    # The board begins with all hints, so a discard is never legal; nothing can be said about it.
    assert "player_0/share/discard" not in metrics
    assert "hint_bits" not in metrics


def test_no_games_have_no_metrics() -> None:
    assert step_metrics([]) == {}


def test_moves_that_replaced_a_bad_reply_are_nobody_s_choice() -> None:
    episode = play("blind", "blind")[0]
    illegal_turns = tuple(replace(turn, kind=ReplyKind.ILLEGAL) for turn in episode.turns)
    metrics = step_metrics([replace(episode, turns=illegal_turns)])
    assert not [name for name in metrics if "share/" in name or "blind_share" in name]


def test_hints_that_nobody_reads_carry_nothing() -> None:
    metrics = step_metrics(play("random", "random", num_deals=100))
    assert abs(metrics["hint_bits"]) < 0.03


def test_hints_of_a_bot_carry_something() -> None:
    metrics = step_metrics(play("hint-bot", "hint-bot", num_deals=100))
    assert metrics["hint_bits"] > 0.2


def test_information_is_that_above_the_mean_over_every_pairing() -> None:
    first = [0, 0, 1, 2, 2]
    second = [0, 1, 1, 1, 0]
    above_chance = []
    for order in itertools.permutations(second):
        counts = np.zeros((3, 2), dtype=np.int64)
        np.add.at(counts, (first, list(order)), 1)
        above_chance.append(information_above_chance(counts))
    assert statistics.fmean(above_chance) == pytest.approx(0, abs=1e-12)


def test_information_of_a_perfect_code_of_two_words_is_one_bit() -> None:
    assert information_above_chance(np.array([[500, 0], [0, 500]])) == pytest.approx(1, abs=0.01)


def test_chance_information_of_a_large_table_is_that_of_the_chi_square_approximation() -> None:
    counts = np.full((20, 20), 500)
    degrees_of_freedom = 19 * 19
    expected = degrees_of_freedom / (2 * np.log(2) * counts.sum())
    assert chance_information(counts) == pytest.approx(expected, rel=1e-2)


def test_only_trained_seats_count_and_only_self_play_is_compared_with_blind_play() -> None:
    episodes = [
        replace(episode, seats=("player_0@3", "blind")) for episode in play("hint-bot", "blind")
    ]
    metrics = step_metrics(episodes)
    assert "player_0/share/hint" in metrics
    assert not [name for name in metrics if name.startswith("player_1")]
    assert metrics["share/hint"] == metrics["player_0/share/hint"]
    # The partner's answers say nothing about the players that learn.
    assert metrics["hint_pairs"] == 0.0
    assert "over_blind/laptop" not in metrics


def test_games_that_do_not_fit_their_deal_are_left_out() -> None:
    episode = play("blind", "blind")[0]
    assert len(replayed([episode])) == 1
    first, *rest = episode.turns
    broken = [
        replace(episode, turns=(*rest, first)),
        replace(episode, turns=(replace(first, action="Play 7"), *rest)),
        replace(episode, turns=(replace(first, action="dance"), *rest)),
        replace(episode, turns=(*episode.turns, *episode.turns)),
        replace(episode, spec_hash="0"),
        replace(episode, preset="no such board"),
        replace(episode, suite="not a suite!"),
        replace(episode, seed=-1),
    ]
    assert replayed(broken) == []
    assert step_metrics(broken)["hint_pairs"] == 0.0
