"""Scripts that follow rules know no hidden card, on every board; `test_planners` has the others.

That their moves are legal is a check of `envs.conformance`.
"""

import random
from statistics import fmean

import pytest

from boards import ALL_BOARDS, random_game, script, scripted_game, swap_own_cards
from hanabi_grpo.envs.base import Observation, Policy, Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI, HanabiGame
from hanabi_grpo.envs.hanabi.policies import PLANNERS, POLICIES
from hanabi_grpo.envs.hanabi.policies.rule_bots import rule_bot
from hanabi_grpo.envs.hanabi.rules import Game, make_spec

SCRIPTS = [name for name in POLICIES if name not in PLANNERS]
SEATED = [
    (name, preset, num_players)
    for name in SCRIPTS
    for preset, num_players in ALL_BOARDS
    # Two players have nobody whose hats both would see.
    if "hat-bot" not in name or num_players > 2
]
"""Scripts and the boards that they can play."""
NUM_COMPARED = 4
"""Pairs of positions of each script and board."""
MOST_GAMES = 400
"""In which so many pairs are looked for."""
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


@pytest.mark.parametrize(("name", "preset", "num_players"), SEATED)
def test_no_move_depends_on_the_movers_own_hidden_cards(
    name: str, preset: str, num_players: int
) -> None:
    rng = random.Random(f"{name} {preset} {num_players}")
    num_compared = 0
    for _ in range(MOST_GAMES):
        if num_compared >= NUM_COMPARED:
            break
        game = random_game(make_spec(preset, num_players), rng)
        if game.is_over:
            continue
        other = swap_own_cards(game, game.current_player, rng)
        if other is not None:
            assert next_move(script(name), other) == next_move(script(name), game)
            num_compared += 1
    assert num_compared >= NUM_COMPARED


def test_noise_one_is_random_play() -> None:
    noisy_bot = rule_bot("hint-bot", noise=1.0)
    scores = []
    for seed in range(2000):
        game = scripted_game(LAPTOP, [noisy_bot, noisy_bot], suite="train", seed=seed)
        scores.append(game.score)
    assert abs(fmean(scores) - RANDOM_SCORE_ON_LAPTOP) < 0.12
