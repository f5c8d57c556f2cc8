"""All scripts that follow rules: legal on every board, blind to hidden cards, with the scores that tables print.

The others are in `test_planners`.
"""

from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards import ALL_BOARDS, random_game, script, scripted_game, swap_own_cards
from hanabi_grpo.envs.base import Observation, Policy, Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI, HanabiGame
from hanabi_grpo.envs.hanabi.policies import PLANNERS, POLICIES, hint_bot
from hanabi_grpo.envs.hanabi.rules import Game, make_spec

SCRIPTS = [name for name in POLICIES if name not in PLANNERS]
BOTS = SCRIPTS[3:]
LAPTOP = EnvConfig(preset="laptop", observation="compact")


def answer(policy: Policy, game: Game, number: int = 0) -> str:
    config = EnvConfig(preset=game.spec.preset, players=game.spec.num_players, observation="compact")
    player = game.current_player
    seat = policy.seat(player, task=Setup(HANABI, config).task("test", 3), game=number)
    return seat.act(Observation(HanabiGame(config, game), player))


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(rng=st.randoms(use_true_random=False))
def test_no_move_depends_on_the_movers_own_hidden_cards(preset: str, num_players: int, name: str, rng) -> None:
    game = random_game(make_spec(preset, num_players), rng)
    other = None if game.is_over else swap_own_cards(game, game.current_player, rng)
    if other is not None:
        assert answer(script(name), other) == answer(script(name), game)


@pytest.mark.parametrize("name", BOTS)
@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_bots_make_only_legal_moves_on_every_board_with_any_partner(preset: str, num_players: int, name: str) -> None:
    config = EnvConfig(preset=preset, players=num_players)
    for seed in range(6):
        scripted_game(config, [name] * num_players, seed=seed)
        strangers = ["random" if seat % 2 == seed % 2 else name for seat in range(num_players)]
        scripted_game(config, strangers, seed=seed)


def test_noise_one_is_random_play() -> None:
    scores = [scripted_game(LAPTOP, [hint_bot(1.0)] * 2, suite="train", seed=seed).score for seed in range(2000)]
    assert abs(fmean(scores) - 0.64) < 0.12
