"""Which moves a player makes where they are legal, and how close that is to blind play."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hanabi_grpo.envs.hanabi.dynamics.played import PlayedGame
from hanabi_grpo.envs.hanabi.rules import Action
from hanabi_grpo.envs.hanabi.rules.actions import play
from hanabi_grpo.types import player_name

_HINTS = ("hint_color", "hint_rank")
KINDS = ("play", "discard", *_HINTS)
HINT = "hint"
"""Both kinds of hints together."""


@dataclass(slots=True)
class _Tally:
    num: int = 0
    legal: Counter[str] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)
    moves: Counter[Action] = field(default_factory=Counter)
    slots: Counter[int] = field(default_factory=Counter)


def move_figures(games: Sequence[PlayedGame]) -> dict[str, float]:
    """Return how each trained player moves. Moves that it did not choose are left out (see `played.Move`).

    Per player; a figure without an observation is absent:

    - `share/<kind>` = turns on which it made a move of this kind / turns on which one was legal, for play, discard,
      hint_color, hint_rank, and `hint` for both kinds of hints. A kind whose share goes to 0 is extinct: it is no
      longer sampled, so no update can bring it back.
    - `top_move_share` = turns with its most frequent move (kind and slot, or kind, target and value) / turns.
    - `top_slot_share` = plays and discards of its most frequent slot / plays and discards, of hands of two cards or
      more.
    - `blind_share` = turns on which it played its oldest card / turns: its agreement with blind play on the same views,
      since blind play does nothing else.

    `share/<kind>` without a player is the same over all trained players: in a good team one may hint and another play.
    """
    tallies: dict[int, _Tally] = {}
    team = _Tally()
    oldest = play(0)
    for game in games:
        for player, action, legal, chosen, hand in game.moves:
            if not chosen:
                continue
            tally = tallies.setdefault(player, _Tally())
            tally.num += 1
            kinds = {move.kind for move in legal}
            tally.legal.update(kinds)
            tally.legal[HINT] += not kinds.isdisjoint(_HINTS)
            tally.made[action.kind] += 1
            tally.moves[action] += 1
            if action.slot < 0:
                tally.made[HINT] += 1
            elif hand > 1:
                tally.slots[action.slot] += 1
    for tally in tallies.values():
        team.made.update(tally.made)
        team.legal.update(tally.legal)
    figures = _shares("", team)
    for player, tally in sorted(tallies.items()):
        name = player_name(player)
        figures |= _shares(f"{name}/", tally)
        figures[f"{name}/top_move_share"] = max(tally.moves.values()) / tally.num
        if tally.slots:
            figures[f"{name}/top_slot_share"] = max(tally.slots.values()) / tally.slots.total()
        figures[f"{name}/blind_share"] = tally.moves[oldest] / tally.num
    return figures


def _shares(prefix: str, tally: _Tally) -> dict[str, float]:
    made, legal = tally.made, tally.legal
    return {f"{prefix}share/{kind}": made[kind] / legal[kind] for kind in (*KINDS, HINT) if legal[kind]}
