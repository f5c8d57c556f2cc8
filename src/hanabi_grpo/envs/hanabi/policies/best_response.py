"""A team for a board with few decks: each player in turn was given the exact best response to the
others.

A response is to all decks and to everything that a player may have seen (Nair et al., "Taming
Decentralized POMDPs", IJCAI 2003, call it JESP). The first is to random play. Which of equally good
moves is taken is drawn anew in each response, so that a plateau is crossed: from the hint bot, and
with the first of equals, `laptop` ends at 3.36. The mean score is exact, up to a collision of 64
bits, and never falls; how far it is from the best one is not known."""

import functools
import itertools
import random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies.all_deals import (
    Hashes,
    Numbers,
    all_games,
    legal,
    mixed,
    seen_by,
    step,
)
from hanabi_grpo.envs.hanabi.policies.rule_bots import move_text, rule_move
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, num_decks
from hanabi_grpo.errors import SettingsError

MOST_DECKS = 2000
RESPONSES = 40
"""Of all players together."""


class Table(NamedTuple):
    """One player's moves by what it has seen."""

    seen: Hashes
    """Ascending."""
    moves: Numbers

    def find(self, seen: Hashes) -> Numbers:
        """Return the moves, -1 where the table has none."""
        if not len(self.seen):
            return np.full(len(seen), -1)
        places = np.minimum(np.searchsorted(self.seen, seen), len(self.seen) - 1)
        return np.where(self.seen[places] == seen, self.moves[places], -1)

    def choose(self, seen: Hashes, options: NDArray[np.bool_]) -> Numbers:
        """Return the moves, a random legal one where the table has none; `options` is
        `all_deals.legal`.
        """
        # The n-th of them, n drawn by what the player has seen.
        drawn = (mixed(seen, np.ones(1)) >> np.uint64(32)).astype(int) % options.sum(axis=1)
        found = self.find(seen)
        return np.where(found < 0, (options.cumsum(axis=1) > drawn[:, None]).argmax(axis=1), found)


Team = tuple[Table, ...]
"""A table per player. What it does not name is a random move, the same whenever a player has seen
the same.
"""
EMPTY = Table(np.zeros(0, np.uint64), np.zeros(0, int))


class _Choices(NamedTuple):
    """A level of the tree where the responding player moves: every legal move of every game is a
    child.
    """

    seen: Hashes
    """Each information set once, ascending."""
    sets: Numbers
    """Per child its information set, as a place in `seen`."""
    moves: Numbers
    """Per child the one that leads to it; the children of one game stand together, in the order of
    the games.
    """

    def best(
        self, values: NDArray[np.float64], salt: int | None
    ) -> tuple[Numbers, NDArray[np.float64]]:
        """Return the best move of each information set and the values of the games, given those of
        the children.
        """
        shape = len(self.seen), self.moves.max() + 1
        cells = np.ravel_multi_index((self.sets, self.moves), shape)
        totals = np.full(shape, -1.0)
        # Sums of whole numbers; less than one half decides among equals.
        if salt is None:
            ties = (shape[1] - self.moves) / (2.0 * shape[1] + 2)
        else:
            ties = mixed(mixed(self.seen[self.sets], self.moves), np.array([salt])) / 2.0**65
        totals.flat[cells] = np.bincount(cells, values, totals.size)[cells] + ties
        best = totals.argmax(axis=1)
        chosen = self.moves == best[self.sets]
        return best, values[chosen]


