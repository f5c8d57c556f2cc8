"""R18: random OpenSpiel games through the environment's interface, against OpenSpiel alone."""

import random
from typing import TYPE_CHECKING, Any

import pyspiel

from bench.context import Bench
from bench.pairing import Measure, Stopwatch, measure_pairs, ratios_of
from bench.row import Row, at_most
from hanabi_grpo.envs import registry

if TYPE_CHECKING:
    from hanabi_grpo.envs.base import Setup

TARGET = at_most(2)
GAMES = ("connect_four", "tic_tac_toe", "kuhn_poker", "leduc_poker")
_EPISODES = 300
"""Games per run of an arm."""


async def random_play(bench: Bench) -> list[Row]:
    """R18a to R18d, without an engine: CPU time per move in each game, including start and end."""
    rows = []
    for letter, name in zip("abcd", GAMES, strict=True):
        setup = registry.setup(name, registry.get(name).presets[name].model_dump())
        game = pyspiel.load_game(name)

        async def ours(setup: "Setup" = setup) -> Measure:
            return _through_environment(setup)

        async def bare(game: Any = game) -> Measure:
            return _bare(game)

        _, ratios = ratios_of(await measure_pairs(ours, bare, pairs=bench.pairs))
        rows.append(
            Row(
                id=f"R18{letter}",
                name=f"a random move of {name} ÷ OpenSpiel's own",
                arms=("reset, to_act, legal, step and result", "a loop over OpenSpiel's states"),
                ratios=ratios,
                target=TARGET,
                how=f"{_EPISODES} games per arm in one process, CPU time",
            )
        )
    return rows


def _through_environment(setup: "Setup") -> Measure:
    rng = random.Random(0)
    moves = 0
    with Stopwatch() as watch:
        for seed in range(_EPISODES):
            game = setup.environment.reset(setup.config, split="eval", seed=seed)
            acting = game.to_act()
            while acting:
                for player in acting:
                    legal = game.legal(player)
                    assert legal is not None, "OpenSpiel's games list their moves"
                    game.step({player: rng.choice(legal)})
                    moves += 1
                acting = game.to_act()
            game.result()
    return watch.measure(moves)


def _bare(game: Any) -> Measure:
    rng = random.Random(0)
    moves = 0
    with Stopwatch() as watch:
        for _ in range(_EPISODES):
            state = game.new_initial_state()
            while not state.is_terminal():
                if state.is_chance_node():
                    outcomes, chances = zip(*state.chance_outcomes(), strict=True)
                    state.apply_action(rng.choices(outcomes, chances)[0])
                else:
                    state.apply_action(rng.choice(state.legal_actions()))
                    moves += 1
            state.returns()
    return watch.measure(moves)
