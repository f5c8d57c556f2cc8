"""Recorded games, move by move, with what was legal."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hanabi_grpo.envs.hanabi.rules import Action, Card, Game, GameSpec, parse_action, recorded_spec, shuffled_deck
from hanabi_grpo.errors import GameParameterError, IllegalActionError
from hanabi_grpo.types import Episode, ReplyKind, is_trained


class Move(NamedTuple):
    """One move of a game; a named tuple, since a step has thousands."""

    player: int
    action: Action
    legal: tuple[Action, ...]
    chosen: bool
    """The player chose it and is trained; False for partners, and for moves that replaced a reply without a legal one.
    """
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


def replayed(groups: Sequence[Sequence[Episode]], own: Sequence[str]) -> list[PlayedGame]:
    """Return the games that fit their deal; others (another board of that name, missing turns) are left out.

    Args:
        groups: Per deal its games.
        own: Words of the trained seats, see `partners.own_seats`; empty: all seats are.
    """
    found = []
    decks: dict[tuple[str, int, str, int], tuple[Card, ...]] = {}
    for episode in (episode for group in groups for episode in group):
        spec = board_of(episode.preset, episode.num_players, episode.spec_hash)
        if spec is None:
            continue
        key = (episode.spec_hash, episode.num_players, episode.suite, episode.seed)
        if key not in decks:
            try:
                decks[key] = shuffled_deck(spec, episode.suite, episode.seed)
            except GameParameterError:
                continue
        trained = [not own or is_trained(episode, player, own) for player in range(episode.num_players)]
        moves = _moves(episode, Game(spec, decks[key]), trained)
        if moves is not None:
            found.append(PlayedGame(episode=episode, spec=spec, moves=moves, is_self_play=all(trained)))
    return found


@functools.lru_cache(maxsize=64)
def board_of(preset: str, num_players: int, spec_hash: str) -> GameSpec | None:
    """Return the board of a recorded game; None where this version has no such board."""
    try:
        return recorded_spec(preset, num_players, spec_hash)
    except GameParameterError:
        return None


def _moves(episode: Episode, game: Game, trained: Sequence[bool]) -> tuple[Move, ...] | None:
    moves = []
    for turn in episode.turns:
        player = game.current_player
        if turn.player != player:
            return None
        action = parse_action(turn.action, num_players=episode.num_players, player=player)
        if action is None:
            return None
        legal, hand = game.legal_actions(), len(game.hands[player])
        try:
            game.apply(action)
        except IllegalActionError:
            return None
        moves.append(Move(player, action, legal, trained[player] and turn.kind is ReplyKind.LEGAL, hand))
    return tuple(moves)
