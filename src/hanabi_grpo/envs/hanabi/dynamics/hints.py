"""What a hint tells the next player, in bits."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from hanabi_grpo.envs.hanabi.conventions.estimates import chance_information, mutual_information
from hanabi_grpo.envs.hanabi.conventions.layout import layout_of
from hanabi_grpo.envs.hanabi.dynamics.played import Move, PlayedGame
from hanabi_grpo.envs.hanabi.rules import GameSpec
from hanabi_grpo.types import player_name


def hint_figures(games: Sequence[PlayedGame]) -> dict[str, float]:
    """Return I(which hint; the receiver's next move) in bits, of the giver and of the team.

    A pair is a hint to the next seat and that seat's move right after it, both chosen by trained players. From the
    mutual information of the pairs the mean over all their pairings is taken off
    (`conventions.estimates.chance_information`), so hints that nobody reads have 0 on average, sometimes a little less.
    It is `hint_information` of the `conventions` room, of one step's games. It bounds what the channel carried and does
    not prove that it was understood: Lowe et al. (2019), "On the pitfalls of measuring emergent communication". A step
    has few deals, and what a deal makes likely on both sides counts too: compare it with other steps of the run.

    - `<player>/hint_bits`: hints that this player gave. Of several boards: the mean, weighted by pairs.
    - `hint_bits`: mean over givers, weighted by pairs.
    - `hint_pairs`: the number of pairs, always there.
    """
    tables: dict[tuple[GameSpec, int], np.ndarray] = {}
    for game in games:
        for hint, answer in pairwise(game.moves):
            action = hint.action
            if action.slot >= 0 or not (hint.chosen and answer.chosen) or action.target != answer.player:
                continue
            key = (game.spec, hint.player)
            if key not in tables:
                layout = layout_of(game.spec)
                tables[key] = np.zeros((layout.num_values, layout.num_actions), dtype=np.int64)
            kind = action.value + (game.spec.num_colors if action.kind == "hint_rank" else 0)
            tables[key][kind, _class_of(answer, game.spec)] += 1
    found: dict[int, list[tuple[int, float]]] = {}
    for (_, giver), table in tables.items():
        bits = float(mutual_information(table)) - chance_information(table)
        found.setdefault(giver, []).append((int(table.sum()), bits))
    everybody = [one for pairs in found.values() for one in pairs]
    figures = {"hint_pairs": float(sum(count for count, _ in everybody))}
    if everybody:
        figures["hint_bits"] = _weighted(everybody)
    return figures | {f"{player_name(giver)}/hint_bits": _weighted(pairs) for giver, pairs in sorted(found.items())}


def _class_of(move: Move, spec: GameSpec) -> int:
    """Return the number of a move's class, in the order of `conventions.layout.Layout.num_actions`."""
    action, hand = move.action, spec.hand_size
    if action.slot >= 0:
        return action.slot if action.kind == "play" else hand + action.slot
    kind = action.value + (spec.num_colors if action.kind == "hint_rank" else 0)
    values = spec.num_colors + spec.num_ranks
    return 2 * hand + ((action.target - move.player) % spec.num_players - 1) * values + kind


def _weighted(pairs: Sequence[tuple[int, float]]) -> float:
    return sum(count * bits for count, bits in pairs) / sum(count for count, _ in pairs)