def respond(
    spec: GameSpec, team: Team, player: int, *, keeps: bool = False, salt: int | None = 0
) -> tuple[float, Team]:
    """Give a player the best response to the others; where they cannot bring it now, it does as it
    did before.

    Args:
        spec: The board.
        team: The players so far.
        player: Who responds.
        keeps: Whether the last life, once lost, leaves the points that were made.
        salt: Draws among equally good moves; None takes the first in the order of `rules/actions`.

    Returns:
        The mean score over all decks and the team.
    """
    games, levels = all_games(spec), list[tuple[_Choices | None, NDArray[np.float64], Numbers]]()
    for mover in itertools.cycle(range(spec.num_players)):
        choices, options, known = None, legal(spec, games, mover), games.seen[:, mover]
        if mover == player:
            parents, moves = options.nonzero()
            seen, sets = np.unique(known, return_inverse=True)
            choices = _Choices(seen, sets[parents], moves)
            games = games.take(parents)
        else:
            moves = team[mover].choose(known, options)
        games, is_over = step(spec, games, mover, moves)
        going = (~is_over).nonzero()[0]
        points = games.heights.sum(axis=1).astype(float)
        levels.append(
            (choices, points if keeps else np.where(games.lives == 0, 0.0, points), going)
        )
        games = games.take(going)
        if not len(games):
            break
    values, tables = np.zeros(0), list[Table]()
    for choices, scores, going in reversed(levels):
        scores[going] = values
        values = scores
        if choices is not None:
            best, values = choices.best(scores, salt)
            tables.append(Table(choices.seen, best))
    return float(values.mean()), (
        *team[:player],
        _joined([*tables, team[player]]),
        *team[player + 1 :],
    )


def complete(spec: GameSpec, team: Team) -> Team:
    """Return the team with the random moves that it makes among itself in its tables."""
    games, tables = all_games(spec), [[table] for table in team]
    for mover in itertools.cycle(range(spec.num_players)):
        seen = games.seen[:, mover]
        moves = team[mover].choose(seen, legal(spec, games, mover))
        tables[mover].append(Table(seen, moves))
        games, is_over = step(spec, games, mover, moves)
        games = games.take((~is_over).nonzero()[0])
        if not len(games):
            return tuple(map(_joined, tables))
    raise AssertionError("a cycle does not end")


@functools.lru_cache(maxsize=4)
def best_team(spec: GameSpec, keeps: bool, responses: int) -> tuple[float, Team]:
    """Return a team's mean score over all decks and the team, once a process; a SettingsError over
    `MOST_DECKS`.
    """
    count = num_decks(spec.num_colors, spec.num_ranks)
    if count > MOST_DECKS:
        raise SettingsError(
            f"best-response on {spec.preset}: the board has {count:.3g} decks and every one is "
            "played; at most "
            f"{MOST_DECKS} are possible. Choose search, or a board of 2 colours and 2 ranks such "
            "as laptop."
        )
    mean, team = 0.0, (EMPTY,) * spec.num_players
    for number in range(responses):
        # Random choices among equals are hard to imitate: the last responses take the first.
        salt = number if number < responses - 2 * spec.num_players else None
        mean, team = respond(spec, team, number % spec.num_players, keeps=keeps, salt=salt)
    return mean, complete(spec, team)


class BestResponse:
    """The players of `best_team`. Beside another partner, the hint bot moves where the team has
    never been.
    """

    name = "best-response"

    def seat(self, player: int, *, task: base.Task[EnvConfig], game: int) -> base.ScriptSeat:
        """Return a seat, with the team computed."""
        spec = task.config.spec()
        _, team = best_team(spec, task.config.bomb_rule == "keep", RESPONSES)

        def choose(seen: base.Observation, rng: random.Random) -> str:
            view = seen.view()
            [move] = team[player].find(np.array([seen_by(spec, view)]))
            action = (
                rule_move("hint-bot", view, rng)
                if move < 0
                else load_rules(spec).actions[player][move]
            )
            return move_text(seen, action)

        return base.Script(self.name, choose).seat(player, task=task, game=game)


def _joined(tables: list[Table]) -> Table:
    """Return all of the tables; of those that name the same the first counts."""
    seen, first = np.unique(np.concatenate([table.seen for table in tables]), return_index=True)
    return Table(seen, np.concatenate([table.moves for table in tables])[first])
