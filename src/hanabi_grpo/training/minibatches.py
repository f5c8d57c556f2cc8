"""HANABI_MINIBATCHES: a step's games in parts, each of which makes an optimizer update.

Advantages come from all games of the step, and the parts follow them: the loss of a part is a mean
over its own tokens. A group stays whole, so its advantages keep their mean of 0 in the part that
learns from them.
"""

import random
from collections.abc import Sequence

from hanabi_grpo.training.token_weights import LossUnit, token_weights
from hanabi_grpo.types import Episode

WHOLE_STEP = 0
"""Number of the part that holds every game where a step is not divided."""


def parts_of_games(
    groups: Sequence[Sequence[Episode]], num_parts: int, *, seed: int, step: int
) -> list[int]:
    """Return per game of the step, group by group, the number of its part.

    Groups are shuffled anew in each step, and dealt to the parts in turn, so that parts differ by
    one group at most. Fewer groups than parts, because games were dropped, make fewer parts.

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
    """Return `token_weights` of games, each among the games of its own part.

    Args:
        lengths: Per game and turn the number of its trained tokens, or how many are expected.
        parts: Per game the number of its part.
        unit: HANABI_LOSS_UNIT.
    """
    weights: list[list[float]] = [[] for _ in lengths]
    for part in set(parts):
        members = [game for game, own_part in enumerate(parts) if own_part == part]
        of_part = token_weights([lengths[game] for game in members], unit)
        for game, game_weights in zip(members, of_part, strict=True):
            weights[game] = game_weights
    return weights
