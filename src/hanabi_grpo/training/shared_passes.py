"""Which micro-batches share a forward and backward pass.

A micro-batch is of one player, and all but a player's last one are as large as
HANABI_TOKENS_PER_MICRO_BATCH lets them be. The last ones of several players are put into one pass,
as many as fit under the same limit. Loss, mismatch check and metrics stay those of each micro-batch
by itself, and gradients are equal bit by bit to those of separate passes
(`model.row_owners`).

What a micro-batch weighs is known to all processes, so that all of them make the same passes.
"""

from collections.abc import Sequence

from hanabi_grpo.training.micro_batch import MicroBatch

Pass = tuple[MicroBatch, ...]
"""Micro-batches that are computed together: one, or several of different players."""


def own_passes(batches: Sequence[MicroBatch]) -> tuple[Pass, ...]:
    """Return a pass for each micro-batch."""
    return tuple((batch,) for batch in batches)


def shared_passes(batches: Sequence[MicroBatch], limit: int) -> tuple[Pass, ...]:
    """Return the passes of one update.

    A player's micro-batches stay in their order, because its gradient is added up in it.

    Args:
        batches: Of one part of the step's games, all players' one after the other.
        limit: Most that the micro-batches of a shared pass weigh.
    """
    last_of = {batch.player: batch for batch in batches}
    full = [batch for batch in batches if batch is not last_of[batch.player]]
    shared: list[list[MicroBatch]] = []
    weights: list[float] = []
    for batch in last_of.values():
        for number, weight in enumerate(weights):
            if weight + batch.weight <= limit:
                shared[number].append(batch)
                weights[number] += batch.weight
                break
        else:
            shared.append([batch])
            weights.append(batch.weight)
    return (*own_passes(full), *map(tuple, shared))
