"""Hanabi's metrics per step: bombs, hints, and how trained seats play.

A metric without observations is omitted.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

import numpy as np

from hanabi_grpo.envs.hanabi.conventions import hint_kind
from hanabi_grpo.envs.hanabi.replays.timeline import replayed_turns
from hanabi_grpo.envs.hanabi.rules import Action, Game, GameSpec, recorded_spec, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.actions import play
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.errors import GameParameterError, SettingsError
from hanabi_grpo.types import SHARED_ADAPTER, Episode, ReplyKind, player_name

_ANY_HINT = "hint"
"""Stands for both kinds of hints."""
_KINDS = ("play", "discard", "hint_color", "hint_rank", _ANY_HINT)
"""Kinds of moves whose shares are reported."""
_NUM_CACHED_BLIND_SCORES = 4096


class Move(NamedTuple):
    """One move of a game."""

    player: int
    """Seat that moved."""
    action: Action
    """The move."""
    legal: tuple[Action, ...]
    """The moves that were legal."""
    chosen: bool
    """Whether a trained seat chose it; False for moves that replaced a bad reply."""


class PlayedGame(NamedTuple):
    """One game on a board that this version supports."""

    episode: Episode
    """The record."""
    spec: GameSpec
    """The board."""
    moves: list[Move]
    """Every move, oldest first."""
    is_self_play: bool
    """Every seat is trained."""


class _Information(NamedTuple):
    """The information in one giver's hints on one board."""

    num_pairs: int
    """Hints with the answers to them."""
    bits: float
    """See `hint_metrics`."""


