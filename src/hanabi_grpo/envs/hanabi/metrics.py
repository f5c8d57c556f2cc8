"""Hanabi's figures of a step: bombs, hints, how trained seats play; one without an observation is
absent.
"""

import functools
from collections import Counter
from collections.abc import Sequence
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

_KINDS = ("play", "discard", "hint_color", "hint_rank", "hint")
"""The last one stands for both kinds of hints."""


class Move(NamedTuple):
    """One move of a game."""

    player: int
    action: Action
    legal: tuple[Action, ...]
    chosen: bool
    """The seat is trained and chose it; False for moves that replaced a reply without a legal
    one.
    """


class PlayedGame(NamedTuple):
    """One game on a board that this version knows."""

    episode: Episode
    spec: GameSpec
    moves: list[Move]
    is_self_play: bool
    """Every seat is trained."""


def step_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the figures below and, per game over all seats, what became of it.

    `score_kept/mean` are the points on the table, kept on a bomb; `hints_per_game` counts hints
    that were given, also in place of a bad reply. The other figures are of trained seats: those
    that players of a run hold, and all seats of games in which nobody does."""
    if not episodes:
        return {}
    games = replayed(episodes)
    return {
        "score_kept/mean": fmean([episode.result["score_kept"] for episode in episodes]),
        "bombs_per_game": fmean([episode.result["bombed"] for episode in episodes]),
        "hints_per_game": fmean(
            [sum(turn.action.startswith("Hint") for turn in one.turns) for one in episodes]
        ),
        **blind_figures(games),
        **hint_figures(games),
        **move_figures(games),
    }


def replayed(episodes: Sequence[Episode]) -> list[PlayedGame]:
    """Return the games that fit their deal; others (another board of that name, missing turns) are
    left out.
    """
    found = []
    nobody_is = not any(_is_trained(word) for episode in episodes for word in episode.seats)
    for episode in episodes:
        seats = episode.seats or [""] * episode.num_players
        trained = [nobody_is or not word or _is_trained(word) for word in seats]
        moves = []
        try:
            spec = recorded_spec(episode.preset, episode.num_players, episode.spec_hash)
            if spec is None:
                continue
            game = Game(spec, shuffled_deck(spec, episode.suite, episode.seed))
            for turn, action in replayed_turns(game, episode.turns, ""):
                chosen = trained[turn.player] and turn.kind is ReplyKind.LEGAL
                moves.append(Move(turn.player, action, game.legal_actions(), chosen))
                game.apply(action)
        except (GameParameterError, SettingsError):
            continue
        found.append(PlayedGame(episode, spec, moves, all(trained)))
    return found


def blind_figures(games: Sequence[PlayedGame]) -> dict[str, float]:
    """Return how games of trained players alone compare with blind play: always the oldest card.

    - `blind/<board>`: mean score of blind play on the deals of the games, each as often as it was
      played.
    - `over_blind/<board>`: mean of (score of a game - score of blind play on its deal).
    """
    pairs: dict[str, list[tuple[float, float]]] = {}
    for game in games:
        if game.is_self_play:
            episode = game.episode
            blind = _blind_score(game.spec, episode.suite, episode.seed)
            pairs.setdefault(episode.preset, []).append((blind, episode.result["score"] - blind))
    figures = {
        f"blind/{board}": fmean([blind for blind, _ in values]) for board, values in pairs.items()
    }
    return figures | {
        f"over_blind/{board}": fmean([over for _, over in values])
        for board, values in pairs.items()
    }


def hint_figures(games: Sequence[PlayedGame]) -> dict[str, float]:
    """Return I(which hint; the receiver's next move) in bits, of the giver and of the team.

    A pair is a hint to the next seat and that seat's move right after it, both chosen by trained
    players. What pairs by chance would show is taken off, so hints that nobody reads have 0 on
    average. It bounds what the channel carried and does not prove that it was understood: Lowe et
    al. (2019), "On the pitfalls of measuring emergent communication". What a deal makes likely on
    both sides counts too: compare it with other steps of the run.

    - `<player>/hint_bits`: hints that this player gave. Of several boards: the mean, weighted by
      pairs.
    - `hint_bits`: mean over givers, weighted by pairs.
    - `hint_pairs`: the number of pairs, always there.
    """
    tables: dict[tuple[GameSpec, int], np.ndarray] = {}
    for game in games:
        spec = game.spec
        for hint, answer in pairwise(game.moves):
            if (
                hint.action.slot >= 0
                or not (hint.chosen and answer.chosen)
                or hint.action.target != answer.player
            ):
                continue
            table = tables.get((spec, hint.player))
            if table is None:
                shape = spec.num_colors + spec.num_ranks, len(load_rules(spec).actions[0])
                table = tables[spec, hint.player] = np.zeros(shape, dtype=np.int64)
            table[
                hint_kind(spec, hint.action),
                load_rules(spec).actions[answer.player].index(answer.action),
            ] += 1
    found: dict[int, list[tuple[int, float]]] = {}
    for (_, giver), table in tables.items():
        found.setdefault(giver, []).append((int(table.sum()), information_above_chance(table)))
    everybody = [one for pairs in found.values() for one in pairs]
    figures = {"hint_pairs": float(sum(count for count, _ in everybody))}
    if everybody:
        figures["hint_bits"] = _weighted(everybody)
    return figures | {
        f"{player_name(giver)}/hint_bits": _weighted(pairs)
        for giver, pairs in sorted(found.items())
    }


@dataclass(slots=True)
class _Tally:
    num: int = 0
    legal: Counter[str] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)
    moves: Counter[Action] = field(default_factory=Counter)

    def shares(self, prefix: str) -> dict[str, float]:
        return {
            f"{prefix}share/{kind}": self.made[kind] / self.legal[kind]
            for kind in _KINDS
            if self.legal[kind]
        }


def move_figures(games: Sequence[PlayedGame]) -> dict[str, float]:
    """Return how each trained player moves. Moves that it did not choose are left out (see `Move`).

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
        for player, action, legal, chosen in game.moves:
            if not chosen:
                continue
            tally = tallies.setdefault(player, _Tally())
            tally.num += 1
            tally.legal.update({kind for move in legal for kind in _kinds(move)})
            tally.made.update(_kinds(action))
            tally.moves[action] += 1
    team = _Tally()
    for tally in tallies.values():
        team.made.update(tally.made)
        team.legal.update(tally.legal)
    figures = team.shares("")
    for player, tally in sorted(tallies.items()):
        name = player_name(player)
        figures |= tally.shares(f"{name}/")
        figures[f"{name}/top_move_share"] = max(tally.moves.values()) / tally.num
        figures[f"{name}/blind_share"] = tally.moves[play(0)] / tally.num
    return figures


def information_above_chance(counts: np.ndarray) -> float:
    """Return I(A; B) in bits of a table [a, b] of how often a was followed by b, less
    `chance_information`.
    """
    return (
        _entropy(counts.sum(axis=1))
        + _entropy(counts.sum(axis=0))
        - _entropy(counts)
        - chance_information(counts)
    )


def chance_information(counts: np.ndarray) -> float:
    """Return the mean of the mutual information over all ways to pair the same moves anew (the
    permutation baseline).

    With row sums a, column sums b and N observations, a cell is hypergeometric, so the mean is
    sum_ij sum_k (k / N) log2(N k / (a_i b_j)) P(k; N, a_i, b_j). Independent moves have this value
    on average; of moves that depend on each other it takes off rather too much.

    Source: Vinh, Epps, Bailey (2010), "Information theoretic measures for clusterings comparison",
    theorem 2.

    Returns bits; 0 without observations.
    """
    num = int(counts.sum())
    if num < 2:
        return 0.0
    rows, columns = (sums[sums > 0] for sums in (counts.sum(axis=1), counts.sum(axis=0)))
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, num + 1)))))
    bits = 0.0
    for row in rows:
        lowest, highest = np.maximum(1, row + columns - num), np.minimum(row, columns)
        steps = np.arange(max(0, int((highest - lowest).max()) + 1))
        inside = lowest[:, None] + steps <= highest[:, None]
        cell = np.where(inside, lowest[:, None] + steps, highest[:, None])
        column = columns[:, None]
        ways = _log_choose(log_factorial, column, cell) + _log_choose(
            log_factorial, num - column, row - cell
        )
        chance = np.where(inside, np.exp(ways - _log_choose(log_factorial, num, row)), 0.0)
        bits += float((chance * cell / num * np.log2(num * cell / (row * column))).sum())
    return bits


def _entropy(counts: np.ndarray) -> float:
    """Return -sum p log2 p in bits."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def _log_choose(
    log_factorial: np.ndarray, many: np.ndarray | int, few: np.ndarray | int
) -> np.ndarray:
    return log_factorial[many] - log_factorial[few] - log_factorial[many - few]


def _kinds(action: Action) -> tuple[str, ...]:
    return (action.kind,) if action.slot >= 0 else (action.kind, "hint")


def _is_trained(word: str) -> bool:
    """Tell whether a seat's word names a run's own player; partners are scripts, the base model,
    frozen adapters.
    """
    return word.startswith(("player_", f"{SHARED_ADAPTER}@"))


@functools.lru_cache(maxsize=4096)
def _blind_score(spec: GameSpec, suite: str, seed: int) -> int:
    """Return the score of a team that always plays its oldest card."""
    game = Game(spec, shuffled_deck(spec, suite, seed))
    while not game.is_over:
        game.apply(play(0))
    return game.score


def _weighted(pairs: Sequence[tuple[int, float]]) -> float:
    return sum(count * bits for count, bits in pairs) / sum(count for count, _ in pairs)
