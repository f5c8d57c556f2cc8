"""Scripts that follow rules know no hidden card, on every board; `test_planners` has the others.

That their moves are legal is a check of `envs.conformance`.
"""

from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game, script, scripted_game, swap_own_cards
from hanabi_grpo.envs.base import Observation, Policy, Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI, HanabiGame
from hanabi_grpo.envs.hanabi.policies import PLANNERS, POLICIES
from hanabi_grpo.envs.hanabi.policies.rule_bots import rule_bot
from hanabi_grpo.envs.hanabi.rules import Game, make_spec

SCRIPTS = [name for name in POLICIES if name not in PLANNERS]
LAPTOP = EnvConfig(preset="laptop", observation="compact")
RANDOM_SCORE_ON_LAPTOP = 0.64


def next_move(policy: Policy, game: Game) -> str:
    """Return the move of a script whose turn it is."""
    spec = game.spec
    config = EnvConfig(preset=spec.preset, players=spec.num_players, observation="compact")
    task = Setup(HANABI, config).task("test", 3)
    player = game.current_player
    seat = policy.seat(player, task=task, game=0)
    return seat.act(Observation(HanabiGame(config, game), player))


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_no_move_depends_on_the_movers_own_hidden_cards(
    preset: str, num_players: int, name: str, rng
) -> None:
    game = random_game(make_spec(preset, num_players), rng)
    needs_three = name == "hat-bot" and num_players == 2
    if game.is_over or needs_three:
        return
    other = swap_own_cards(game, game.current_player, rng)
    if other is not None:
        assert next_move(script(name), other) == next_move(script(name), game)


def test_noise_one_is_random_play() -> None:
    noisy_bot = rule_bot("hint-bot", noise=1.0)
    scores = []
    for seed in range(2000):
        game = scripted_game(LAPTOP, [noisy_bot, noisy_bot], suite="train", seed=seed)
        scores.append(game.score)
    assert abs(fmean(scores) - RANDOM_SCORE_ON_LAPTOP) < 0.12
