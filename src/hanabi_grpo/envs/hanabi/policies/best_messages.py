"""A team for a board with few decks whose players read one message per turn, see `all_messages`.

Its moves can be memorized: a player needs no memory (HANABI_MEMORY=turn), so the team can teach a
model that reads the same messages. The search is coordinate ascent: for one player at a time, from
its last turn to its first, every message gets the move that is best given all other moves of the
team, over all decks. No step lowers the score: moves are evaluated by playing out the team's
current moves, and the messages of one turn belong to different games.

Messages that the team itself never sees get moves too, from games in which one move is random;
these games weigh so little that they only break ties. Without them, a move that leads to a new
message looks no better than the rule of thumb that plays there, and the search ends at 3.80 on
`laptop` instead of 3.96. The mean score is exact; how far it is from the optimum is not known.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies.all_deals import (
    Flags,
    Hashes,
    Numbers,
    Values,
    final_scores,
    hints_of,
    legal,
    legal_move,
    mixed,
)
from hanabi_grpo.envs.hanabi.policies.all_messages import (
    FITS,
    OWN_DEAD,
    OWN_SURE,
    Tables,
    Words,
    all_tables,
    message_of,
    messages,
    move_on,
    words_of,
)
from hanabi_grpo.envs.hanabi.policies.best_response import (
    EMPTY,
    NO_MOVE,
    Table,
    check_decks,
    joined,
    table_script,
)
from hanabi_grpo.envs.hanabi.policies.team_file import code_digest, stored_team
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec

SWEEPS = 60
"""Rounds over all players, about two seconds of one core each on 2 x 2 cards."""

_NUM_CACHED_TEAMS = 4
_RANDOM_WITHIN = 9
"""A game with a random move has it within this many turns."""
_NOT_RANDOM = -1
_HALF_OF_BITS = np.uint64(32)

Team = tuple[Table, ...]
"""Each player's moves by message."""


@dataclass(slots=True, kw_only=True)
class _Turn:
    """One turn of all games that are not over."""

    player: int
    tables: Tables
    rows: Numbers
    """(n,): indices of the games."""
    read: Hashes
    """(n,): what the player reads."""
    moves: Numbers
    """(n,)."""


@functools.lru_cache(maxsize=_NUM_CACHED_TEAMS)
def best_team(spec: GameSpec, keeps: bool, sweeps: int) -> tuple[float, Team]:
    """Return a team's mean score over all decks and the team; computed once, see `team_file`.

    Args:
        spec: The board.
        keeps: Whether points are kept when the last life is lost.
        sweeps: Rounds over all players.

    Raises:
        SettingsError: The board has more decks than `best_response.MOST_DECKS`.
    """
    check_decks(spec, BestMessages.name)
    return stored_team(
        BestMessages.name,
        spec,
        {"keeps": keeps, "sweeps": sweeps},
        code_digest(_code()),
        functools.partial(searched_team, spec, keeps, sweeps),
    )


def searched_team(spec: GameSpec, keeps: bool, sweeps: int) -> tuple[float, Team]:
    """Compute what `best_team` returns."""
    start = all_tables(spec)
    team: Team = (EMPTY,) * spec.num_players
    for number in range(sweeps):
        for turn in range(spec.num_players):
            # Each round begins with a different player.
            player = (number + turn) % spec.num_players
            team = improved(spec, start, team, player, keeps=keeps, salt=number)
    scores, turns = _play(spec, start, 0, team, keeps=keeps)
    return float(scores.mean()), _with_moves(team, turns)


def improved(
    spec: GameSpec, start: Tables, team: Team, player: int, *, keeps: bool = False, salt: int = 0
) -> Team:
    """Return the team after one player has improved its moves, from its last turn to its first.

    Args:
        spec: The board.
        start: A table of every deck.
        team: The players so far.
        player: The player whose moves may change.
        keeps: Whether points are kept when the last life is lost.
        salt: Draws the random moves, and among equally good ones.
    """
    num_decks = len(start)
    both = start.take(np.tile(np.arange(num_decks), 2))
    random_turns = _drawn(np.arange(2 * num_decks), salt, player) % _RANDOM_WITHIN
    random_turns[:num_decks] = _NOT_RANDOM
    # All games with a random move together weigh less than one point of the others.
    weights = np.where(random_turns == _NOT_RANDOM, 1.0, 0.5 / (num_decks * spec.max_score))
    _, turns = _play(spec, both, 0, team, keeps=keeps, random_turns=random_turns, salt=salt)
    for turn in reversed(turns):
        if turn.player != player:
            continue
        options = legal(spec, turn.tables.games, player)
        parents, moves = options.nonzero()
        after, is_over = move_on(spec, turn.tables.take(parents), player, moves)
        values = final_scores(after.games, keeps)
        ongoing = (~is_over).nonzero()[0]
        if len(ongoing):
            next_player = (player + 1) % spec.num_players
            values[ongoing], _ = _play(spec, after.take(ongoing), next_player, team, keeps=keeps)
        values *= weights[turn.rows[parents]]
        read, sets = np.unique(turn.read, return_inverse=True)
        shape = (len(read), options.shape[1])
        cells = np.ravel_multi_index((sets[parents], moves), shape)
        totals = np.full(shape, -1.0)  # below every legal move's total
        sums = np.bincount(cells, values, totals.size)
        ties = _ties(turn.read[parents], moves, salt) * weights.min() / num_decks
        totals.flat[cells] = sums[cells] + ties
        team = _with_table(team, player, Table(read, totals.argmax(axis=1)))
    return team