def step_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the metrics below and the outcomes per game over all seats.

    `score_kept/mean` is the mean number of points on the table, which a bomb does not remove;
    `hints_per_game` also counts hints that replaced a bad reply. The other metrics cover trained
    seats: those that the run's players hold, or all seats if the run's players hold none.
    """
    if not episodes:
        return {}
    games = replayed(episodes)
    metrics = {
        "score_kept/mean": fmean([episode.result["score_kept"] for episode in episodes]),
        "bombs_per_game": fmean([episode.result["bombed"] for episode in episodes]),
        "hints_per_game": fmean([_num_hints(episode) for episode in episodes]),
    }
    metrics |= blind_metrics(games)
    metrics |= hint_metrics(games)
    metrics |= move_metrics(games)
    return metrics


def replayed(episodes: Sequence[Episode]) -> list[PlayedGame]:
    """Return the games that can be replayed from their deal.

    Others (a different board of the same name, missing turns) are omitted.
    """
    all_seats = [spec for episode in episodes for spec in episode.seats]
    has_trained_seats = any(_is_trained(spec) for spec in all_seats)
    games = []
    for episode in episodes:
        policy_specs = episode.seats or [""] * episode.num_players
        trained = []
        for policy_spec in policy_specs:
            # A seat without a policy spec is one of the run's players.
            trained.append(not has_trained_seats or not policy_spec or _is_trained(policy_spec))
        game = _replayed_game(episode, trained)
        if game is not None:
            games.append(game)
    return games


def blind_metrics(games: Sequence[PlayedGame]) -> dict[str, float]:
    """Compare games of trained players only with blind play, which always plays the oldest card.

    - `blind/<board>`: mean score of blind play on the deals of the games, each counted as often as
      it was played.
    - `over_blind/<board>`: mean of (score of a game - score of blind play on its deal).
    """
    blind_scores: dict[str, list[float]] = {}
    differences: dict[str, list[float]] = {}
    for game in games:
        if game.is_self_play:
            episode = game.episode
            blind_score = _blind_score(game.spec, episode.suite, episode.seed)
            difference = episode.result["score"] - blind_score
            blind_scores.setdefault(episode.preset, []).append(blind_score)
            differences.setdefault(episode.preset, []).append(difference)
    metrics = {f"blind/{board}": fmean(scores) for board, scores in blind_scores.items()}
    metrics |= {f"over_blind/{board}": fmean(values) for board, values in differences.items()}
    return metrics


def hint_metrics(games: Sequence[PlayedGame]) -> dict[str, float]:
    """Return I(hint; the receiver's next move) in bits, per giver and for the team.

    A pair is a hint to the next seat and that seat's move right after it, both chosen by trained
    players. The value expected by chance is subtracted, so hints that nobody reads score 0 on
    average. The metric bounds what the channel carried; it does not prove that the hint was
    understood: Lowe et al. (2019), "On the pitfalls of measuring emergent communication". It also
    counts correlations that come from the deal, so compare it with other steps of the same run.

    - `<player>/hint_bits`: hints that this player gave. With several boards: the mean, weighted by
      pairs.
    - `hint_bits`: mean over givers, weighted by pairs.
    - `hint_pairs`: the number of pairs, always present.
    """
    by_giver: dict[int, list[_Information]] = {}
    for (_, giver), table in _hint_tables(games).items():
        information = _Information(int(table.sum()), information_above_chance(table))
        by_giver.setdefault(giver, []).append(information)
    of_team: list[_Information] = []
    for of_giver in by_giver.values():
        of_team += of_giver
    metrics = {"hint_pairs": float(_total_pairs(of_team))}
    if of_team:
        metrics["hint_bits"] = _weighted_bits(of_team)
    for giver, of_giver in sorted(by_giver.items()):
        metrics[f"{player_name(giver)}/hint_bits"] = _weighted_bits(of_giver)
    return metrics


@dataclass(slots=True)
class _Tally:
    """Counts of trained players' turns."""

    num_turns: int = 0
    """Number of turns."""
    legal: Counter[str] = field(default_factory=Counter)
    """Per kind of move: turns on which such a move was legal."""
    made: Counter[str] = field(default_factory=Counter)
    """Per kind of move: turns on which such a move was made."""
    moves: Counter[Action] = field(default_factory=Counter)
    """Per move: turns on which it was made."""

    def add(self, move: Move) -> None:
        """Count one turn."""
        legal_kinds: set[str] = set()
        for action in move.legal:
            legal_kinds.update(_kinds_of(action))
        self.num_turns += 1
        self.legal.update(legal_kinds)
        self.made.update(_kinds_of(move.action))
        self.moves[move.action] += 1

    def shares(self, prefix: str) -> dict[str, float]:
        """Return `<prefix>share/<kind>` of every kind that was legal at least once."""
        shares = {}
        for kind in _KINDS:
            if self.legal[kind]:
                shares[f"{prefix}share/{kind}"] = self.made[kind] / self.legal[kind]
        return shares


def move_metrics(games: Sequence[PlayedGame]) -> dict[str, float]:
    """Return how each trained player moves.

    Moves that it did not choose are omitted (see `Move`).

    - `<player>/share/<kind>` = turns on which it made a move of this kind / turns on which one was
      legal, see `_KINDS`.
    - `<player>/top_move_share` = turns with its most frequent move (kind and slot, or kind, target
      and value) / turns.
    - `<player>/blind_share` = turns on which it played its oldest card / turns: its agreement with
      blind play.
    - `share/<kind>` is the same over all trained players: in a good team one may hint and another
      play.
    """
    tallies: dict[int, _Tally] = {}
    for game in games:
        for move in game.moves:
            if move.chosen:
                tallies.setdefault(move.player, _Tally()).add(move)
    team = _Tally()
    for tally in tallies.values():
        team.made.update(tally.made)
        team.legal.update(tally.legal)
    metrics = team.shares("")
    for player, tally in sorted(tallies.items()):
        name = player_name(player)
        metrics |= tally.shares(f"{name}/")
        metrics[f"{name}/top_move_share"] = max(tally.moves.values()) / tally.num_turns
        metrics[f"{name}/blind_share"] = tally.moves[play(0)] / tally.num_turns
    return metrics


def information_above_chance(counts: np.ndarray) -> float:
    """Return I(A; B) in bits, less `chance_information`.

    Args:
        counts: [a, b], how often a was followed by b.
    """
    entropy_a = _entropy(counts.sum(axis=1))
    entropy_b = _entropy(counts.sum(axis=0))
    information = entropy_a + entropy_b - _entropy(counts)
    return information - chance_information(counts)


def chance_information(counts: np.ndarray) -> float:
    """Return the mean mutual information over all ways to pair the same moves.

    This is the permutation baseline. With row sums a, column sums b and N observations, a cell is
    hypergeometric, so the mean is
    sum_ij sum_k (k / N) log2(N k / (a_i b_j)) P(k; N, a_i, b_j).
    Independent moves have this value on average; for dependent moves it subtracts slightly too
    much.

    Source: Vinh, Epps, Bailey (2010), "Information theoretic measures for clusterings comparison",
    theorem 2.

    Args:
        counts: [a, b], how often a was followed by b.

    Returns:
        Bits; 0 without observations.
    """
    num = int(counts.sum())
    if num < 2:
        return 0.0
    row_sums = counts.sum(axis=1)
    column_sums = counts.sum(axis=0)
    columns = column_sums[column_sums > 0]
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, num + 1)))))
    bits = 0.0
    for row in row_sums[row_sums > 0]:
        bits += _chance_information_of_row(row, columns, num, log_factorial)
    return bits


