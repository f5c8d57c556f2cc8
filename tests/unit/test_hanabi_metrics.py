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


def play(*team: str, tasks: int = 8, config: EnvConfig = LAPTOP) -> list[Episode]:
    return scripted_episodes(config, team, range(tasks), num_games=4)


def test_blind_play_is_recognised_and_scores_what_blind_play_scores() -> None:
    games = play("blind", "blind")
    figures = step_metrics(games)
    assert figures["player_0/blind_share"] == figures["player_0/top_move_share"] == 1.0
    assert figures["share/play"] == 1.0
    assert figures["share/hint"] == figures["player_0/share/hint_color"] == 0.0
    assert figures["over_blind/laptop"] == 0.0
    assert figures["blind/laptop"] == statistics.fmean(one.result["score"] for one in games)
    assert figures["score_kept/mean"] == statistics.fmean(one.result["score_kept"] for one in games)
    assert figures["bombs_per_game"] == statistics.fmean(one.result["bombed"] for one in games)
    assert figures["hint_pairs"] == figures["hints_per_game"] == 0.0
    # The board begins with all hints, so a discard is never legal; nothing can be said about it.
    assert "player_0/share/discard" not in figures
    assert "hint_bits" not in figures
    assert step_metrics([]) == {}


def test_moves_that_replaced_a_bad_reply_are_nobody_s_choice() -> None:
    episode = play("blind", "blind")[0]
    bad = replace(
        episode, turns=tuple(replace(turn, kind=ReplyKind.ILLEGAL) for turn in episode.turns)
    )
    assert not [name for name in step_metrics([bad]) if "share/" in name or "blind_share" in name]


def test_hints_that_nobody_reads_carry_nothing_and_a_bot_s_do() -> None:
    assert abs(step_metrics(play("random", "random", tasks=100))["hint_bits"]) < 0.03
    assert step_metrics(play("hint-bot", "hint-bot", tasks=100))["hint_bits"] > 0.2


def test_information_is_that_above_the_mean_over_every_pairing() -> None:
    before, after = [0, 0, 1, 2, 2], [0, 1, 1, 1, 0]

    def table(order: tuple[int, ...]) -> np.ndarray:
        counts = np.zeros((3, 2), dtype=np.int64)
        np.add.at(counts, (before, list(order)), 1)
        return counts

    above = [information_above_chance(table(order)) for order in itertools.permutations(after)]
    assert statistics.fmean(above) == pytest.approx(0, abs=1e-12)
    assert information_above_chance(np.array([[500, 0], [0, 500]])) == pytest.approx(1, abs=0.01)
    many = np.full((20, 20), 500)
    assert chance_information(many) == pytest.approx(
        19 * 19 / (2 * np.log(2) * many.sum()), rel=1e-2
    )


def test_only_trained_seats_count_and_only_self_play_is_compared_with_blind_play() -> None:
    seated = [
        replace(episode, seats=("player_0@3", "blind")) for episode in play("hint-bot", "blind")
    ]
    figures = step_metrics(seated)
    assert "player_0/share/hint" in figures
    assert not [name for name in figures if name.startswith("player_1")]
    assert figures["share/hint"] == figures["player_0/share/hint"]
    assert figures["hint_pairs"] == 0.0, (
        "the partner's answers say nothing about the players that learn"
    )
    assert "over_blind/laptop" not in figures


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
