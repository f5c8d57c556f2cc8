"""The bridge to OpenSpiel: the loaded rules of a board and the numbers that it gives to moves and cards."""

import functools
from dataclasses import dataclass

import pyspiel

from hanabi_grpo.envs.hanabi.rules.actions import discard, hint_color, hint_rank, play
from hanabi_grpo.envs.hanabi.rules.deals import sorted_identities
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What one board looks like to OpenSpiel."""

    game: pyspiel.Game
    actions: tuple[tuple[Action, ...], ...]
    """Per seat: the action of each OpenSpiel number."""
    action_ids: tuple[dict[Action, int], ...]
    """Per seat: the inverse of `actions`."""
    sorted_card_ids: list[int]
    """OpenSpiel's number, color * num_ranks + rank, of every card of the deck, ascending."""


@functools.lru_cache(maxsize=64)  # pure; loading a board takes longer than playing a game on it
def load_rules(spec: GameSpec) -> Rules:
    """Load a board.

    OpenSpiel numbers moves by seat relative to the mover: discards of each slot, plays of each slot, then
    for each following seat its colours, then for each following seat its ranks.
    """
    actions = tuple(_actions_of(spec, player) for player in range(spec.num_players))
    return Rules(
        game=pyspiel.load_game("hanabi", spec.openspiel_parameters),
        actions=actions,
        action_ids=tuple({action: number for number, action in enumerate(seat)} for seat in actions),
        sorted_card_ids=list(sorted_identities(spec.num_colors, spec.num_ranks)),
    )


def _actions_of(spec: GameSpec, player: int) -> tuple[Action, ...]:
    others = [(player + offset) % spec.num_players for offset in range(1, spec.num_players)]
    slots, colors, ranks = range(spec.hand_size), range(spec.num_colors), range(spec.num_ranks)
    return (
        *map(discard, slots),
        *map(play, slots),
        *(hint_color(seat, color) for seat in others for color in colors),
        *(hint_rank(seat, rank) for seat in others for rank in ranks),
    )
