"""Opponents that search or solve: minimax, Monte Carlo tree search and an equilibrium by CFR+."""

import functools
import random
from functools import partial
from typing import Any

import pyspiel

from hanabi_grpo.envs.base import Observation, Script
from hanabi_grpo.envs.openspiel.game import View
from hanabi_grpo.envs.openspiel.rules import load
from hanabi_grpo.errors import SettingsError

EXPLORATION = 2.0
ROLLOUTS = 10
"""Random playouts that value a leaf; with `EXPLORATION` as in MARSHAL (arXiv 2510.15414)."""
CFR_ITERATIONS = 100
"""Exploitability of the average policy: .0012 in Kuhn poker, .0134 in Leduc."""
_MOST_MOVES = 20
"""Moves of the longest game whose tree is searched."""


def minimax() -> Script:
    """Return the script that draws evenly among the best actions, by the values of the whole game
    tree.
    """

    def choose(seen: Observation, rng: random.Random) -> str:
        view = seen.view()
        state = _position(view, "minimax")
        values = _Values(view.game)
        worth = [-values.of(state.child(action)) for action in view.legal]
        best = max(worth)
        return rng.choice(
            [text for text, value in zip(seen.legal() or (), worth, strict=True) if value == best]
        )

    return Script("minimax", choose)


def mcts(simulations: int) -> Script:
    """Return OpenSpiel's Monte Carlo tree search without its solver, seeded per move."""

    def choose(seen: Observation, rng: random.Random) -> str:
        view = seen.view()
        state = _position(view, f"mcts-{simulations}")
        seed = rng.randrange(2**31)
        evaluator = pyspiel.RandomRolloutEvaluator(ROLLOUTS, seed)
        bot = pyspiel.MCTSBot(
            load(view.game), evaluator, EXPLORATION, simulations, 1000, False, seed, False
        )
        return (seen.legal() or ())[view.legal.index(bot.step(state))]

    return Script(f"mcts-{simulations}", choose)


SEARCHES = {f"mcts-{number}": partial(mcts, number) for number in (10, 100, 1000)}
"""By name, for games in which nothing is hidden."""


def cfr(iterations: int) -> Script:
    """Return the average policy of CFR+ after so many iterations (Tammelin, arXiv 1407.5042),
    solved once a process.
    """

    def choose(seen: Observation, rng: random.Random) -> str:
        view = seen.view()
        chances = dict(equilibrium(view.game, iterations)[view.information])
        return rng.choices(seen.legal() or (), [chances.get(action, 0.0) for action in view.legal])[
            0
        ]

    return Script("cfr" if iterations == CFR_ITERATIONS else f"cfr-{iterations}", choose)


@functools.lru_cache(maxsize=16)
def equilibrium(game: str, iterations: int = CFR_ITERATIONS) -> dict[str, list[tuple[int, float]]]:
    """Return per information state the actions and their chances."""
    solver = pyspiel.CFRPlusSolver(load(game))
    for _ in range(iterations):
        solver.evaluate_and_update_policy()
    return dict(solver.tabular_average_policy().policy_table())


@functools.lru_cache(maxsize=8)
class _Values:
    """Values of positions for the player to move: 1 won, 0 drawn, -1 lost. Each position is looked
    at once.
    """

    def __init__(self, game: str) -> None:
        moves = load(game).max_game_length()
        if moves > _MOST_MOVES:
            raise SettingsError(
                f"minimax: a game of {game} has up to {moves} moves, more than the {_MOST_MOVES} "
                "that can be searched; "
                "play against mcts-1000, or on a smaller board (HANABI_ROWS, HANABI_COLUMNS)."
            )
        self.known: dict[str, float] = {}

    def of(self, state: Any) -> float:
        """Return the value of a position for the player whose turn it is, or for the next one when
        the game is over.
        """
        if state.is_terminal():
            # Whoever moved last is never the loser.
            return -max(state.returns())
        key = str(state)
        if key not in self.known:
            best = -1.0
            for action in state.legal_actions():
                best = max(best, -self.of(state.child(action)))
                if best == 1.0:
                    break
            self.known[key] = best
        return self.known[key]


def _position(view: View, name: str) -> Any:
    """Return the position, which has to be known to its player."""
    if view.history is None:
        raise SettingsError(
            f"{name}: {view.game} hides cards, and this script reads the whole position; choose "
            "cfr."
        )
    state = load(view.game).new_initial_state()
    for action in view.history:
        state.apply_action(action)
    return state
