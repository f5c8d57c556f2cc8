"""Figures of one step that tell how a team plays; a figure without an observation is absent."""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hanabi_grpo.envs.hanabi.conventions.moves import hint_kind, move_class, move_labels
from hanabi_grpo.envs.hanabi.dynamics.information import information_above_chance
from hanabi_grpo.envs.hanabi.replays.timeline import replayed_turns
from hanabi_grpo.envs.hanabi.rules import Action, Game, GameSpec, recorded_spec, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.actions import play
from hanabi_grpo.errors import GameParameterError, SettingsError
from hanabi_grpo.types import Episode, ReplyKind, Turn, is_trained, player_name

_HINTS = ("hint_color", "hint_rank")
_HINT = "hint"
"""Both kinds of hints together."""
_KINDS = ("play", "discard", *_HINTS, _HINT)


class Move(NamedTuple):
    """One move of a game; a named tuple, since a step has thousands."""

    player: int
    action: Action
    legal: tuple[Action, ...]
    chosen: bool
    """The player is trained and chose it; False for moves that replaced a reply without a legal one."""
    hand: int
    """Cards in the mover's hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedGame:
    """One game on a board that this version knows."""

    episode: Episode
    spec: GameSpec
    moves: tuple[Move, ...]
    is_self_play: bool
    """Every seat is trained."""


def dynamics_figures(
    groups: Sequence[Sequence[Episode]], own: Sequence[str], *, reply_limit: int = 0, end_id: int | None = None
) -> dict[str, float]:
    """Return the figures of scores, hints, moves and replies below; nothing for a step without games.

    Args:
        groups: Per deal its games.
        own: Words of the trained seats, see `partners.own_seats`; empty: all seats are.
        reply_limit: Most tokens of one reply; 0: unknown.
        end_id: The token that ends a reply.
    """
    episodes = [episode for group in groups for episode in group]
    if not episodes:
        return {}
    games = replayed(groups, own)
    return {
        **board_figures(episodes, games),
        **hint_figures(games),
        **move_figures(games),
        **reply_figures(episodes, own, reply_limit=reply_limit, end_id=end_id),
    }


def replayed(groups: Sequence[Sequence[Episode]], own: Sequence[str]) -> list[PlayedGame]:
    """Return the games that fit their deal; others (another board of that name, missing turns) are left out."""
    found = []
    for episode in (episode for group in groups for episode in group):
        spec = _board_of(episode.preset, episode.num_players, episode.spec_hash)
        if spec is None:
            continue
        trained = [not own or is_trained(episode, player, own) for player in range(episode.num_players)]
        try:
            game = Game(spec, shuffled_deck(spec, episode.suite, episode.seed))
            moves = []
            for turn, action in replayed_turns(game, episode.turns, ""):
                chosen = trained[turn.player] and turn.kind is ReplyKind.LEGAL
                hand = len(game.hands[turn.player])
                moves.append(Move(turn.player, action, game.legal_actions(), chosen, hand))
                game.apply(action)
        except (GameParameterError, SettingsError):
            continue
        found.append(PlayedGame(episode=episode, spec=spec, moves=tuple(moves), is_self_play=all(trained)))
    return found


def board_figures(episodes: Sequence[Episode], games: Sequence[PlayedGame]) -> dict[str, float]:
    """Return scores by board.

    - `games/<board>`, `score/<board>`: number of games and mean score on each board.
    - `score/normalized`: mean of score / most points that the board allows (`GameSpec.reachable_max`), so that boards
      can be averaged; of games on boards that this version knows.
    - `blind/<board>`: mean score of blind play (always the oldest card) on the deals of the self-play games, each as
      often as it was played.
    - `over_blind/<board>`: mean of (score of a self-play game - score of blind play on its deal). Common deals take
      most of the luck out of the difference.
    """
    scores: dict[str, list[float]] = {}
    shares = []
    for episode in episodes:
        scores.setdefault(episode.preset, []).append(episode.score)
        board = _board_of(episode.preset, episode.num_players, episode.spec_hash)
        if board is not None:
            shares.append(episode.score / board.reachable_max)
    figures = {f"games/{board}": float(len(values)) for board, values in scores.items()}
    figures |= {f"score/{board}": _mean(values) for board, values in scores.items()}
    if shares:
        figures["score/normalized"] = _mean(shares)
    blind: dict[str, list[float]] = {}
    over: dict[str, list[float]] = {}
    for game in games:
        if game.is_self_play:
            episode = game.episode
            score = _blind_score(game.spec, episode.suite, episode.seed)
            blind.setdefault(episode.preset, []).append(score)
            over.setdefault(episode.preset, []).append(episode.score - score)
    figures |= {f"blind/{board}": _mean(values) for board, values in blind.items()}
    return figures | {f"over_blind/{board}": _mean(values) for board, values in over.items()}


def hint_figures(games: Sequence[PlayedGame]) -> dict[str, float]:
    """Return I(which hint; the receiver's next move) in bits, of the giver and of the team.

    A pair is a hint to the next seat and that seat's move right after it, both chosen by trained players. What pairs by
    chance would show is taken off, so hints that nobody reads have 0 on average, sometimes a little less. It bounds
    what the channel carried and does not prove that it was understood: Lowe et al. (2019), "On the pitfalls of
    measuring emergent communication". A step has few deals, and what a deal makes likely on both sides counts too:
    compare it with other steps of the run.

    - `<player>/hint_bits`: hints that this player gave. Of several boards: the mean, weighted by pairs.
    - `hint_bits`: mean over givers, weighted by pairs.
    - `hint_pairs`: the number of pairs, always there.
    """
    tables: dict[tuple[GameSpec, int], np.ndarray] = {}
    for game in games:
        spec = game.spec
        for hint, answer in pairwise(game.moves):
            if hint.action.slot >= 0 or not (hint.chosen and answer.chosen) or hint.action.target != answer.player:
                continue
            table = tables.get((spec, hint.player))
            if table is None:
                shape = spec.num_colors + spec.num_ranks, len(move_labels(spec))
                table = tables[spec, hint.player] = np.zeros(shape, dtype=np.int64)
            table[hint_kind(spec, hint.action), move_class(spec, answer.player, answer.action)] += 1
    found: dict[int, list[tuple[int, float]]] = {}
    for (_, giver), table in tables.items():
        found.setdefault(giver, []).append((int(table.sum()), information_above_chance(table)))
    everybody = [one for pairs in found.values() for one in pairs]
    figures = {"hint_pairs": float(sum(count for count, _ in everybody))}
    if everybody:
        figures["hint_bits"] = _weighted(everybody)
    return figures | {f"{player_name(giver)}/hint_bits": _weighted(pairs) for giver, pairs in sorted(found.items())}


@dataclass(slots=True)
class _Tally:
    num: int = 0
    legal: Counter[str] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)
    moves: Counter[Action] = field(default_factory=Counter)
    slots: Counter[int] = field(default_factory=Counter)

    def shares(self, prefix: str) -> dict[str, float]:
        return {f"{prefix}share/{kind}": self.made[kind] / self.legal[kind] for kind in _KINDS if self.legal[kind]}


def move_figures(games: Sequence[PlayedGame]) -> dict[str, float]:
    """Return how each trained player moves. Moves that it did not choose are left out (see `Move`).

    - `<player>/share/<kind>` = turns on which it made a move of this kind / turns on which one was legal, for play,
      discard, hint_color, hint_rank, and `hint` for both kinds of hints. A kind whose share goes to 0 is extinct: it is
      no longer sampled, so no update can bring it back.
    - `<player>/top_move_share` = turns with its most frequent move (kind and slot, or kind, target and value) / turns.
    - `<player>/top_slot_share` = plays and discards of its most frequent slot / plays and discards, of hands of two
      cards or more.
    - `<player>/blind_share` = turns on which it played its oldest card / turns: its agreement with blind play.
    - `share/<kind>` is the same over all trained players: in a good team one may hint and another play.
    """
    tallies: dict[int, _Tally] = {}
    for game in games:
        for player, action, legal, chosen, hand in game.moves:
            if not chosen:
                continue
            tally = tallies.setdefault(player, _Tally())
            tally.num += 1
            kinds = {move.kind for move in legal}
            tally.legal.update(kinds)
            tally.legal[_HINT] += not kinds.isdisjoint(_HINTS)
            tally.made[action.kind] += 1
            tally.moves[action] += 1
            if action.slot < 0:
                tally.made[_HINT] += 1
            elif hand > 1:
                tally.slots[action.slot] += 1
    team = _Tally()
    for tally in tallies.values():
        team.made.update(tally.made)
        team.legal.update(tally.legal)
    figures = team.shares("")
    for player, tally in sorted(tallies.items()):
        name = player_name(player)
        figures |= tally.shares(f"{name}/")
        figures[f"{name}/top_move_share"] = max(tally.moves.values()) / tally.num
        if tally.slots:
            figures[f"{name}/top_slot_share"] = max(tally.slots.values()) / tally.slots.total()
        figures[f"{name}/blind_share"] = tally.moves[play(0)] / tally.num
    return figures


def reply_figures(
    episodes: Sequence[Episode], own: Sequence[str], *, reply_limit: int = 0, end_id: int | None = None
) -> dict[str, float]:
    """Return the form of each trained player's replies.

    - `<player>/bad_reply_share` = replies that were illegal or unparsable / replies.
    - `<player>/unparsable_share` = replies in which no move could be read / replies.
    - `<player>/tokens_per_reply` = sampled tokens / replies with tokens; the token that ends a reply counts.
    - `<player>/cut_share` = replies with tokens that have `reply_limit` of them and do not end with `end_id` (None:
      whatever they end with), as a share; absent without a limit.
    """
    figures = {}
    for player in range(max((episode.num_players for episode in episodes), default=0)):
        turns = [
            turn
            for episode in episodes
            if player < episode.num_players and (not own or is_trained(episode, player, own))
            for turn in episode.trajectory(player)
        ]
        said = [turn for turn in turns if turn.reply_ids]
        name = player_name(player)
        if turns:
            figures[f"{name}/bad_reply_share"] = _mean([turn.kind is not ReplyKind.LEGAL for turn in turns])
            figures[f"{name}/unparsable_share"] = _mean([turn.kind is ReplyKind.UNPARSABLE for turn in turns])
        if said:
            figures[f"{name}/tokens_per_reply"] = _mean([len(turn.reply_ids) for turn in said])
        if said and reply_limit:
            figures[f"{name}/cut_share"] = _mean([_is_cut(turn, reply_limit, end_id) for turn in said])
    return figures


def _is_cut(turn: Turn, reply_limit: int, end_id: int | None) -> bool:
    return len(turn.reply_ids) >= reply_limit and turn.reply_ids[-1] != end_id


@functools.lru_cache(maxsize=64)
def _board_of(preset: str, num_players: int, spec_hash: str) -> GameSpec | None:
    """Return the board of a recorded game; None where this version has no such board."""
    try:
        return recorded_spec(preset, num_players, spec_hash)
    except GameParameterError:
        return None


@functools.lru_cache(maxsize=4096)
def _blind_score(spec: GameSpec, suite: str, seed: int) -> int:
    """Return the score of a team that always plays its oldest card."""
    game = Game(spec, shuffled_deck(spec, suite, seed))
    while not game.is_over:
        game.apply(play(0))
    return game.score


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _weighted(pairs: Sequence[tuple[int, float]]) -> float:
    return sum(count * bits for count, bits in pairs) / sum(count for count, _ in pairs)
