"""A team for a board with few decks: each player in turn is given the exact best response.

A response is optimal over all decks and everything that a player may have seen (Nair et al.,
"Taming Decentralized POMDPs", IJCAI 2003, call this JESP). The first one responds to random play.
Each response draws its tie-breaks again, so that plateaus are crossed: from the hint bot, and with
the first of equally good moves, `laptop` ends at 3.36. The mean score is exact, up to a collision
of 64-bit hashes, and never falls; how far it is from the optimum is not known.
"""

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies.all_deals import (
    Flags,
    Hashes,
    Numbers,
    Values,
    all_games,
    final_scores,
    legal,
    legal_move,
    mixed,
    seen_by,
    step,
)
from hanabi_grpo.envs.hanabi.policies.rule_bots import move_text, rule_move
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, num_decks
from hanabi_grpo.envs.hanabi.rules.view import PlayerView
from hanabi_grpo.errors import SettingsError

MOST_DECKS = 2000
"""Decks of the largest supported board."""
RESPONSES = 40
"""Number of responses, all players together."""
FALLBACK_BOT = "hint-bot"
"""The bot that moves in situations which the team never reaches."""
NO_MOVE = -1
"""Instead of a move's number: the table has no move."""

_NUM_CACHED_TEAMS = 4


class Table(NamedTuple):
    """One player's moves by what it has seen."""

    seen: Hashes
    """(entries,), ascending."""
    moves: Numbers
    """(entries,), OpenSpiel's number of each move."""

    def find(self, seen: Hashes) -> Numbers:
        """Return the moves, `NO_MOVE` if the table has none.

        Args:
            seen: (n,), what the player has seen in each game.
        """
        num_entries = len(self.seen)
        if num_entries == 0:
            return np.full(len(seen), NO_MOVE)
        entries = np.minimum(np.searchsorted(self.seen, seen), num_entries - 1)
        return np.where(self.seen[entries] == seen, self.moves[entries], NO_MOVE)

    def choose(self, seen: Hashes, options: Flags) -> Numbers:
        """Return the moves, a random legal one if the table has none.

        Args:
            seen: (n,), what the player has seen in each game.
            options: (n, moves), see `all_deals.legal`.
        """
        # Seeded by what the player has seen.
        random_bits = mixed(seen, np.ones(1)) >> np.uint64(32)
        random_moves = legal_move(options, random_bits.astype(int))
        moves = self.find(seen)
        return np.where(moves == NO_MOVE, random_moves, moves)


Team = tuple[Table, ...]
"""A table per player.

Without an entry, a player makes a random move, always the same when it has seen the same."""
EMPTY = Table(np.zeros(0, np.uint64), np.zeros(0, int))
"""The table of random play."""


class _Choices(NamedTuple):
    """The choices of the responding player at one level of the tree.

    Every legal move of every game is a child. The children of one game are adjacent, in the order
    of the games.
    """

    seen: Hashes
    """(information sets,): what was seen in each information set, ascending."""
    sets: Numbers
    """(children,): the information set of the child's parent, as an index of `seen`."""
    moves: Numbers
    """(children,): the move that leads to the child."""

    def best(self, values: Values, salt: int | None) -> tuple[Numbers, Values]:
        """Return the best moves, and the values of the parents with them.

        Args:
            values: (children,), the score of each child.
            salt: Draws among equally good moves; None takes the first.

        Returns:
            The best move of each information set, and the value of each parent.
        """
        shape = (len(self.seen), self.moves.max() + 1)
        cells = np.ravel_multi_index((self.sets, self.moves), shape)
        totals = np.full(shape, -1.0)  # below every legal move's total
        sums = np.bincount(cells, values, totals.size)
        totals.flat[cells] = sums[cells] + self._tie_breakers(salt, num_moves=shape[1])
        best_moves = totals.argmax(axis=1)
        is_chosen = self.moves == best_moves[self.sets]
        return best_moves, values[is_chosen]

    def _tie_breakers(self, salt: int | None, num_moves: int) -> Values:
        """Return numbers below one half, (children,), equal for equal information set and move.

        Totals are sums of whole numbers, so these only break ties.
        """
        if salt is None:
            return (num_moves - self.moves) / (2.0 * num_moves + 2)
        random_bits = mixed(mixed(self.seen[self.sets], self.moves), np.array([salt]))
        return random_bits / 2.0**65


class _Level(NamedTuple):
    """One turn of all games, as needed by the pass back from the end of the games."""

    choices: _Choices | None
    """None if another player moves."""
    scores: Values
    """(games after the turn,): final if the game is over."""
    ongoing: Numbers
    """Indices of the games that continue: the games at the start of the next level."""


def respond(
    spec: GameSpec, team: Team, player: int, *, keeps: bool = False, salt: int | None = 0
) -> tuple[float, Team]:
    """Give a player the best response to the others.

    In situations that the others cannot bring about now, it plays as before.

    Args:
        spec: The board.
        team: The players so far.
        player: The responding player.
        keeps: Whether points are kept when the last life is lost.
        salt: Draws among equally good moves; None takes the first in the order of `rules/actions`.

    Returns:
        The mean score over all decks and the team.
    """
    levels = _expand(spec, team, player, keeps)
    # Back from the end of the games: games that continue after a level have the values of the
    # games at the start of the next one.
    values = np.zeros(0)
    tables: list[Table] = []
    for level in reversed(levels):
        level.scores[level.ongoing] = values
        values = level.scores
        if level.choices is not None:
            best_moves, values = level.choices.best(values, salt)
            tables.append(Table(level.choices.seen, best_moves))
    response = joined([*tables, team[player]])
    return float(values.mean()), (*team[:player], response, *team[player + 1 :])