def _chance_information_of_row(
    row: int, columns: np.ndarray, num: int, log_factorial: np.ndarray
) -> float:
    """Return one row's part of `chance_information`, over all columns and values k of a cell.

    Args:
        row: Sum of the row, positive.
        columns: (columns,), positive column sums.
        num: Sum of the table.
        log_factorial: (num + 1,), ln(i!).
    """
    # Values that a cell can have. A cell of value 0 adds nothing.
    lowest = np.maximum(1, row + columns - num)
    highest = np.minimum(row, columns)
    num_values = max(0, int((highest - lowest).max()) + 1)
    # (columns, values): the columns have ranges of different lengths; past their end they repeat
    # the last value, with probability 0.
    values = lowest[:, None] + np.arange(num_values)
    is_inside = values <= highest[:, None]
    cell = np.where(is_inside, values, highest[:, None])
    column = columns[:, None]
    log_ways = _log_choose(log_factorial, column, cell)
    log_ways = log_ways + _log_choose(log_factorial, num - column, row - cell)
    log_all_ways = _log_choose(log_factorial, num, row)
    probability = np.where(is_inside, np.exp(log_ways - log_all_ways), 0.0)
    log_ratio = np.log2(num * cell / (row * column))
    return float((probability * cell / num * log_ratio).sum())


def _entropy(counts: np.ndarray) -> float:
    """Return -sum p log2 p in bits."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def _log_choose(log_factorial: np.ndarray, n: np.ndarray | int, k: np.ndarray | int) -> np.ndarray:
    """Return ln(n over k)."""
    return log_factorial[n] - log_factorial[k] - log_factorial[n - k]


def _replayed_game(episode: Episode, trained: Sequence[bool]) -> PlayedGame | None:
    """Return an episode with its moves; None if it cannot be replayed from its deal."""
    moves = []
    try:
        spec = recorded_spec(episode.preset, episode.num_players, episode.spec_hash)
        if spec is None:
            return None
        game = Game(spec, shuffled_deck(spec, episode.suite, episode.seed))
        for turn, action in replayed_turns(game, episode, where=""):
            chosen = trained[turn.player] and turn.kind is ReplyKind.LEGAL
            moves.append(Move(turn.player, action, game.legal_actions(), chosen))
            game.apply(action)
    except (GameParameterError, SettingsError):
        return None
    return PlayedGame(episode, spec, moves, all(trained))


def _hint_tables(games: Sequence[PlayedGame]) -> dict[tuple[GameSpec, int], np.ndarray]:
    """Return per board and giver the counts [kind of hint, number of the receiver's next move]."""
    tables: dict[tuple[GameSpec, int], np.ndarray] = {}
    for game in games:
        spec = game.spec
        actions = load_rules(spec).actions
        for hint, answer in _answered_hints(game):
            key = (spec, hint.player)
            if key not in tables:
                shape = (spec.num_colors + spec.num_ranks, len(actions[0]))
                tables[key] = np.zeros(shape, dtype=np.int64)
            row = hint_kind(spec, hint.action)
            column = actions[answer.player].index(answer.action)
            tables[key][row, column] += 1
    return tables


def _answered_hints(game: PlayedGame) -> Iterator[tuple[Move, Move]]:
    """Yield each hint to the next seat with that seat's move, both chosen by trained players."""
    for move, following in pairwise(game.moves):
        is_hint_to_next = move.action.slot < 0 and move.action.target == following.player
        if is_hint_to_next and move.chosen and following.chosen:
            yield move, following


def _kinds_of(action: Action) -> tuple[str, ...]:
    """Return the names in `_KINDS` that a move counts for."""
    is_hint = action.slot < 0
    return (action.kind, _ANY_HINT) if is_hint else (action.kind,)


def _num_hints(episode: Episode) -> int:
    return sum(turn.action.startswith("Hint") for turn in episode.turns)


def _is_trained(policy_spec: str) -> bool:
    """Tell whether a seat's policy is one of the run's players.

    Partners are scripts, the base model and frozen adapters.
    """
    return policy_spec.startswith(("player_", f"{SHARED_ADAPTER}@"))


@functools.lru_cache(maxsize=_NUM_CACHED_BLIND_SCORES)
def _blind_score(spec: GameSpec, suite: str, seed: int) -> int:
    """Return the score of a team that always plays its oldest card."""
    game = Game(spec, shuffled_deck(spec, suite, seed))
    while not game.is_over:
        game.apply(play(0))
    return game.score


def _total_pairs(informations: Sequence[_Information]) -> int:
    return sum(information.num_pairs for information in informations)


def _weighted_bits(informations: Sequence[_Information]) -> float:
    """Return the mean of the bits, weighted by pairs."""
    total_bits = sum(information.num_pairs * information.bits for information in informations)
    return total_bits / _total_pairs(informations)
