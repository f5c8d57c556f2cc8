"""The exact best response to a script on a board with few decks: no partner can do better.

One player responds, and the script holds every other seat. All decks are played. The responding
player knows everything that a player in its seat may know, and how the script moves: if the script
moves at random, the response is to the probabilities of its moves, not to the outcomes of its
draws. The best mean score is computed backward from the end of the games, per information set of
the responding player. Games that differ in what that player has seen share no information set, so
a large tree is split into parts that are solved one after the other.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.envs.draws import chances_of
from hanabi_grpo.envs.hanabi.policies.all_deals import (
    Flags,
    Games,
    Numbers,
    Values,
    all_games,
    final_scores,
    legal,
    step,
)
from hanabi_grpo.envs.hanabi.policies.best_response import (
    FALLBACK_BOT,
    NO_MOVE,
    RESPONSES,
    Team,
    best_team,
)
from hanabi_grpo.envs.hanabi.policies.rule_bots import RULE_BOTS, rule_move
from hanabi_grpo.envs.hanabi.policies.team_file import code_digest
from hanabi_grpo.envs.hanabi.rules.game import Game, load_rules
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Action, Card, PlayerView

History = NDArray[np.int8]
"""(n, turns): OpenSpiel's number of each move so far."""
Chances = Mapping[Action, float]
"""The probability of each move of a script; they sum to 1."""

LARGEST_PART = 20_000
"""With more games at the responding player's turn, the games are solved in parts."""
_RANDOM = "random"
_DIGEST_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """A script as the solver needs it.

    Example:
        make_partner(spec, "iggi", keeps=False).chances(view, player=1, seen=seen)
    """

    name: str
    """Name of the script."""
    chances: Callable[[PlayerView, int, np.uint64], Chances] | None
    """(what the mover may know, its seat, the hash of what it has seen) -> its moves; None: all
    legal moves are equally likely, whatever it has seen."""

    @property
    def ignores_hints(self) -> bool:
        """True if all hints are equally good, because nobody reads them."""
        return self.chances is None


def make_partner(spec: GameSpec, name: str, *, keeps: bool) -> Partner | None:
    """Return a script by its name; None if the chances of its moves cannot be computed.

    Args:
        spec: The board.
        name: Name of the script, e.g. "iggi".
        keeps: Whether the script's reward keeps points when the last life is lost; scripts that
            compute their moves maximize this reward.
    """
    if name == _RANDOM:
        return Partner(name=name, chances=None)
    if name in RULE_BOTS:
        return Partner(name=name, chances=partial(_bot_chances, name))
    if name == "best-response":
        _, team = best_team(spec, keeps, RESPONSES)
        return Partner(name=name, chances=partial(_team_chances, spec, team))
    return None


def _bot_chances(name: str, view: PlayerView, player: int, seen: np.uint64) -> Chances:
    return chances_of(partial(rule_move, name, view))


def _team_chances(
    spec: GameSpec, team: Team, view: PlayerView, player: int, seen: np.uint64
) -> Chances:
    [move] = team[player].find(np.array([seen]))
    if move == NO_MOVE:
        return _bot_chances(FALLBACK_BOT, view, player, seen)
    return {load_rules(spec).actions[player][move]: 1.0}


class _Moves(NamedTuple):
    """What a script may do in each of several games: a row for each possible move."""

    parents: Numbers
    """(rows,): index of the game, ascending."""
    moves: Numbers
    """(rows,): OpenSpiel's number of the move."""
    chances: Values
    """(rows,): probability of the move."""