def _expand(spec: GameSpec, team: Team, player: int, keeps: bool) -> list[_Level]:
    """Play all games to their end, with every legal move of the responding player.

    Args:
        spec: The board.
        team: The players so far; the moves of all but `player` are theirs.
        player: The responding player.
        keeps: Whether points are kept when the last life is lost.

    Returns:
        The turns in order.
    """
    games = all_games(spec)
    levels: list[_Level] = []
    for mover in itertools.cycle(range(spec.num_players)):
        options = legal(spec, games, mover)
        seen = games.seen[:, mover]
        choices = None
        if mover == player:
            parents, moves = options.nonzero()
            information_sets, set_of_game = np.unique(seen, return_inverse=True)
            choices = _Choices(information_sets, set_of_game[parents], moves)
            games = games.take(parents)
        else:
            moves = team[mover].choose(seen, options)
        games, is_over = step(spec, games, mover, moves)
        ongoing = (~is_over).nonzero()[0]
        levels.append(_Level(choices, final_scores(games, keeps), ongoing))
        games = games.take(ongoing)
        if len(games) == 0:
            return levels
    raise AssertionError("a cycle does not end")


def complete(spec: GameSpec, team: Team) -> Team:
    """Return the team with the random moves from its own games added to its tables."""
    games = all_games(spec)
    tables_of_player = [[table] for table in team]
    for mover in itertools.cycle(range(spec.num_players)):
        seen = games.seen[:, mover]
        moves = team[mover].choose(seen, legal(spec, games, mover))
        tables_of_player[mover].append(Table(seen, moves))
        games, is_over = step(spec, games, mover, moves)
        games = games.take((~is_over).nonzero()[0])
        if len(games) == 0:
            return tuple(joined(tables) for tables in tables_of_player)
    raise AssertionError("a cycle does not end")


@functools.lru_cache(maxsize=_NUM_CACHED_TEAMS)
def best_team(spec: GameSpec, keeps: bool, responses: int) -> tuple[float, Team]:
    """Return a team's mean score over all decks and the team; computed once per process.

    Args:
        spec: The board.
        keeps: Whether points are kept when the last life is lost.
        responses: Number of responses, of all players together.

    Raises:
        SettingsError: The board has more than `MOST_DECKS` decks.
    """
    check_decks(spec, BestResponse.name)
    # Random tie-breaks are hard to imitate: the last responses take the first of equal moves.
    num_random = responses - 2 * spec.num_players
    mean = 0.0
    team: Team = (EMPTY,) * spec.num_players
    for number in range(responses):
        salt = number if number < num_random else None
        mean, team = respond(spec, team, number % spec.num_players, keeps=keeps, salt=salt)
    return mean, complete(spec, team)


def check_decks(spec: GameSpec, policy: str) -> None:
    """Raise a SettingsError if a board has too many decks for a policy."""
    count = num_decks(spec.num_colors, spec.num_ranks)
    if count > MOST_DECKS:
        raise SettingsError(
            f"{policy} on {spec.preset}: the board has {count:.3g} decks, and the policy plays all "
            f"of them; at most {MOST_DECKS} are supported. Choose search, or a board with 2 "
            "colours and 2 ranks such as laptop."
        )


def table_script(
    name: str,
    spec: GameSpec,
    table: Table,
    player: int,
    key_of: Callable[[GameSpec, PlayerView], np.uint64],
) -> base.Script:
    """Return a script that moves by a table; a bot moves where the table has no entry.

    Args:
        name: Name of the script.
        spec: The board.
        table: The player's moves.
        player: The seat.
        key_of: Returns the table's key for a view.
    """

    def choose(seen: base.Observation, rng: random.Random) -> str:
        view = seen.view()
        [move] = table.find(np.array([key_of(spec, view)]))
        if move == NO_MOVE:
            action = rule_move(FALLBACK_BOT, view, rng)
        else:
            action = load_rules(spec).actions[player][move]
        return move_text(seen, action)

    return base.Script(name, choose)


class BestResponse:
    """The players of `best_team`; with other partners, a bot moves where their tables end."""

    name = "best-response"

    def seat(self, player: int, *, task: base.Task[EnvConfig], game: int) -> base.ScriptSeat:
        """Return a seat, with the team computed; see `base.Policy.seat`."""
        spec = task.config.spec()
        _, team = best_team(spec, task.config.bomb_rule == "keep", RESPONSES)
        script = table_script(self.name, spec, team[player], player, seen_by)
        return script.seat(player, task=task, game=game)


def joined(tables: Sequence[Table]) -> Table:
    """Return all tables as one; if several have the same key, the first one wins."""
    all_seen = np.concatenate([table.seen for table in tables])
    all_moves = np.concatenate([table.moves for table in tables])
    seen, first = np.unique(all_seen, return_index=True)
    return Table(seen, all_moves[first])
