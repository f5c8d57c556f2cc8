"""How noisy are estimates of what a move was worth, and what do they cost? Scripts play; nothing is
trained.

    .venv/bin/python tools/recipes/paired_replay.py laptop marshal-mini      # 1 to 2 minutes a board on one core

Both players are IGGI with a fifth of the moves random. In each of 1000 games one turn is drawn, and
its true advantage is found by 200 games played on from behind the move, less 200 from before it.
Against that stand

- group: the game's score less the mean of 15 other games of its task (`rloo`),
- vine: the game's score less the mean of 16 games played on from before the move (VinePPO, arXiv
  2410.01679),
- k pairs: the mean of k differences between the move and another one drawn in its place, both
  played on with the same random numbers.

docs/results.md has what came of it.
"""

import random
import sys
from statistics import correlation, fmean, pvariance
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Game, Observation
from hanabi_grpo.envs.hanabi.policies.rule_bots import move_text, rule_move

GAMES, ROLLOUTS, GROUP, VINE, NOISE = 1000, 200, 16, 16, 0.2


def move(game: Game, player: int, rng: random.Random) -> str:
    """Return a move; as many numbers are drawn whatever is done, so that two games can share
    them.
    """
    coin, place, inner = rng.random(), rng.random(), random.Random(rng.random())
    if coin < NOISE:
        legal = sorted(game.legal(player) or ())
        return legal[int(place * len(legal))]
    seen = Observation(game, player, None)
    return move_text(seen, rule_move("iggi", seen.view(), inner))


def finish(game: Game, rng: random.Random) -> float:
    """Play a game to its end and return its score."""
    while game.to_act():
        (player,) = game.to_act()
        game.step({player: move(game, player, rng)})
    return game.result()["score"]


def look(setup: Any, task: int, rng: random.Random) -> tuple[int, list[float]]:
    """Return the turns behind a drawn one, and its true advantage, by group, by vine, by one pair,
    by four pairs.
    """
    task = setup.task("eval", task)

    def new() -> Game:
        return task.environment.reset(task.config, split=task.split, seed=task.seed)

    game, turns = new(), []
    while game.to_act():
        (player,) = game.to_act()
        turns.append((game.copy(), player, move(game, player, rng)))
        game.step({player: turns[-1][2]})
    score, others = game.result()["score"], [finish(new(), rng) for _ in range(GROUP - 1)]
    place = rng.randrange(len(turns))
    state, player, chosen = turns[place]

    def after(action: str, seed: float) -> float:
        copy = state.copy()
        copy.step({player: action})
        return finish(copy, random.Random(seed))

    true = fmean(after(chosen, rng.random()) - finish(state.copy(), rng) for _ in range(ROLLOUTS))
    seeds = [rng.random() for _ in range(4)]
    pairs = [after(chosen, seed) - after(move(state, player, rng), seed) for seed in seeds]
    vine = score - fmean(finish(state.copy(), rng) for _ in range(VINE))
    return len(turns) - place - 1, [true, score - fmean(others), vine, pairs[0], fmean(pairs)]


def main() -> None:
    """Print a table a board."""
    for board in sys.argv[1:] or ["laptop"]:
        setup, rng = registry.setup("hanabi", {"preset": board}), random.Random(0)
        found = [look(setup, task, rng) for task in range(GAMES)]
        behind = fmean(turns for turns, _ in found)
        true, *estimates = zip(*(values for _, values in found), strict=True)
        # The game itself is the first branch of the first pair.
        generated = {
            "group": 1.0,
            "vine": 1 + VINE * behind,
            "1 pair": 1 + behind,
            "4 pairs": 1 + 7 * behind,
        }
        print(
            f"\n{board}: estimate | correlation with the truth | noise / signal | turns played a "
            "turn learned"
        )
        for (name, cost), values in zip(generated.items(), estimates, strict=True):
            noise = pvariance(
                [one - other for one, other in zip(values, true, strict=True)]
            ) / pvariance(true)
            print(f"{name:8} | {correlation(values, true):.2f} | {noise:.2f} | {cost:.1f}")


if __name__ == "__main__":
    main()