@dataclass(slots=True, kw_only=True)
class Solver:
    """Finds the best mean score with a script as partner, see `best_score`."""

    spec: GameSpec
    partner: Partner
    seat: int
    """The responding seat; the script holds every other seat."""
    _cards: list[Card] = field(init=False)
    _known: dict[tuple[int, int], tuple[Numbers, Values]] = field(default_factory=dict, init=False)
    """By seat and hash of what was seen, the script's moves and their chances."""

    def __post_init__(self) -> None:
        """Number the cards as `all_deals` does."""
        colors = range(self.spec.num_colors)
        ranks = range(self.spec.num_ranks)
        self._cards = [Card(color, rank) for color in colors for rank in ranks]

    def solve(self) -> float:
        """Return the mean score over all decks."""
        games = all_games(self.spec)
        history = np.zeros((len(games), 0), np.int8)
        values = self._values(games, np.ones(len(games)), history, mover=0)
        return float(values.mean())

    def _values(self, games: Games, weights: Values, history: History, mover: int) -> Values:
        """Return what each game is worth from here on, (n,).

        Args:
            games: n games in which it is the mover's turn.
            weights: (n,): probability of the script's moves so far.
            history: (n, turns): the moves so far.
            mover: Seat that moves.
        """
        if len(games) == 0:
            return np.zeros(0)
        if mover != self.seat:
            return self._values_of_script(games, weights, history, mover)
        parts = _parts(games.seen[:, mover])
        values = np.empty(len(games))
        for rows in parts:
            part = games if len(parts) == 1 else games.take(rows)
            values[rows] = self._values_of_answer(part, weights[rows], history[rows], mover)
        return values

    def _values_of_script(
        self, games: Games, weights: Values, history: History, mover: int
    ) -> Values:
        parents, moves, chances = self._script_moves(games, history, mover)
        values = self._after(games, weights[parents] * chances, history, mover, parents, moves)
        return np.bincount(parents, chances * values, len(games)).astype(np.float64)

    def _values_of_answer(
        self, games: Games, weights: Values, history: History, mover: int
    ) -> Values:
        options = legal(self.spec, games, mover)
        if self.partner.ignores_hints:
            options = _with_one_hint(options, first_hint=2 * self.spec.hand_size)
        parents, moves = options.nonzero()
        values = self._after(games, weights[parents], history, mover, parents, moves)
        sets, set_of_game = np.unique(games.seen[:, mover], return_inverse=True)
        set_of_child = set_of_game[parents]
        shape = (len(sets), options.shape[1])
        cells = np.ravel_multi_index((set_of_child, moves), shape)
        totals = np.full(shape, -np.inf)
        sums = np.bincount(cells, weights[parents] * values, totals.size)
        totals.flat[cells] = sums[cells]
        is_chosen = moves == totals.argmax(axis=1)[set_of_child]
        return values[is_chosen]

    def _after(
        self,
        games: Games,
        weights: Values,
        history: History,
        mover: int,
        parents: Numbers,
        moves: Numbers,
    ) -> Values:
        """Return what games are worth after a move in each, (rows,).

        Args:
            games: The games before the move.
            weights: (rows,): after the move.
            history: The moves of the games before it.
            mover: Seat that moves.
            parents: (rows,): index of the game.
            moves: (rows,): the move.
        """
        children, is_over = step(self.spec, games.take(parents), mover, moves)
        # The score is 0 on a bomb, whatever the reward is by HANABI_BOMB_RULE.
        values = final_scores(children, keeps=False)
        ongoing = (~is_over).nonzero()[0]
        longer = np.c_[history[parents[ongoing]], moves[ongoing].astype(np.int8)]
        next_mover = (mover + 1) % self.spec.num_players
        values[ongoing] = self._values(children.take(ongoing), weights[ongoing], longer, next_mover)
        return values

    def _script_moves(self, games: Games, history: History, mover: int) -> _Moves:
        if self.partner.chances is None:
            options = legal(self.spec, games, mover)
            parents, moves = options.nonzero()
            return _Moves(parents, moves, 1.0 / options.sum(axis=1)[parents])
        seen = games.seen[:, mover]
        sets, first, set_of_game = np.unique(seen, return_index=True, return_inverse=True)
        known = []
        for seen_hash, row in zip(sets, first, strict=True):
            known.append(self._known_moves(seen_hash, games.decks[row], history[row], mover))
        counts = np.array([len(moves) for moves, _ in known])
        starts = counts.cumsum() - counts
        counts_of_games = counts[set_of_game]
        parents = np.repeat(np.arange(len(games)), counts_of_games)
        first_rows = counts_of_games.cumsum() - counts_of_games
        numbers = np.arange(len(parents)) - np.repeat(first_rows, counts_of_games)
        places = starts[set_of_game][parents] + numbers
        all_moves = np.concatenate([moves for moves, _ in known])
        all_chances = np.concatenate([chances for _, chances in known])
        return _Moves(parents, all_moves[places], all_chances[places])

    def _known_moves(
        self, seen: np.uint64, deck: Numbers, history: History, mover: int
    ) -> tuple[Numbers, Values]:
        """Return the script's moves when the mover has seen this; computed once."""
        key = (mover, int(seen))
        found = self._known.get(key)
        if found is None:
            assert self.partner.chances is not None
            game = Game(self.spec, [self._cards[card] for card in deck])
            actions = load_rules(self.spec).actions
            for move in history:
                game.apply(actions[game.current_player][move])
            chances = self.partner.chances(game.view(mover), mover, seen)
            moves = [actions[mover].index(action) for action in chances]
            found = np.array(moves), np.array(list(chances.values()))
            self._known[key] = found
        return found


@functools.cache
def engine_digest() -> str:
    """Return twelve hex digits that identify the code of rules and scripts."""
    policies = Path(__file__).parent
    hanabi = policies.parent
    # Bots read deductions, and the chances of their moves are found by following their draws.
    paths = [hanabi.parent / "draws.py", hanabi / "prompts" / "deductions.py"]
    for folder in (hanabi / "rules", policies):
        paths += sorted(folder.glob("*.py"))
    return code_digest(tuple(paths))[:_DIGEST_DIGITS]


def best_score(spec: GameSpec, partner: Partner, seat: int) -> float:
    """Return the best mean score, over all decks, that a player can reach with a script.

    Args:
        spec: The board; it should have few decks, see `best_response.MOST_DECKS`.
        partner: The script in every other seat.
        seat: The seat of the responding player.
    """
    return Solver(spec=spec, partner=partner, seat=seat).solve()


def _parts(seen: NDArray[np.uint64]) -> list[Any]:
    """Return the rows of parts that share no observation; one part if there are few rows."""
    if len(seen) <= LARGEST_PART:
        return [slice(None)]
    order = seen.argsort(kind="stable")
    in_order = seen[order]
    # A part may end where the observation changes.
    ends = (in_order[1:] != in_order[:-1]).nonzero()[0] + 1
    cuts = []
    start = 0
    for end in [*ends.tolist(), len(seen)]:
        if end - start >= LARGEST_PART:
            cuts.append(end)
            start = end
    return [rows for rows in np.split(order, cuts) if len(rows)]


def _with_one_hint(options: Flags, *, first_hint: int) -> Flags:
    """Remove all hints except the first legal one."""
    hints = options[:, first_hint:]
    is_first = hints & (hints.cumsum(axis=1) == 1)
    return np.concatenate([options[:, :first_hint], is_first], axis=1)
