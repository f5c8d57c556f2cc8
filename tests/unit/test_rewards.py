"""Named reward parts."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_move
from hanabi_grpo.envs.hanabi.rewards import RewardWeights, move_rewards
from hanabi_grpo.envs.hanabi.rules import Game, make_spec, shuffled_deck
from hanabi_grpo.types import TEAM_PARTS, ReplyKind

WEIGHTS = RewardWeights(score=2.0, illegal=-0.5, unparsable=-0.75, bomb_rule="zero")


@pytest.mark.parametrize(
    ("kind", "scored", "bombed", "score_kept", "parts"),
    [
        (ReplyKind.LEGAL, False, False, 3, {}),
        (ReplyKind.LEGAL, True, False, 3, {"score": 2.0}),
        (ReplyKind.LEGAL, False, True, 3, {"bomb": -6.0}),
        (ReplyKind.LEGAL, False, True, 0, {}),
        (ReplyKind.ILLEGAL, False, False, 3, {"illegal": -0.5}),
        (ReplyKind.ILLEGAL, True, False, 1, {"score": 2.0, "illegal": -0.5}),
        (ReplyKind.UNPARSABLE, False, True, 1, {"bomb": -2.0, "unparsable": -0.75}),
    ],
)
def test_each_move_gets_exactly_these_parts(
    kind: ReplyKind, scored: bool, bombed: bool, score_kept: int, parts: dict[str, float]
) -> None:
    assert move_rewards(WEIGHTS, kind=kind, scored=scored, bombed=bombed, score_kept=score_kept) == parts


def test_under_the_keep_rule_a_bomb_takes_nothing_away() -> None:
    weights = RewardWeights(bomb_rule="keep")
    assert move_rewards(weights, kind=ReplyKind.LEGAL, scored=False, bombed=True, score_kept=3) == {}


@settings(deadline=None)
@given(board=st.sampled_from(ALL_BOARDS), seed=st.integers(0, 2**32), weight=st.sampled_from([1.0, 0.5, 3.0]))
def test_team_parts_add_up_to_the_weighted_score_of_the_rule(board: tuple[str, int], seed: int, weight: float) -> None:
    spec = make_spec(*board)
    game = Game(spec, shuffled_deck(spec, "train", seed))
    rng = random.Random(seed)
    careful = rng.random() < 0.5
    zero = RewardWeights(score=weight, bomb_rule="zero")
    keep = RewardWeights(score=weight, bomb_rule="keep")
    totals = {"zero": 0.0, "keep": 0.0}
    while not game.is_over:
        event = game.apply(random_move(game, rng, careful=careful))
        kind = rng.choice(list(ReplyKind))
        for weights in (zero, keep):
            totals[weights.bomb_rule] += _team(weights, kind, event.scored, game)
    assert totals == {"zero": weight * game.score, "keep": weight * game.score_kept}


def _team(weights: RewardWeights, kind: ReplyKind, scored: bool, game: Game) -> float:
    parts = move_rewards(weights, kind=kind, scored=scored, bombed=game.is_bombed, score_kept=game.score_kept)
    return sum(value for part, value in parts.items() if part in TEAM_PARTS)
