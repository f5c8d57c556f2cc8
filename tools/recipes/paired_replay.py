"""How noisy are estimates of a move's advantage, and what do they cost?

Scripts play; nothing is trained. It takes 1 to 2 minutes per board on one core:

    .venv/bin/python tools/recipes/paired_replay.py laptop marshal-mini

Both players are IGGI with a fifth of the moves random. In each of 1000 games, one turn is drawn.
Its true advantage is estimated by 200 continuations from after the move, minus 200 from before it.
It is compared with these estimates:

- group: the game's score minus the mean of 15 other games of its task (`rloo`),
- vine: the game's score minus the mean of 16 continuations from before the move (VinePPO, arXiv
  2410.01679),
- k pairs: the mean of k differences between the move and another one drawn in its place, both
  continued with the same random numbers.

docs/results-appendix.md has the results.
"""

import random
import sys
from dataclasses import dataclass
from statistics import correlation, fmean, pvariance
from typing import Any

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Game, Observation
from hanabi_grpo.envs.hanabi.policies.rule_bots import move_text, rule_move

NUM_GAMES = 1000
"""Games per board; one turn of each is examined."""
NUM_ROLLOUTS = 200
"""Continuations from before and from after the move, for its true advantage."""
GROUP_SIZE = 16
"""Games of a task in a group."""
NUM_VINE_ROLLOUTS = 16
NUM_PAIRS = 4
NOISE = 0.2
"""Share of the moves that are random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTurn:
    """A turn that was drawn, its true advantage and the estimates of it."""

    turns_behind: int
    """Turns of the game that follow it."""
    true: float
    """Its advantage from many games."""
    group: float
    """The estimates, see the module's docstring."""
    vine: float
    one_pair: float
    four_pairs: float


def move(game: Game, player: int, rng: random.Random) -> str:
    """Return a move.

    A random move draws as many random numbers as one of IGGI's, so that two games can share them.
    """
    coin = rng.random()
    choice = rng.random()
    bot_rng = random.Random(rng.random())
    if coin < NOISE:
        legal = sorted(game.legal(player) or ())
        return legal[int(choice * len(legal))]
    observation = Observation(game, player, None)
    return move_text(observation, rule_move("iggi", observation.view(), bot_rng))


def finish(game: Game, rng: random.Random) -> float:
    """Play a game to its end and return its score."""
    while game.to_act():
        (player,) = game.to_act()
        game.step({player: move(game, player, rng)})
    return game.result()["score"]


def play_on(state: Game, player: int, action: str, seed: float) -> float:
    """Return the score of a game that continues from a state with an action.

    Args:
        state: The game before the action; it is not changed.
        player: The player who acts.
        action: The action.
        seed: Draws all that follows.
    """
    game = state.copy()
    game.step({player: action})
    return finish(game, random.Random(seed))


def look_at_a_turn(setup: Any, number: int, rng: random.Random) -> DrawnTurn:
    """Play a game of a task, draw one of its turns and estimate the advantage of its move.

    Args:
        setup: The board.
        number: Number of the task.
        rng: Draws everything.
    """
    task = setup.task("eval", number)

    def new_game() -> Game:
        return task.environment.reset(task.config, split=task.split, seed=task.seed)

    game = new_game()
    turns = []
    while game.to_act():
        (player,) = game.to_act()
        state = game.copy()
        action = move(game, player, rng)
        turns.append((state, player, action))
        game.step({player: action})
    score = game.result()["score"]
    other_scores = [finish(new_game(), rng) for _ in range(GROUP_SIZE - 1)]
    index = rng.randrange(len(turns))
    state, player, action = turns[index]

    differences = []
    for _ in range(NUM_ROLLOUTS):
        from_behind = play_on(state, player, action, rng.random())
        from_before = finish(state.copy(), rng)
        differences.append(from_behind - from_before)

    pairs = []
    seeds = [rng.random() for _ in range(NUM_PAIRS)]
    for seed in seeds:
        with_move = play_on(state, player, action, seed)
        with_another = play_on(state, player, move(state, player, rng), seed)
        pairs.append(with_move - with_another)

    vine_scores = [finish(state.copy(), rng) for _ in range(NUM_VINE_ROLLOUTS)]
    return DrawnTurn(
        turns_behind=len(turns) - index - 1,
        true=fmean(differences),
        group=score - fmean(other_scores),
        vine=score - fmean(vine_scores),
        one_pair=pairs[0],
        four_pairs=fmean(pairs),
    )


def print_table(board: str) -> None:
    """Print how good and how expensive each estimate is on a board."""
    setup = registry.setup("hanabi", {"preset": board})
    rng = random.Random(0)
    drawn = [look_at_a_turn(setup, number, rng) for number in range(NUM_GAMES)]
    true = [turn.true for turn in drawn]
    behind = fmean(turn.turns_behind for turn in drawn)
    print(
        f"\n{board}: estimate | correlation with the truth | noise / signal | "
        "turns played per turn learned"
    )
    print_row("group", [turn.group for turn in drawn], true, cost=1.0)
    vine_cost = 1 + NUM_VINE_ROLLOUTS * behind
    print_row("vine", [turn.vine for turn in drawn], true, cost=vine_cost)
    # The game itself is the first branch of the first pair.
    print_row("1 pair", [turn.one_pair for turn in drawn], true, cost=1 + behind)
    pairs_cost = 1 + (2 * NUM_PAIRS - 1) * behind
    print_row("4 pairs", [turn.four_pairs for turn in drawn], true, cost=pairs_cost)


def print_row(name: str, estimates: list[float], true: list[float], *, cost: float) -> None:
    """Print the row of one estimate.

    Args:
        name: What it is called.
        estimates: The estimate for each drawn turn.
        true: The true advantage of each drawn turn.
        cost: Turns played for each turn that is learned from.
    """
    errors = [estimate - truth for estimate, truth in zip(estimates, true, strict=True)]
    noise = pvariance(errors) / pvariance(true)
    print(f"{name:8} | {correlation(estimates, true):.2f} | {noise:.2f} | {cost:.1f}")


def main() -> None:
    """Print a table per board."""
    for board in sys.argv[1:] or ["laptop"]:
        print_table(board)


if __name__ == "__main__":
    main()
