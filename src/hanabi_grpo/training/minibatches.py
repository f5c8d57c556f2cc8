"""HANABI_MINIBATCHES: a step's games in parts, with one optimizer update per part.

Advantages are computed over all games of the step before the games are divided. The loss of a part
is a mean over its own tokens. A group is never divided, so its advantages keep their mean of 0 in
the part that trains on them.
"""

import random
from collections.abc import Sequence

from hanabi_grpo.training.token_weights import LossUnit, token_weights
from hanabi_grpo.types import Episode

WHOLE_STEP = 0
"""Number of the part that holds every game if a step is not divided."""


def parts_of_games(
    groups: Sequence[Sequence[Episode]], num_parts: int, *, seed: int, step: int
) -> list[int]:
    """Return the part number of each game of the step, group by group.

    Groups are reshuffled in each step and assigned to the parts in turn, so the sizes of the parts
    differ by at most one group. If dropped games leave fewer groups than parts, there are fewer
    parts.

    Args:
        groups: The step's groups, the same on every process.
        num_parts: HANABI_MINIBATCHES.
        seed: SEED.
        step: Number of steps before this one.
    """
    if num_parts == 1:
        return [WHOLE_STEP] * sum(len(group) for group in groups)
    order = [number for number, group in enumerate(groups) if group]
    random.Random(f"{seed} {step} minibatches").shuffle(order)
    part_of = {group: place % num_parts for place, group in enumerate(order)}
    parts: list[int] = []
    for number, group in enumerate(groups):
        parts.extend([part_of[number]] * len(group) if group else [])
    return parts


def weights_by_part(
    lengths: Sequence[Sequence[float]], parts: Sequence[int], unit: LossUnit
) -> list[list[float]]:
    """Return `token_weights` of games, computed within each part.

    Args:
        lengths: Per game and turn, the number of trained tokens, or the expected number.
        parts: Per game, the number of its part.
        unit: HANABI_LOSS_UNIT.
    """
    weights: list[list[float]] = [[] for _ in lengths]
    for part in set(parts):
        members = [game for game, own_part in enumerate(parts) if own_part == part]
        of_part = token_weights([lengths[game] for game in members], unit)
        for game, game_weights in zip(members, of_part, strict=True):
            weights[game] = game_weights
    return weights