def _play(
    spec: GameSpec,
    tables: Tables,
    player: int,
    team: Team,
    *,
    keeps: bool,
    random_turns: Numbers | None = None,
    salt: int = 0,
) -> tuple[Values, list[_Turn]]:
    """Play games to their end.

    Args:
        spec: The board.
        tables: n games.
        player: Who moves first.
        team: The players.
        keeps: Whether points are kept when the last life is lost.
        random_turns: (n,), the turn on which each game has a random move.
        salt: Draws these moves.

    Returns:
        (n,) scores, and the turns in order.
    """
    scores = np.zeros(len(tables))
    rows = np.arange(len(tables))
    turns: list[_Turn] = []
    for number in itertools.count():
        if len(rows) == 0:
            break
        mover = (player + number) % spec.num_players
        words = words_of(spec, tables, mover)
        read = messages(spec, tables, mover, words)
        options = legal(spec, tables.games, mover)
        moves = team[mover].find(read)
        moves = np.where(moves == NO_MOVE, _thumb(spec, tables, mover, words, options), moves)
        turns.append(_Turn(player=mover, tables=tables, rows=rows, read=read, moves=moves))
        if random_turns is not None:
            is_random = random_turns[rows] == number
            drawn = legal_move(options, _drawn(rows, salt, number))
            moves = np.where(is_random, drawn, moves)
        tables, is_over = move_on(spec, tables, mover, moves)
        scores[rows[is_over]] = final_scores(tables.games, keeps)[is_over]
        ongoing = (~is_over).nonzero()[0]
        tables = tables.take(ongoing)
        rows = rows[ongoing]
    return scores, turns


def _thumb(spec: GameSpec, tables: Tables, player: int, words: Words, options: Flags) -> Numbers:
    """Return moves by a rule of thumb, which reads only the message.

    It plays what surely fits, hints the rank, else the colour, of a card that fits, and discards a
    dead card, else the oldest.
    """
    size = spec.hand_size
    age = np.arange(size) / (10.0 * size)
    ranking = np.zeros(options.shape)
    ranking[:, :size] = 1 + (words.own == OWN_DEAD) - age
    ranking[:, size : 2 * size] = np.where(words.own == OWN_SURE, 9.0, -1.0) - age
    rows = np.arange(len(tables))
    actions = load_rules(spec).actions[player]
    for number, hint in enumerate(hints_of(spec, player), 2 * size):
        is_rank = actions[number].kind == "hint_rank"
        hand = tables.games.hands[:, hint.target]
        known = (tables.ranks if is_rank else tables.colors)[:, hint.target]
        is_new = (known & (known - 1)) != 0
        fits = words.kinds[rows[:, None], hand] == FITS
        useful = np.isin(hand, hint.cards) & fits & is_new
        first = useful.argmax(axis=1)
        worth = np.where(useful.any(axis=1), 5.0 + is_rank - age[first], 0.0)
        ranking[:, number] = worth
    return np.where(options, ranking, -2.0).argmax(axis=1)


def _drawn(rows: Numbers, *key: int) -> Numbers:
    """Return a large random number for each row, determined by row and key alone."""
    bits = mixed(rows.astype(np.uint64), np.ones(1))
    for part in key:
        bits = mixed(bits, np.array([part + 1]))
    return (bits >> _HALF_OF_BITS).astype(int)


def _ties(read: Hashes, moves: Numbers, salt: int) -> Values:
    """Return numbers below 1, (n,), equal for equal message and move."""
    return mixed(mixed(read, moves), np.array([salt])) / 2.0**64


def _with_table(team: Team, player: int, table: Table) -> Team:
    """Return the team with more moves for a player, which override those that it has."""
    return (*team[:player], joined([table, team[player]]), *team[player + 1 :])


def _with_moves(team: Team, turns: Sequence[_Turn]) -> Team:
    """Return the team with the rule-of-thumb moves from its own games added to its tables."""
    for turn in turns:
        team = _with_table(team, turn.player, Table(turn.read, turn.moves))
    return team


def _code() -> tuple[Path, ...]:
    """Return the files that determine a team."""
    here = Path(__file__).parent
    names = ("all_deals.py", "all_messages.py", "best_messages.py", "best_response.py")
    files = [here / name for name in names]
    files.append(here.parent / "prompts" / "deductions.py")
    return (*files, *sorted((here.parent / "rules").glob("*.py")))


class BestMessages:
    """The players of `best_team`; with other partners, a bot moves where their tables end."""

    name = "best-messages"

    def seat(self, player: int, *, task: base.Task[EnvConfig], game: int) -> base.ScriptSeat:
        """Return a seat, with the team computed; see `base.Policy.seat`."""
        spec = task.config.spec()
        _, team = best_team(spec, task.config.bomb_rule == "keep", SWEEPS)
        script = table_script(self.name, spec, team[player], player, message_of)
        return script.seat(player, task=task, game=game)
