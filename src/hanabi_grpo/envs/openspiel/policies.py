"""Opponents that search or solve: minimax, Monte Carlo tree search and an equilibrium by CFR+."""

import functools
import random
from functools import partial
from typing import Any

import pyspiel

from hanabi_grpo.envs.base import MixedScript, Observation, Script, even_chances
from hanabi_grpo.envs.openspiel.game import View
from hanabi_grpo.envs.openspiel.rules import load
from hanabi_grpo.errors import SettingsError

EXPLORATION = 2.0
"""Exploration constant c of UCT."""
ROLLOUTS = 10
"""Random playouts per leaf; this and `EXPLORATION` are as in MARSHAL (arXiv 2510.15414)."""
CFR_ITERATIONS = 100
"""Default iterations; the average policy's exploitability is .0012 in Kuhn and .0134 in Leduc."""
_MOST_MOVES = 20
"""Maximum game length, in moves, for a full tree search."""
_MOST_MEGABYTES = 1000
"""Memory limit of one MCTS tree."""
_NUM_SEEDS = 2**31
_SIMULATIONS = (10, 100, 1000)
"""Simulations per move of the available searches."""
_WON = 1.0
_LOST = -1.0


def minimax() -> MixedScript:
    """Return the script that samples uniformly from the best actions by full tree search."""

    def best_replies(seen: Observation) -> list[str]:
        view = seen.view()
        state = _position(view, "minimax")
        values = _Values(view.game)
        worth = [-values.of(state.child(action)) for action in view.legal]
        best = max(worth)
        best_texts = []
        for text, value in zip(seen.legal() or (), worth, strict=True):
            if value == best:
                best_texts.append(text)
        return best_texts

    return MixedScript(
        "minimax",
        lambda seen, rng: rng.choice(best_replies(seen)),
        lambda seen: even_chances(best_replies(seen)),
    )


def mcts(simulations: int) -> Script:
    """Return OpenSpiel's Monte Carlo tree search without its solver, seeded per move."""
    name = f"mcts-{simulations}"

    def choose(seen: Observation, rng: random.Random) -> str:
        view = seen.view()
        state = _position(view, name)
        seed = rng.randrange(_NUM_SEEDS)
        evaluator = pyspiel.RandomRolloutEvaluator(ROLLOUTS, seed)
        solve = False
        verbose = False
        bot = pyspiel.MCTSBot(
            load(view.game),
            evaluator,
            EXPLORATION,
            simulations,
            _MOST_MEGABYTES,
            solve,
            seed,
            verbose,
        )
        texts = seen.legal() or ()
        return texts[view.legal.index(bot.step(state))]

    return Script(name, choose)


SEARCHES = {f"mcts-{simulations}": partial(mcts, simulations) for simulations in _SIMULATIONS}
"""Searches by name, for games without hidden information."""


def cfr(iterations: int) -> MixedScript:
    """Return the average policy of CFR+ after some iterations (Tammelin, arXiv 1407.5042).

    A game is solved once per process.
    """
    name = "cfr" if iterations == CFR_ITERATIONS else f"cfr-{iterations}"

    def chances(seen: Observation) -> dict[str, float]:
        view = seen.view()
        by_action = dict(equilibrium(view.game, iterations)[view.information])
        weights = [by_action.get(action, 0.0) for action in view.legal]
        return dict(zip(seen.legal() or (), weights, strict=True))

    def choose(seen: Observation, rng: random.Random) -> str:
        by_reply = chances(seen)
        [choice] = rng.choices(tuple(by_reply), tuple(by_reply.values()))
        return choice

    return MixedScript(name, choose, chances)


@functools.lru_cache(maxsize=16)
def equilibrium(game: str, iterations: int = CFR_ITERATIONS) -> dict[str, list[tuple[int, float]]]:
    """Return the actions and their probabilities per information state."""
    solver = pyspiel.CFRPlusSolver(load(game))
    for _ in range(iterations):
        solver.evaluate_and_update_policy()
    return dict(solver.tabular_average_policy().policy_table())


@functools.lru_cache(maxsize=8)
class _Values:
    """Values of positions for the player to move: 1 for a win, 0 for a draw, -1 for a loss.

    There is one object per game, which evaluates each position once.
    """

    def __init__(self, game: str) -> None:
        moves = load(game).max_game_length()
        if moves > _MOST_MOVES:
            raise SettingsError(
                f"minimax: a game of {game} has up to {moves} moves, more than the {_MOST_MOVES} "
                "that can be searched; use mcts-1000, or a smaller board (HANABI_ROWS, "
                "HANABI_COLUMNS)."
            )
        self.values: dict[str, float] = {}

    def of(self, state: Any) -> float:
        """Return the value of a position for the player whose turn it is.

        If the game is over, this is the player who would be next.
        """
        if state.is_terminal():
            # The player who moved last never loses.
            return -max(state.returns())
        key = str(state)
        if key not in self.values:
            best = _LOST
            for action in state.legal_actions():
                best = max(best, -self.of(state.child(action)))
                if best == _WON:
                    break
            self.values[key] = best
        return self.values[key]


def _position(view: View, name: str) -> Any:
    """Return OpenSpiel's state for a position that its player knows completely.

    Raises:
        SettingsError: The game has hidden information, so the script `name` cannot play it.
    """
    if view.history is None:
        raise SettingsError(
            f"{name}: {view.game} has hidden cards, but this script needs the whole position; "
            "choose cfr."
        )
    state = load(view.game).new_initial_state()
    for action in view.history:
        state.apply_action(action)
    return state
