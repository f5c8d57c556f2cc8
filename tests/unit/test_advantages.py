"""Estimators against values worked out by hand."""

import pytest

from hanabi_grpo.advantages import grpo, turn
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn


def _turn(player: int, **rewards: float) -> Turn:
    kind = ReplyKind.ILLEGAL if "illegal" in rewards else ReplyKind.LEGAL
    return Turn(player=player, prompt="", reply="Play 0", action="Play 0", kind=kind, rewards=rewards)


def _episode(*turns: Turn, score: int) -> Episode:
    return Episode(
        preset="laptop",
        spec_hash="x",
        num_players=2,
        suite="train",
        seed=0,
        status=EpisodeStatus.FINISHED,
        score=score,
        score_kept=score,
        turns=turns,
    )


def _group() -> list[Episode]:
    return [
        _episode(_turn(0, score=1.0), _turn(1, score=1.0), _turn(0), score=2),
        _episode(_turn(0, illegal=-0.5), _turn(1), score=0),
        _episode(_turn(0, score=1.0), score=1),
    ]


def test_grpo_normalises_the_players_return_within_the_deal() -> None:
    # Returns of player 0: 2, -0.5, 1; mean 0.8333, sample std 1.2583.
    first, second, third = grpo(_group(), 0)
    assert first == pytest.approx([0.92706, 0.92706], abs=1e-3)
    assert second == pytest.approx([-1.05957], abs=1e-3)
    assert third == pytest.approx([0.13244], abs=1e-3)


def test_a_player_without_a_turn_does_not_enter_its_baseline() -> None:
    # Player 1 moved in two games, with returns 2 and 0: mean 1, std sqrt(2).
    first, second, third = grpo(_group(), 1)
    assert first == pytest.approx([0.70706], abs=1e-3)
    assert second == pytest.approx([-0.70706], abs=1e-3)
    assert third == []


def test_turn_credit_puts_a_penalty_on_the_reply_that_earned_it_only() -> None:
    # Team returns of player 0's games: 2, 0, 1; mean 1, std 1.
    first, second, third = turn(_group(), 0)
    assert first == pytest.approx([1.0, 1.0], abs=1e-3)
    assert second == pytest.approx([-1.0 + 2.0 * -0.5], abs=1e-3)
    assert third == pytest.approx([0.0], abs=1e-3)


def test_equal_games_give_no_advantage() -> None:
    group = [_episode(_turn(0, score=1.0), score=1) for _ in range(4)]
    assert grpo(group, 0) == [[0.0]] * 4
    assert turn(group, 0) == [[0.0]] * 4
